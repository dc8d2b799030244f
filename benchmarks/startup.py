"""What the command line costs before anything is trained, beside importing Hydra alone."""

import subprocess
import sys
from functools import partial
from time import perf_counter

from measuring import PROJECT, Row, in_turn

ROUNDS, THREADS = 15, None
# Arguments of train.py, the exit code, and how many times an import of Hydra it may take.
COMMANDS = {
    "a wrong key": (["trainer.max_epoch=3"], 2, 3.0),
    "an impossible value": (["data.batch_size=0"], 2, 3.0),
    "train.py --cfg job": (["--cfg", "job"], 0, 3.0),
    "train.py --help": (["--help"], 0, 6.0),
}


def seconds(command: list[str], code: int) -> float:
    started = perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    taken = perf_counter() - started
    if done.returncode != code:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}, not {code}:\n{done.stderr[-4000:]}")
    return taken


def rows() -> list[Row]:
    train = str(PROJECT / "train.py")
    ours = [partial(seconds, [train, *arguments], code) for arguments, code, _ in COMMANDS.values()]
    hydra, *taken = in_turn(ROUNDS, partial(seconds, ["-c", "import hydra"], 0), *ours)
    return [
        Row(name, figures, "import hydra", hydra, "s", at_most=limit)
        for (name, (_, _, limit)), figures in zip(COMMANDS.items(), taken, strict=True)
    ]
