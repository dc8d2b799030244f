"""TorchScript files (.ts) for programs that load nothing newer, such as C++ ones. Load only files that you trust."""

import io
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

from . import TorchClassifier, first_line

if TYPE_CHECKING:
    from ..deployed import Deployed

log = logging.getLogger(__name__)

SUFFIX = ".ts"
NEEDS = ()


def write(model: "Deployed", described: dict[str, str], path: Path) -> None:
    import torch

    log.info("torch deprecates TorchScript; torch_export (.pt2) is what follows it.")
    whole = io.BytesIO()
    with warnings.catch_warnings():
        # The deprecation, said above, and that tracing keeps no Python conditions: parity is measured instead.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, model.example(), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, whole, _extra_files=described)
    with ZipFile(whole) as source, ZipFile(path, "w") as target:
        for record in source.infolist():
            # These name source files of this machine and serve error messages only.
            if not record.filename.endswith(".debug_pkl"):
                target.writestr(record, source.read(record))


def classifier(path: Path) -> TorchClassifier:
    import torch

    described: dict[str, Any] = {"data_spec": ""}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch.jit.load(path, map_location="cpu", _extra_files=described)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"torch.jit cannot load it: {first_line(error)}") from error
    return TorchClassifier(model, described)
