"""What every subject uses: a generated project, commands taken in turn, and the rows of the table they fill.

Each figure comes from a whole process. Two sides take turns, so that a machine that drifts slows both, and each round
gives one ratio.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PROJECT, PACKAGE = ROOT / "build" / "bench-project", "bench_project"
WORKERS, TRIES = (0, 1, 2, 4), 2
_runs = count()


@dataclass(frozen=True)
class Row:
    """
    Attributes:
        ours: one figure for each round.
        theirs: what was measured in turn with them.
        at_least: the smallest ratio of ours to theirs that is good enough; None sets no limit.
        at_most: the largest.
    """

    what: str
    ours: Sequence[float]
    versus: str
    theirs: Sequence[float]
    unit: str
    at_least: float | None = None
    at_most: float | None = None


def run(command: Sequence[str | Path], threads: int | None = None) -> tuple[str, float]:
    """Run a process; give what it printed and its seconds.

    Args:
        threads: of torch; None leaves it all cores.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"WANDB_MODE": "offline"} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    started = perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env=environment)
    seconds = perf_counter() - started
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout, seconds


def generate() -> float:
    """Generate a project with the answers that are offered; give the seconds."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    PROJECT.parent.mkdir(exist_ok=True)
    answers = ("project_name=Bench Project", "environment=none", "git_init=false")
    command = [sys.executable, "-m", "cookiecutter", ROOT, "--no-input", "--output-dir", PROJECT.parent, *answers]
    return run(command)[1]


def in_turn(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Take the measures in turn, every other round backwards: none is always the first. Give the figures of each."""
    figures: list[list[float]] = [[] for _ in measures]
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds} ...", flush=True)
        turns = list(zip(measures, figures, strict=True))
        for measure, kept in turns if number % 2 == 0 else reversed(turns):
            kept.append(measure())
    return figures


def best_workers(measure: Callable[[int], float]) -> int:
    """Give the number of workers with which the other side is fastest, by the median of some tries."""
    tries = in_turn(TRIES, *(partial(measure, workers) for workers in WORKERS))
    speeds = dict(zip(WORKERS, map(median, tries), strict=True))
    print("  workers:", {workers: round(speed) for workers, speed in speeds.items()}, flush=True)
    return max(speeds, key=speeds.__getitem__)


def train(overrides: Sequence[str], threads: int | None = None) -> float:
    """Run the project's train.py; give its own figure: training samples per second."""
    run_dir = PROJECT / "logs" / f"bench-{next(_runs)}"
    run([sys.executable, PROJECT / "train.py", *overrides, f"hydra.run.dir={run_dir}"], threads)
    return float(json.loads((run_dir / "results.json").read_text(encoding="utf-8"))["train_samples_per_second"])


def loop(script: str, overrides: Sequence[str], threads: int | None = None) -> float:
    """Run one of the loops beside this file on the same data, network and settings; give samples per second."""
    return float(run([sys.executable, HERE / script, PROJECT, PACKAGE, *overrides], threads)[0].splitlines()[-1])
