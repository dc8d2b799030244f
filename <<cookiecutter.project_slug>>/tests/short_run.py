"""A job of twelve steps, and the same one made so long that it can be stopped: test_resuming.py, test_signals.py."""

import json
import subprocess
import sys
import time

QUICK = (
    *("model=mlp", "export=null", "logger=null", "callbacks.model_summary=null", "trainer.enable_progress_bar=false"),
    *("trainer.max_epochs=2", "trainer.limit_train_batches=6"),
)
TWO_PROCESSES = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


def results_of(run_dir):
    return json.loads((run_dir / "results.json").read_text(encoding="utf-8"))


def start(project, folder, *overrides):
    command = [sys.executable, str(project / "train.py"), *QUICK, "trainer.max_epochs=2000", *overrides]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command += ["callbacks.early_stopping=null", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(command, start_new_session=True, **quiet)
    while process.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
        time.sleep(0.02)
    return process
