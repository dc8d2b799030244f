"""Kills training at random moments, goes on each time, and compares the end with an undisturbed run, bit for bit.

`python tests/soak.py [--kills 20] [--seed 0] [overrides]` runs it by hand; test_resuming.py runs it with few kills.
"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
# Dropout, mixing, averaged weights and accumulation: everything that has a state of its own.
JOB = (
    *("trainer.max_epochs=16", "trainer.accumulate_grad_batches=2", "callbacks=ema", "model.mixup_alpha=0.2", "seed=3"),
    *("export=null", "logger=null", "trainer.enable_progress_bar=false", "callbacks.model_summary=null"),
    *("callbacks.last_checkpoint.every_n_train_steps=1", "resume=auto"),
)


def start(project: Path, run_dir: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(project / "train.py"), *JOB, *overrides, f"hydra.run.dir={run_dir}"]
    with (run_dir.parent / f"{run_dir.name}.txt").open("ab") as screen:
        # A session of its own, so that one signal reaches every process of the run.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen, start_new_session=True, cwd=run_dir.parent
        )


def kill(process: subprocess.Popen[bytes], last: Path, saves: int, delay: float) -> bool:
    """Kill every process of a run some seconds after so many checkpoints; say whether it had ended before."""
    seen = last.stat().st_mtime_ns if last.is_file() else 0
    while saves and process.poll() is None:
        now = last.stat().st_mtime_ns if last.is_file() else 0
        saves -= now != seen
        seen = now
        time.sleep(0.002)
    time.sleep(delay)
    ended = process.poll() is not None
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ended


def soak(project: Path, folder: Path, kills: int, seed: int, overrides: list[str]) -> dict[str, int]:
    """Give how often a run was killed and from how many checkpoints it went on.

    Raises:
        AssertionError: the runs end differently, or one fails.
    """
    whole, cut = folder / "whole", folder / "cut"
    assert start(project, whole, overrides).wait() == 0, (folder / "whole.txt").read_text(encoding="utf-8")
    last = cut / "checkpoints" / "last.ckpt"
    moments = random.Random(seed)
    ended = killed = went_on = 0
    while killed < kills and not ended:
        went_on += last.is_file()
        # A save takes a few milliseconds of a step: some moments lie within one.
        ended = kill(start(project, cut, overrides), last, moments.randint(1, 3), moments.uniform(0, 0.1))
        killed += not ended
    if not ended:
        assert start(project, cut, overrides).wait() == 0, (folder / "cut.txt").read_text(encoding="utf-8")
    compare(whole, cut)
    return {"killed": killed, "went on from a checkpoint": went_on}


def compare(whole: Path, cut: Path) -> None:
    for name in ("best", "last"):
        one, other = (torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True) for run in (whole, cut))
        # With averaged weights, the trained ones stand beside them.
        for part in {"state_dict", "current_model_state"} & one.keys():
            assert one[part].keys() == other[part].keys()
            different = [key for key in one[part] if not torch.equal(one[part][key], other[part][key])]
            assert different == [], f"{name}: {different}"
        assert (one["epoch"], one["global_step"]) == (other["epoch"], other["global_step"])
    results = [json.loads((run / "results.json").read_text(encoding="utf-8")) for run in (whole, cut)]
    for key in ("metrics", "best_score", "epochs", "steps"):
        assert results[0][key] == results[1][key], (key, results[0][key], results[1][key])
    tables = []
    for run in (whole, cut):
        with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert tables[0] == tables[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        done = soak(ROOT, Path(folder), arguments.kills, arguments.seed, overrides)
        print(done)
        print("Weights, best checkpoint, metrics and table are those of the undisturbed run, bit for bit.")
        if done["killed"] < arguments.kills:
            sys.exit("The run ended before it was killed so often. Add trainer.max_epochs=32.")


if __name__ == "__main__":
    main()
