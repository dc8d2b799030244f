"""Measures how long a model and its exported files take to answer (`export.benchmark=true`)."""

import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from .deployed import Deployed

log = logging.getLogger(__name__)

BATCHES = (1, 32)
WARM_UP, CALLS, SECONDS = 3, 50, 2.0


def measure_latency(deployed: Deployed, files: dict[str, Callable[[np.ndarray], np.ndarray]]) -> list[dict[str, Any]]:
    """Time the model as it is, compiled, and each file, on this machine's CPU.

    Args:
        files: classifiers by their format.

    Returns:
        for each subject and batch `model`, `batch`, `median_ms` and `p95_ms`, or `error`.
    """
    subjects: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "eager": _on_arrays(deployed),
        "torch.compile": _on_arrays(torch.compile(deployed)),
        **files,
    }
    rows = []
    for name, run in subjects.items():
        for size in BATCHES:
            images = np.zeros((size, *deployed.example().shape[1:]), dtype=np.uint8)
            try:
                rows.append({"model": name, "batch": size, **time_calls(partial(run, images))})
            except Exception as error:
                # Compiling needs a C++ compiler, which many machines lack.
                log.exception("%s could not be measured.", name)
                rows.append({"model": name, "batch": size, "error": f"{type(error).__name__}: {error}"})
    return rows


def time_calls(call: Callable[[], object]) -> dict[str, float]:
    """Give median and 95th percentile, ms, of up to CALLS calls in about SECONDS, after a warm-up."""
    for _ in range(WARM_UP):
        call()
    taken: list[float] = []
    while len(taken) < CALLS and (sum(taken) < SECONDS or len(taken) < WARM_UP):
        started = perf_counter()
        call()
        taken.append(perf_counter() - started)
    median, p95 = np.percentile(taken, (50, 95)) * 1000
    return {"median_ms": round(float(median), 3), "p95_ms": round(float(p95), 3)}


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows for the log, one line for each model."""
    lines = [f"{'milliseconds':<16}" + "".join(f"{f'batch {size}':>12}{'p95':>10}" for size in BATCHES)]
    for name in dict.fromkeys(row["model"] for row in rows):
        cells = (
            f"{'failed':>12}{'':>10}" if "error" in row else f"{row['median_ms']:>12.2f}{row['p95_ms']:>10.2f}"
            for row in rows
            if row["model"] == name
        )
        lines.append(f"{name:<16}{''.join(cells)}")
    return "\n".join(lines)


def _on_arrays(model: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(images)).numpy()

    return run
