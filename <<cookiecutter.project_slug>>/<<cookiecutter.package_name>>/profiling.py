"""What the trainer has where no profiler is asked for (training.py)."""

from contextlib import nullcontext
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler


class NoProfiler(PassThroughProfiler):
    """Does nothing, as Lightning's own does, which builds a generator for it at each of the 70 hooks of a step."""

    _nothing = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self._nothing
