"""What the data path gains: a folder of JPEGs with and without its cache. And what memory a set in memory takes."""

import shutil
import sys
from functools import partial
from itertools import count
from pathlib import Path

import mnist
import numpy as np
from measuring import HERE, PACKAGE, PROJECT, Row, best_workers, in_turn, run
from PIL import Image

ROUNDS, THREADS = 3, None
JPEGS, NUMBER = PROJECT.parent / "bench-jpegs", 2000
NAMES = count()
# The most memory that a process held, in MB, on the last line it prints.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000)
"""
# Without Lightning, Hydra and metrics, which are a part of what a project's process holds.
ONLY_TORCH = """
import sys
import torch
from torch import nn
from torchvision.datasets import MNIST
data, widths = MNIST(sys.argv[1]), [784, *map(int, sys.argv[3:])]
images, labels = data.data[:54000, None], data.targets[:54000]
hidden = [part for pair in zip(widths, widths[1:]) for part in (nn.Linear(*pair), nn.ReLU())]
net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], 10))
optimizer = torch.optim.AdamW(net.parameters(), fused=True)
for _ in range(2):
    for batch in torch.randperm(len(labels)).split(int(sys.argv[2])):
        loss = nn.functional.cross_entropy(net(images[batch].float() / 255), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def rows() -> list[Row]:
    mnist.write_mnist()
    write_jpegs(JPEGS)
    classic_workers = best_workers(lambda workers: supply("classic", workers))
    files, cached, augmented, classic, our_peak, loop_peak = in_turn(
        ROUNDS,
        partial(supply, "files", "auto"),
        partial(supply, "cache", 0),
        partial(supply, "augmented", 0),
        partial(supply, "classic", classic_workers),
        lambda: peak(PROJECT / "train.py", *mnist.OVERRIDES, f"run_id=bench-peak-{next(NAMES)}"),
        lambda: peak("-c", ONLY_TORCH, mnist.ROOT, mnist.BATCH, *mnist.WIDTHS),
    )
    beside = f"ImageFolder, RandomResizedCrop, ToTensor, Normalize, {classic_workers} workers"
    return [
        Row("2,000 JPEGs at 224, second epoch: cache, uint8 batches", cached, beside, classic, "images/s", at_least=10),
        Row("... cache, augmentation on the CPU counted", augmented, beside, classic, "images/s", at_least=2),
        Row("... without the cache", files, beside, classic, "images/s", at_least=1),
        Row("peak memory of the mlp's training", our_peak, "loop without Lightning", loop_peak, "MB", at_most=1.3),
    ]


def supply(way: str, workers: int | str) -> float:
    command = [sys.executable, HERE / "supply.py", PROJECT, PACKAGE, JPEGS, way, workers]
    return float(run(list(map(str, command)), THREADS)[0].splitlines()[-1])


def peak(*command: str | Path | int) -> float:
    whole = [sys.executable, "-c", PEAK, sys.executable, *map(str, command)]
    return float(run(whole, THREADS)[0].splitlines()[-1])


def write_jpegs(folder: Path) -> None:
    """Write JPEGs of 500 by 375 pixels, about as large as photographs, in four classes."""
    shutil.rmtree(folder, ignore_errors=True)
    random = np.random.default_rng(0)
    for number in range(NUMBER):
        coarse = Image.fromarray(random.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((500, 375))
        pixels = (np.asarray(coarse) + random.normal(0, 8, (375, 500, 1))).clip(0, 255).astype(np.uint8)
        place = folder / f"class {number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:04d}.jpg", quality=85)


if __name__ == "__main__":
    sys.exit("Run python benchmarks/bench.py data_path.")
