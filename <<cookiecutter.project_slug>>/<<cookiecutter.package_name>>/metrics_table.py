"""metrics.csv, which a resumed run continues: Lightning's own logger deletes it (training.py)."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from .configuration import ConfigError, shown


class MetricsTable(CSVLogger):
    """
    Args:
        done_steps: optimizer steps of the checkpoint that is resumed; rows of later steps are logged again.

    Raises:
        ConfigError: there is a metrics.csv that is no such table.
    """

    def __init__(self, run_dir: Path, done_steps: int = 0) -> None:
        # Empty names: the first logger's folder is where Lightning puts checkpoints/.
        super().__init__(run_dir, name="", version="")
        self._open(run_dir, done_steps)

    @rank_zero_only
    def _open(self, run_dir: Path, done_steps: int) -> None:
        self._experiment = _Table(str(run_dir), done_steps)


class _Table(ExperimentWriter):
    def __init__(self, log_dir: str, done_steps: int) -> None:
        self.done_steps = done_steps
        super().__init__(log_dir)

    def _check_log_dir_exists(self) -> None:
        file = Path(self.metrics_file_path)
        rows, self.metrics_keys = _read(file) if file.exists() else ([], [])
        if self.metrics_keys:
            done = [row for row in rows if (row["step"] or "").isdecimal() and int(row["step"]) < self.done_steps]
            self._write(done, self.metrics_keys)

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with Path(self.metrics_file_path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self._write(rows, fieldnames)

    def _write(self, rows: list[dict[str, Any]], fieldnames: list[str]) -> None:
        # In one step: a kill leaves the old table or the new one.
        new = Path(f"{self.metrics_file_path}.unfinished")
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=fieldnames, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        new.replace(self.metrics_file_path)


def _read(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Give the rows and columns of a table; an empty file has none."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            lines = opened.readlines()
        # A kill may cut the last line off, even inside the number of its step.
        reader = csv.DictReader(line for line in lines if line.endswith("\n"))
        rows, columns = list(reader), list(reader.fieldnames or [])
        if lines and "step" not in columns:
            raise csv.Error("it has no column step")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{shown(file)} is not the table in which a run writes its metrics: "
            f"{getattr(error, 'strerror', None) or error}. Allowed: the run's own table, or none. "
            f"Try: mv {shown(file)} {shown(file.with_suffix('.old'))}"
        ) from error
    return rows, columns
