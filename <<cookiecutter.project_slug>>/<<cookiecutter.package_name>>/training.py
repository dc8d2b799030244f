"""One training run from top to bottom: fit, test the best checkpoint, export it, write down the result."""

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning import Callback, Trainer, seed_everything
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ModelSummary, ProgressBar
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from .building import build, build_model, check_targets
from .callbacks.end_of_run import EndOfRun
from .callbacks.last_checkpoint import LastCheckpoint
from .callbacks.signals import SIGNALS, StopOnSignal
from .callbacks.throughput import Throughput
from .checkpoints import AtomicCheckpointIO, plain_model, read_checkpoint
from .configuration import RUN_DIR_VARIABLE, ConfigError, plain, shown
from .console import quiet_libraries
from .machine import fit_to_machine
from .masking import masked
from .metrics_table import MetricsTable
from .models.image_classifier import ImageClassifier
from .models.switches import switch_on
from .profiling import NoProfiler
from .resuming import refuse_another_run, refuse_shorter_run
from .run_directory import open_run_directory, record_request, write_json

log = logging.getLogger(__name__)


def train(config: DictConfig) -> None:
    started = perf_counter()
    quiet_libraries()
    run_dir = Path(HydraConfig.get().runtime.output_dir).absolute()
    asked, settled = masked(plain(config)), fit_to_machine(config)
    if config.resume is not None:
        # A run directory repeats what it holds, and it may have come from anywhere, as a checkpoint may.
        check_targets(plain(config), Logger)
    # A file, or `auto` for a run that ended before its first checkpoint.
    resumed = read_checkpoint(config.resume, resume=True) if config.resume not in (None, "auto") else None
    if resumed is not None:
        refuse_another_run(plain(resumed.config), asked, resumed.path, added=False)
        refuse_shorter_run(settled, resumed.epoch, resumed.step)
        settled.model.init_from = None
    seed_everything(settled.seed, workers=True, verbose=False)

    datamodule = build(settled.data)
    datamodule.prepare_data()
    if resumed is not None:
        datamodule.read_split(run_dir)
    datamodule.setup()
    model = build_model(settled, datamodule.data_spec)
    check_image_size(model)
    switch_on(model, settled.model)
    if settled.model.class_weights:
        model.weigh_classes(datamodule.class_weights())
    # The checkpoint carries what was asked: another machine settles `auto` for itself.
    model.config = asked
    check_monitor(settled.monitor, model.metric_names)

    throughput, signals = Throughput(), StopOnSignal()
    callbacks = build_callbacks(settled)
    trainer = build_trainer(settled, run_dir, [throughput, signals, *callbacks])
    if HydraConfig.get().mode == RunMode.MULTIRUN and trainer.world_size > 1:
        run_in_a_process_of_its_own(run_dir)
        return
    os.environ[RUN_DIR_VARIABLE] = str(run_dir)
    lock = None
    if trainer.is_global_zero:
        lock = open_run_directory(run_dir, again=config.resume is not None)
        record_request(run_dir, config, OmegaConf.create(masked(plain(settled))))
        datamodule.write_split(run_dir)
        log.info("run directory: %s", shown(run_dir))
    trainer.loggers = build_loggers(settled, run_dir, model.config, done_steps=resumed.step if resumed else 0)

    try:
        with shell_exit_codes(trainer, signals, run_dir):
            trainer.fit(model, datamodule=datamodule, ckpt_path=resumed.path if resumed else None, weights_only=True)
        results = {
            "run_dir": str(run_dir),
            "seed": settled.seed,
            "monitor": settled.monitor,
            **checkpoints(trainer),
            "metrics": measured_before(callbacks) | plain_metrics(trainer),
            "exports": [],
            "errors": [],
            "world_size": trainer.world_size,
            "precision": trainer.precision,
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "train_samples_per_second": throughput.samples_per_second(),
        }
        finished = plain_model(config, model.data_spec, best_weights(trainer, results["best_checkpoint"]))
        if settled.test and "test" in datamodule.splits:
            with shell_exit_codes(trainer, signals, run_dir):
                trainer.test(finished, datamodule=datamodule, verbose=False)
            results["metrics"] |= plain_metrics(trainer)
        if trainer.is_global_zero:
            results["errors"] += diverged(results["metrics"])
            signals.end_at_once()
            with shell_exit_codes(trainer, signals, run_dir):
                finish(finished, datamodule, callbacks, results)
                results["duration_s"] = perf_counter() - started
                write_json(run_dir / "results.json", results)
            log.info(summary(results))
    finally:
        for logger in trainer.loggers:
            # Only a wandb run stays open by itself, and a second job of this process would write into it.
            getattr(logger, "close", lambda: None)()
        if lock is not None:
            lock.close()
    if trainer.is_global_zero and results["errors"]:
        print("", *(f"Error: {error}" for error in results["errors"]), sep="\n", file=sys.stderr)
        sys.exit(1)


def check_monitor(monitor: str, metric_names: list[str]) -> None:
    """
    Raises:
        ConfigError: no metric has the monitored name; a run would end after its first epoch.
    """
    allowed = [name for name in metric_names if not name.startswith("test/")]
    if monitor not in allowed:
        raise ConfigError(f"monitor={monitor} is never logged. Allowed: {', '.join(allowed)}. Try monitor=val/loss.")


def check_image_size(model: ImageClassifier) -> None:
    """
    Raises:
        ConfigError: the network cannot take images as small or as large as the data's.
    """
    try:
        with torch.inference_mode():
            model.eval()(model.example_input_array)
    except (AssertionError, RuntimeError) as error:
        channels, size = model.data_spec.channels, model.data_spec.image_size
        raise ConfigError(
            f"The network does not take images of {channels} x {size} x {size}: {str(error).rstrip('.')}. "
            "Choose another network or image size. Try model=cnn, which takes any size."
        ) from error
    model.train()


def build_callbacks(config: DictConfig) -> list[Callback]:
    """Build the named entries that are not `null`, less those that a switch of the trainer turns off."""
    switches = {
        Checkpoint: config.trainer.enable_checkpointing and not config.trainer.fast_dev_run,
        ProgressBar: config.trainer.enable_progress_bar,
        ModelSummary: config.trainer.enable_model_summary,
    }
    built = [build(entry) for entry in (config.get("callbacks") or {}).values() if entry is not None]
    return [callback for callback in built if all(on for kind, on in switches.items() if isinstance(callback, kind))]


def build_loggers(
    config: DictConfig, run_dir: Path, hyperparameters: dict[str, Any], done_steps: int = 0
) -> list[Logger]:
    """Build the chosen loggers behind the CSV file, which is always written: metrics.csv in the run directory."""
    entries = {} if config.trainer.fast_dev_run else config.get("logger") or {}
    chosen = [build(entry, save_dir=str(run_dir)) for entry in entries.values() if entry]
    for logger in chosen:
        logger.log_hyperparams(hyperparameters)
    return [MetricsTable(run_dir, done_steps), *chosen]


def build_trainer(config: DictConfig, run_dir: Path, callbacks: list[Callback]) -> Trainer:
    arguments = instantiate(config.trainer, _convert_="all")
    # Without the entry Lightning would add one of its own.
    for kind, switch in {
        Checkpoint: "enable_checkpointing",
        ProgressBar: "enable_progress_bar",
        ModelSummary: "enable_model_summary",
    }.items():
        arguments[switch] = any(isinstance(callback, kind) for callback in callbacks)
    plugins = arguments["plugins"] or []
    arguments["plugins"] = [AtomicCheckpointIO(), *(plugins if isinstance(plugins, list) else [plugins])]
    arguments["profiler"] = arguments["profiler"] or NoProfiler()
    arguments["default_root_dir"] = arguments["default_root_dir"] or run_dir
    try:
        return Trainer(**arguments, callbacks=callbacks, logger=False)
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Lightning refuses these trainer settings: {error} configs/trainer/default.yaml lists what can be set."
        ) from error


def run_in_a_process_of_its_own(run_dir: Path) -> None:
    """Run a job of a grid by itself: its ranks cannot share the process in which Hydra goes through the grid."""
    overrides = HydraConfig.get().overrides.task
    command = [sys.executable, sys.argv[0], *overrides, f"hydra.run.dir=${{oc.env:{RUN_DIR_VARIABLE}}}"]
    # A session of its own: Ctrl-C reaches the job once, through this process, which waits until it has saved.
    job = subprocess.Popen(command, env={**os.environ, RUN_DIR_VARIABLE: str(run_dir)}, start_new_session=True)
    before = {number: signal.signal(number, lambda number, frame: job.send_signal(number)) for number in SIGNALS}
    code = job.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    if code:
        sys.exit(code)


@contextmanager
def shell_exit_codes(trainer: Trainer, signals: StopOnSignal, run_dir: Path) -> Iterator[None]:
    """End the process with 130 after Ctrl-C and 143 after SIGTERM, as a shell does, and say how to go on."""
    try:
        yield
    except SystemExit:
        if not signals.leaving:
            raise
    if not signals.leaving and not signals.agreed(trainer):
        return
    if trainer.is_global_zero:
        last = checkpoints(trainer)["last_checkpoint"]
        found = f"The last checkpoint: {shown(last)}" if last else "There is no checkpoint yet."
        reason = signals.received.name if signals.received else "a signal to another process"
        print(f"\nStopped by {reason}. {found}\nGo on with: ", end="", file=sys.stderr)
        print(f"python train.py resume={shown(run_dir)}", file=sys.stderr)
    sys.exit(signals.exit_code if trainer.is_global_zero else 0)


def checkpoints(trainer: Trainer) -> dict[str, Any]:
    """Give path and score of the checkpoint that monitors a metric, and the path of the last one."""
    best = next((entry for entry in trainer.checkpoint_callbacks if isinstance(entry, ModelCheckpoint)), None)
    last = next((entry for entry in trainer.checkpoint_callbacks if isinstance(entry, LastCheckpoint)), None)
    return {
        "best_score": best.best_model_score.item() if best and best.best_model_score is not None else None,
        "best_checkpoint": (best.best_model_path if best else "") or None,
        "last_checkpoint": str(last.path) if last and last.path else None,
    }


def best_weights(trainer: Trainer, best_checkpoint: str | None) -> dict[str, Tensor]:
    """Give the weights that a checkpoint of this run would be evaluated with: the best ones, else those at hand."""
    if best_checkpoint is None:
        return trainer.strategy.lightning_module_state_dict()
    weights: dict[str, Tensor] = torch.load(best_checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    return weights


def diverged(metrics: dict[str, float]) -> list[str]:
    """Say which losses are no numbers any more."""
    lost = [f"{name} is {value}" for name, value in metrics.items() if "loss" in name and not math.isfinite(value)]
    return [f"Training diverged: {', '.join(lost)}. Try a smaller optimizer.lr."] if lost else []


def measured_before(callbacks: list[Callback]) -> dict[str, float]:
    """Give what a resumed run had measured before it was stopped: it may have nothing left to train."""
    last = next((entry for entry in callbacks if isinstance(entry, LastCheckpoint)), None)
    return _of_epochs(last.metrics) if last else {}


def plain_metrics(trainer: Trainer) -> dict[str, float]:
    """Give what was logged for whole epochs; values of single steps are in metrics.csv."""
    return _of_epochs({name: value.item() for name, value in trainer.callback_metrics.items()})


def _of_epochs(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("lr-") and not name.endswith("_step")}


def finish(model: Any, datamodule: Any, callbacks: list[Callback], results: dict[str, Any]) -> None:
    """Let the optional rooms add to a run that is complete without them; one that fails is recorded."""
    for callback in callbacks:
        if isinstance(callback, EndOfRun):
            try:
                callback.on_run_end(model, datamodule, results)
            except Exception as error:
                log.exception("%s failed; the run itself is complete.", type(callback).__name__)
                results["errors"].append(f"{type(callback).__name__}: {error}")


def summary(results: dict[str, Any]) -> str:
    """Say what was reached, where things are and what can be typed next."""
    metrics, speed = results["metrics"], results["train_samples_per_second"] or 0
    lines = []
    for stage in ("test", "val"):
        reached = [f"{name} {value:.4f}" for name, value in sorted(metrics.items()) if name.startswith(f"{stage}/")]
        if reached:
            lines.append((stage, "  ".join(reached) + ("  (last epoch)" if stage == "val" else "")))
    lines.append(("trained", f"epochs {results['epochs']}, steps {results['steps']}, {results['precision']}"))
    lines.append(("speed", f"{speed:,.0f} training samples/s, {results['duration_s']:.1f} s in all"))
    lines.append(("run", shown(results["run_dir"])))
    commands: list[str] = []
    for name in ("best", "last"):
        if results[f"{name}_checkpoint"] and not commands:
            score = f" ({results['monitor']} {results['best_score']:.4f})" if results["best_score"] is not None else ""
            lines.append((name, shown(results[f"{name}_checkpoint"]) + score))
            commands.append(f"python eval.py checkpoint={shown(results['run_dir'])}")
    for export in results["exports"]:
        failed = export.get("error")
        lines.append(
            ("export", failed or f"{shown(export['path'])} (differs by {export['max_difference']:.0e} at most)")
        )
        if not failed and not any("predict.py" in command for command in commands):
            commands.append(f"python predict.py {shown(export['path'])} IMAGES")
    lines += [("next" if number == 0 else "", command) for number, command in enumerate(commands)]
    return "\n" + "\n".join(f"{name:<8} {text}" for name, text in lines)
