"""What it costs that a run survives: checkpoints as often as they are by default, and the books of an exact resume."""

import json
import sys

import resnet18
from measuring import HERE, PACKAGE, PROJECT, Row, run

ROUNDS, THREADS, EPOCHS = 3, None, 3
# The resnet18 job, whose epochs are short: each ends with two checkpoints of 134 MB.
OVERRIDES = (*(part for part in resnet18.OVERRIDES if "max_epochs" not in part), f"trainer.max_epochs={EPOCHS}")


def rows() -> list[Row]:
    clocked: list[dict[str, float]] = []
    for number in range(ROUNDS):
        print(f"  round {number + 1} of {ROUNDS} ...", flush=True)
        run_dir = PROJECT / "logs" / f"bench-checkpoints-{number}"
        command = [sys.executable, HERE / "clocked.py", PROJECT, PACKAGE, *OVERRIDES, f"hydra.run.dir={run_dir}"]
        clocked.append(json.loads(run(command, THREADS)[0].splitlines()[-1]))
    epochs = [figures["epochs"] / EPOCHS for figures in clocked]
    without = {
        part: [(figures["epochs"] - figures[part]) / EPOCHS for figures in clocked]
        for part in ("checkpoints", "bookkeeping")
    }
    steps = resnet18.STEPS
    return [
        Row(
            f"resnet18, an epoch of {steps} steps and its checkpoints",
            epochs,
            "less the time they take",
            without["checkpoints"],
            "s",
            at_most=1.03,
        ),
        Row(
            f"resnet18, an epoch of {steps} steps and an exact resume's bookkeeping",
            epochs,
            "less the time it takes",
            without["bookkeeping"],
            "s",
            at_most=1.01,
        ),
    ]
