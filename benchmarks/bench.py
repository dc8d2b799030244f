"""Measures a generated project's training speed beside a hand-written loop. `make bench` runs it.

Claim under test: what Lightning, configuration, metrics, callbacks and the CSV log cost on a model so small that the
cost shows. Both are whole processes, taken in turn, so that a machine that drifts slows both; medians are compared.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "build" / "bench-project"
EPOCHS, ROUNDS = 10, 5


def seconds(command: list[str]) -> float:
    started = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - started


def generation() -> tuple[float, float]:
    """Give the seconds of generating the files of a project, and of starting cookiecutter alone."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    answers = ("project_name=Bench Project", "environment=none", "git_init=false", "logger=csv")
    command = [sys.executable, "-m", "cookiecutter", str(ROOT), "--no-input", "--output-dir", str(PROJECT.parent)]
    return seconds([*command, *answers]), seconds([sys.executable, "-m", "cookiecutter", "--version"])


def project_speed(run: int) -> float:
    """Train with every default on; give training samples per second."""
    run_dir = PROJECT / "logs" / f"bench-{run}"
    overrides = [f"trainer.max_epochs={EPOCHS}", f"hydra.run.dir={run_dir}", "export=null"]
    subprocess.run([sys.executable, str(PROJECT / "train.py"), *overrides], check=True, capture_output=True)
    return float(json.loads((run_dir / "results.json").read_text(encoding="utf-8"))["train_samples_per_second"])


def handwritten_speed() -> float:
    command = [sys.executable, str(ROOT / "benchmarks" / "handwritten.py"), str(PROJECT), "bench_project", str(EPOCHS)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    PROJECT.parent.mkdir(exist_ok=True)
    generated, started = zip(*(generation() for _ in range(ROUNDS)), strict=True)
    project, handwritten = [], []
    for run in range(ROUNDS):
        print(f"round {run + 1} of {ROUNDS} ...", flush=True)
        project.append(project_speed(run))
        handwritten.append(handwritten_speed())
    ratios = [ours / theirs for ours, theirs in zip(project, handwritten, strict=True)]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "lightning"))
    print(f"\ndigits cnn, batch 64, {EPOCHS} epochs, {ROUNDS} rounds; {machine}; {versions}")
    print(f"{'training samples/s':<24}{'median':>8}{'lowest':>8}{'highest':>9}")
    for name, speeds in {"project, defaults on": project, "hand-written loop": handwritten}.items():
        print(f"{name:<24}{statistics.median(speeds):>8.0f}{min(speeds):>8.0f}{max(speeds):>9.0f}")
    print(f"{'ratio':<24}{statistics.median(ratios):>8.2f}{min(ratios):>8.2f}{max(ratios):>9.2f}")
    print(f"\ngenerating the files of a project: {statistics.median(generated):.2f} s, ", end="")
    print(f"{statistics.median(generated) / statistics.median(started):.1f} times `cookiecutter --version`")


if __name__ == "__main__":
    main()
