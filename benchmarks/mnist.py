"""What serving whole batches from memory gains: 60,000 images in MNIST's files, and Lightning as it is usually written.

How many threads torch has decides what the other side's workers gain. The row that has to be reached takes this
project as it comes, and of the other side the best of all numbers of workers with either number of threads.
"""

import shutil
import struct
import sys
from functools import partial
from statistics import median

import numpy as np
from measuring import HERE, PROJECT, Row, best_workers, in_turn, run, train

ROUNDS, THREADS, BATCH, WIDTHS = 9, "all; 1", 128, (64, 128, 64)
ROOT = PROJECT.parent / "bench-mnist"
OVERRIDES = (
    *("data=mnist", f"data.root={ROOT}", f"data.batch_size={BATCH}"),
    *("model=mlp", f"model.net.hidden_sizes=[{','.join(map(str, WIDTHS))}]", "trainer.max_epochs=2", "export=null"),
)


def rows() -> list[Row]:
    write_mnist()
    workers = {threads: best_workers(partial(usual, threads=threads)) for threads in (None, 1)}
    ours, ours_alone, all_threads, one_thread = in_turn(
        ROUNDS,
        partial(train, OVERRIDES, None),
        partial(train, OVERRIDES, 1),
        partial(usual, workers[None], None),
        partial(usual, workers[1], 1),
    )
    other = "Lightning, ToTensor and Normalize for each sample, {} workers, {}"
    by_itself = other.format(workers[None], "torch's own number of threads")
    alone = other.format(workers[1], "one thread")
    best, of_best = max((all_threads, by_itself), (one_thread, alone), key=lambda side: median(side[0]))
    what = "60,000 images in MNIST's format, mlp, two epochs"
    return [
        Row(what, ours, f"the best setting of {of_best}", best, "samples/s", at_least=5),
        Row("... torch's own number of threads", ours, by_itself, all_threads, "samples/s"),
        Row("... one thread", ours_alone, alone, one_thread, "samples/s"),
    ]


def usual(workers: int, threads: int | None) -> float:
    command = [sys.executable, HERE / "usual_lightning.py", ROOT, workers, 2, BATCH, *WIDTHS]
    return float(run(list(map(str, command)), threads)[0].splitlines()[-1])


def write_mnist() -> None:
    """Write images and labels as MNIST's files hold them; every class has bright rows of its own under noise."""
    folder = ROOT / "MNIST" / "raw"
    shutil.rmtree(ROOT, ignore_errors=True)
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for prefix, number in (("train", 60_000), ("t10k", 10_000)):
        labels = random.integers(0, 10, number, dtype=np.uint8)
        images = random.integers(0, 128, (number, 28, 28), dtype=np.uint8)
        images[np.arange(number), 2 * labels + 4] += 100
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *images.shape) + images.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, number) + labels.tobytes())


if __name__ == "__main__":
    sys.exit("Run python benchmarks/bench.py mnist.")
