"""Networks of timm with a fresh last layer that fits the data (configs/model/timm.yaml); timm is an extra."""

import difflib
from typing import Any, cast

from torch import Tensor, nn

from ..configuration import ConfigError
from ..data.spec import DataSpec


class TimmNet(nn.Module):
    """Any classifier of timm; grey images are repeated for its three channels.

    Args:
        name: as `timm.list_models()` has it.
        pretrained: start from timm's weights, with a new last layer.

    Raises:
        ConfigError: timm is not installed, or the name does not exist.
    """

    def __init__(self, data_spec: DataSpec, name: str, pretrained: bool = False) -> None:
        super().__init__()
        try:
            import timm
        except ModuleNotFoundError as error:
            raise ConfigError(
                "model=timm needs the package timm, which is not installed. "
                "Type pip install timm, or try model=torchvision."
            ) from error
        if not timm.is_model(name):
            near = difflib.get_close_matches(name, timm.list_models(), 3, 0.0)
            raise ConfigError(
                f"model.net.name={name} does not exist in timm. Near it: {', '.join(near)}. "
                f"Try model.net.name={near[0]}."
            )
        size: dict[str, Any] = {}
        recipe = timm.get_pretrained_cfg(name)
        if recipe is not None and recipe.fixed_input_size:
            size["img_size"] = data_spec.image_size
        self.net: Any = timm.create_model(name, pretrained, num_classes=data_spec.num_classes, **size)
        # Mean and deviation of each channel that the weights were trained with.
        self.normalisation = (recipe.mean, recipe.std) if pretrained and recipe else None

    @property
    def head(self) -> nn.Module:
        return cast(nn.Module, self.net.get_classifier())

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.net(image.expand(-1, 3, -1, -1))
        return logits
