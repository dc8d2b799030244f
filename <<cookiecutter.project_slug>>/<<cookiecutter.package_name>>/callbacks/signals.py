"""Ends a run in order when it is asked to: by SIGTERM, Ctrl-C, or a cluster that is about to take the node."""

import logging
import os
import signal
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer

from .last_checkpoint import LastCheckpoint, is_between_steps

log = logging.getLogger(__name__)

# SLURM's `--signal=USR1@90` is its usual spelling for "this node is wanted".
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopOnSignal(Callback):
    """Saves the last checkpoint and leaves, between two batches. A second signal ends the process at once.

    Lightning alone ends with exit code 0 and without a checkpoint; on several processes it hangs.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.leaving = False
        self._alone = False

    def _listen(self, trainer: Trainer) -> None:
        def note(number: int, frame: FrameType | None) -> None:
            if self.received is not None:
                for child in getattr(trainer.strategy.launcher, "procs", ()):
                    child.kill()
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.received = signal.Signals(number)

        for number in SIGNALS:
            signal.signal(number, note)

    def end_at_once(self) -> None:
        """Let a signal end this process, the last one of the run, where it is: there is nothing left to save."""
        self._alone = True

        def leave(number: int, frame: FrameType | None) -> None:
            self.received, self.leaving = signal.Signals(number), True
            raise SystemExit(self.exit_code)

        for number in SIGNALS:
            signal.signal(number, leave)

    @property
    def exit_code(self) -> int:
        return 130 if self.received == signal.SIGINT else 143

    # Lightning puts handlers of its own in place between these.
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if is_between_steps(trainer, batch_idx) and self.agreed(trainer):
            self._leave(trainer)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.agreed(trainer):
            self._leave(trainer)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.agreed(trainer):
            self._leave(trainer)

    def agreed(self, trainer: Trainer) -> bool:
        """Say whether any rank got a signal; all ranks get the same answer at the same batch."""
        if trainer.world_size == 1 or self._alone:
            return self.received is not None
        return bool(trainer.strategy.reduce_boolean_decision(self.received is not None, all=False))

    def _leave(self, trainer: Trainer) -> None:
        self.leaving = True
        in_fit = trainer.state.fn == "fit" and not trainer.sanity_checking
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, LastCheckpoint) and in_fit:
                callback.save(trainer)
        # A child that fails would let Lightning kill the main process before it has said where things are.
        raise SystemExit(self.exit_code if trainer.is_global_zero else 0)
