"""Weights & Biases without surprises: never asks, never hangs, never ends a run (configs/logger/wandb.yaml)."""

import logging
import sys
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.utilities import rank_zero_only
from wandb.errors import Error as WandbError
from wandb.errors import UsageError
from wandb.sdk.lib import wbauth

from ..configuration import ConfigError, shown

log = logging.getLogger(__name__)

# Seconds to reach the server before the run goes on offline.
INIT_TIMEOUT = 20


class WandbLogger(LightningWandbLogger):
    """
    Args:
        mode: `auto` is online where credentials are found and `offline` elsewhere.
        **arguments: of Lightning's logger and of `wandb.init`.
    """

    def __init__(self, save_dir: str, mode: str = "auto", **arguments: Any) -> None:
        if mode == "auto":
            disabled = wandb.setup().settings._noop
            mode = "disabled" if disabled else "online" if has_credentials() else "offline"
        # A run that goes on stays the same run there.
        identity = Path(save_dir) / "wandb" / "run_id.txt"
        if identity.is_file():
            arguments = {"id": identity.read_text(encoding="utf-8").strip(), "resume": "allow", **arguments}
        settings = wandb.Settings(init_timeout=INIT_TIMEOUT, console="off", silent=True)
        super().__init__(save_dir=save_dir, settings=settings, mode=mode, **arguments)
        # Lightning always passes it and wandb warns that it has no meaning any more.
        self._wandb_init.pop("anonymous", None)
        self._connect()
        self._remember(identity)

    @rank_zero_only
    def _remember(self, identity: Path) -> None:
        if self._experiment is not None and self._experiment.id:
            identity.parent.mkdir(parents=True, exist_ok=True)
            identity.write_text(f"{self._experiment.id}\n", encoding="utf-8")

    @rank_zero_only
    def _connect(self) -> None:
        if wandb.setup().settings._noop:
            return
        while True:
            mode = self._wandb_init["mode"]
            try:
                run = self.experiment
            except (WandbError, OSError) as error:
                if mode == "offline" and isinstance(error, UsageError):
                    raise ConfigError(f"wandb refuses these settings: {error}. Try logger=csv.") from error
                # A run is worth more than its log: online gives way to offline, offline to none.
                self._wandb_init["mode"] = {"online": "offline", "offline": "disabled"}[mode]
                log.warning("wandb: %s failed (%s): %s", mode, str(error).splitlines()[0], self._wandb_init["mode"])
                wandb.teardown()
                continue
            # With its first row wandb loads a part of itself: now, and not in the middle of the first epoch.
            run.log({}, commit=False)
            if mode == "online":
                log.info("wandb: %s", run.url)
            elif mode == "offline":
                log.info("wandb: logging offline. Upload later: wandb sync %s", shown(Path(run.dir).parent))
            return

    @rank_zero_only
    def close(self) -> None:
        """End the wandb run, so that the next one in this process starts its own."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=int(sys.exc_info()[0] is not None))


def has_credentials() -> bool:
    """Say whether wandb can log in without asking; WANDB_MODE=offline counts as no. Uses no network."""
    settings = wandb.setup().settings
    if settings._offline or settings._noop:
        return False
    try:
        session = wbauth.authenticate_session(
            host=settings.base_url, source="train.py", prompt=False, update_session=False
        )
    except wandb.errors.AuthenticationError as error:
        log.warning("wandb: the credentials on this machine are not valid (%s)", error)
        return False
    return session is not None
