"""Programs of `torch.export` (.pt2), which torch alone runs and compiles further. Load only files that you trust."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from . import TorchClassifier, first_line

if TYPE_CHECKING:
    from ..deployed import Deployed

SUFFIX = ".pt2"
NEEDS = ()


def write(model: "Deployed", described: dict[str, str], path: Path) -> None:
    import torch

    shapes = {"image": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (model.example(),), dynamic_shapes=shapes)
    for graph in program.graph_module.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            # It names source files of this machine.
            node.meta.pop("stack_trace", None)
    torch.export.save(program, path, extra_files=described)


def classifier(path: Path) -> TorchClassifier:
    import torch

    described = {"data_spec": ""}
    # torch prints what went wrong by itself, with a traceback, before it says so again.
    logging.getLogger("torch.export").setLevel(logging.CRITICAL)
    try:
        model = torch.export.load(path, extra_files=described).module()
    except Exception as error:  # each way of being damaged has an error of its own
        raise ValueError(f"torch.export cannot load it: {first_line(error)}") from error
    return TorchClassifier(model, described)
