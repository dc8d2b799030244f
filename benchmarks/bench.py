"""Measures the subjects beside this file and writes RESULTS.md: `python benchmarks/bench.py [SUBJECT ...]`.

Without a name all are measured; with names the other rows stay as results.json has them.
"""

import argparse
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from statistics import median
from typing import Any

from measuring import HERE, Row, generate

SUBJECTS = ("resnet18", "checkpoints", "mlp", "digits", "mnist", "data_path", "inference", "generation", "startup")
RESULTS, TABLE = HERE / "results.json", HERE / "RESULTS.md"
PACKAGES = ("torch", "lightning")


def measured(subject: str) -> dict[str, Any]:
    """Give the rows of a subject and the circumstances under which they were measured."""
    print(subject, flush=True)
    module = import_module(subject)
    rows: list[Row] = module.rows()
    return {
        "rows": [asdict(row) for row in rows],
        "rounds": module.ROUNDS,
        "threads": module.THREADS or "all",
        "overrides": shlex.join(getattr(module, "OVERRIDES", ())).replace(f"{HERE.parent}/", ""),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/bench.py", *sys.argv[1:]]),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "versions": ", ".join(
            [f"Python {platform.python_version()}", *(f"{package} {version(package)}" for package in PACKAGES)]
        ),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Measured side by side",
        "",
        "Written by `make bench`; edit nothing here. Two sides are whole processes that take turns, every second round",
        "backwards, so that a machine that drifts slows both. A ratio is taken within each round: median, and lowest",
        "to highest in brackets.",
        "",
        "| what | here | beside | ratio | wanted |",
        "|---|---|---|---|---|",
    ]
    for subject in results.values():
        lines += [line(Row(**row)) for row in subject["rows"]]
    columns = ("rounds", "threads", "date", "versions", "machine", "command")
    lines += ["", "## Under which circumstances", "", f"| subject | {' | '.join(columns)} |", "|---" * 7 + "|"]
    for name, subject in results.items():
        lines.append(f"| {name} | {' | '.join(str(subject[column]) for column in columns)} |")
    lines += ["", "## What was typed behind `python train.py`", ""]
    lines += [f"- {name}: `{subject['overrides']}`" for name, subject in results.items() if subject["overrides"]]
    return "\n".join(lines) + "\n"


def line(row: Row) -> str:
    ratios = [ours / theirs for ours, theirs in zip(row.ours, row.theirs, strict=True)]
    limits = {"at least": row.at_least, "at most": row.at_most}
    wanted = ", ".join(f"{words} {limit:.2f}" for words, limit in limits.items() if limit is not None)
    if wanted:
        within = (row.at_least or 0) <= median(ratios) <= (row.at_most or float("inf"))
        wanted += ": " + ("reached" if within else "missed")
    cells = [
        row.what,
        f"{number(median(row.ours))} {row.unit}",
        f"{row.versus}: {number(median(row.theirs))} {row.unit}",
        f"**{median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f})",
        wanted,
    ]
    return f"| {' | '.join(cells)} |"


def number(value: float) -> str:
    """Show three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; all without a name")
    names = parser.parse_args().subjects or SUBJECTS
    if unknown := set(names) - set(SUBJECTS):
        parser.error(f"{', '.join(sorted(unknown))} is no subject. Allowed: {', '.join(SUBJECTS)}.")
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    generate()
    for name in names:
        results[name] = measured(name)
        # After each, so that an interrupted bench keeps what it measured.
        results = {subject: results[subject] for subject in SUBJECTS if subject in results}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        TABLE.write_text(table(results), encoding="utf-8")
    print("\n" + TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
