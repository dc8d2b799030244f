"""metrics.csv, which a resumed run continues: Lightning's own logger deletes it (training.py)."""

import csv
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only


class MetricsTable(CSVLogger):
    """
    Args:
        done_steps: optimizer steps of the checkpoint that is resumed; rows of later steps are logged again.
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
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as old:
                reader = csv.DictReader(old)
                # A row that a kill cut off has no number of its step, or belongs to a later one.
                rows = [row for row in reader if (row["step"] or "").isdigit() and int(row["step"]) < self.done_steps]
                self.metrics_keys = list(reader.fieldnames or [])
            self._write(rows, self.metrics_keys)

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with Path(self.metrics_file_path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self._write(rows, fieldnames)

    def _write(self, rows: list[dict[str, Any]], fieldnames: list[str]) -> None:
        # In one step: a kill leaves the old table or the new one.
        new = Path(f"{self.metrics_file_path}.unfinished")
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=fieldnames)
            writer.writeheader()
            writer.writerows(rows)
        new.replace(self.metrics_file_path)
