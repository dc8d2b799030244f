"""Shows the whole product on real data: generate, train, export, predict. `make demo` runs it."""

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "build" / "digits-demo"


def run(*command: str | Path, cwd: Path = PROJECT) -> None:
    """Show a command and run it; a demo whose command fails has failed."""
    shown = ["python" if part == sys.executable else str(part) for part in command]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, check=True, env={**os.environ, "WANDB_MODE": "offline"})


def labels(table: Path) -> dict[str, str]:
    with table.open(encoding="utf-8", newline="") as file:
        return {Path(row["path"]).name: row["label"] for row in csv.DictReader(file)}


def main() -> None:
    shutil.rmtree(PROJECT, ignore_errors=True)
    PROJECT.parent.mkdir(exist_ok=True)
    answers = ("project_name=Digits Demo", "environment=current", "git_init=false")
    cookiecutter = (sys.executable, "-m", "cookiecutter", ROOT, "--no-input", "--output-dir", PROJECT.parent)
    run(*cookiecutter, *answers, cwd=ROOT)
    run(sys.executable, "train.py")

    run_dir = (PROJECT / "logs" / "latest").resolve()
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    exported, checkpoint = Path(results["exports"][0]["path"]), Path(results["best_checkpoint"])
    samples, tables = (
        PROJECT / "samples",
        {exported: PROJECT / "predictions.csv", checkpoint: run_dir / "checkpoint.csv"},
    )
    run(sys.executable, "-m", "digits_demo.data.digits", samples)
    for model, table in tables.items():
        run(sys.executable, "predict.py", model, samples, "--output", table)

    shipped, trained = (labels(table) for table in tables.values())
    print(f"\n{'image':<14}{'exported file':<15}checkpoint")
    for name, label in shipped.items():
        print(f"{name:<14}{label:<15}{trained[name]}")
    same = sum(label == trained[name] for name, label in shipped.items())
    places = {
        "project": PROJECT,
        "run": run_dir,
        "checkpoint": checkpoint,
        "exported": exported,
        "predictions": tables[exported],
    }
    print(f"\ntest accuracy {results['metrics']['test/acc']:.4f} after {results['duration_s']:.0f} s; ", end="")
    print(f"the exported file and the checkpoint name the same class for {same} of {len(shipped)} images.\n")
    print(*(f"{name:<12} {place}" for name, place in places.items()), sep="\n")
    if same != len(shipped):
        sys.exit("The exported file and the checkpoint disagree.")


if __name__ == "__main__":
    main()
