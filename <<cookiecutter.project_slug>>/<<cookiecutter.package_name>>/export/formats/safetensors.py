"""Weights as safetensors: numbers and text only. The text holds the network's configuration; this project runs it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from . import TorchClassifier, data_spec_of, first_line

if TYPE_CHECKING:
    from ..deployed import Deployed

SUFFIX = ".safetensors"
NEEDS = ("safetensors",)


def write(model: "Deployed", described: dict[str, str], path: Path) -> None:
    """
    Raises:
        ValueError: the network's configuration names a file of this machine.
    """
    from safetensors.torch import save

    # The weights are in this file; nobody who loads it needs others.
    config = {key: False if key == "pretrained" else value for key, value in model.net_config.items()}
    for key, value in config.items():
        if isinstance(value, str) and Path(value).is_absolute():
            raise ValueError(f"model.net.{key}={value} lies on this machine only. Try another format.")
    # Copied, because tensors that share memory are refused.
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    path.write_bytes(save(tensors, metadata={**described, "net": json.dumps(config, ensure_ascii=False)}))


def classifier(path: Path) -> TorchClassifier:
    from omegaconf import OmegaConf
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    from ...building import build, check_targets
    from ...data.spec import DataSpec
    from ..deployed import Deployed

    try:
        with safe_open(path, framework="pt") as file:
            described = file.metadata() or {}
        data_spec = DataSpec.from_dict(data_spec_of(described))
        config = json.loads(described["net"])
        check_targets(config)
        model = Deployed(build(OmegaConf.create(config), data_spec=data_spec), data_spec, config).eval()
        model.load_state_dict(load_file(path))
    except (SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"its weights do not fit this project: {first_line(error)}") from error
    return TorchClassifier(model, described)
