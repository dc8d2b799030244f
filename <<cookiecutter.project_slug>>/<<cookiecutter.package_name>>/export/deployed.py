"""The whole path from pixels to probabilities, as it is shipped."""

from typing import Any

import torch
from torch import Tensor, nn

from ..data.spec import DataSpec
from ..models.image_classifier import ImageClassifier
from ..models.preprocess import Preprocess


class Deployed(nn.Module):
    """From `image`, uint8 (N, C, H, W), to `probabilities`, float32 (N, classes), for any N.

    Args:
        net_config: the entry of the configuration that builds `net`, as plain dicts.
    """

    def __init__(self, net: nn.Module, data_spec: DataSpec, net_config: dict[str, Any]) -> None:
        super().__init__()
        self.preprocess = Preprocess(data_spec.mean, data_spec.std)
        self.net = net
        self.data_spec = data_spec
        self.net_config = net_config

    @classmethod
    def of(cls, model: ImageClassifier) -> "Deployed":
        """Take over a model's parts, in float32 on the CPU and ready to evaluate."""
        deployed = cls(model.net, model.data_spec, model.config["model"]["net"])
        deployed.preprocess = model.preprocess
        return deployed.float().cpu().eval()

    def example(self) -> Tensor:
        """Give two images: with one, an exporter would fix the size of a batch at one."""
        side = self.data_spec.image_size
        return torch.zeros(2, self.data_spec.channels, side, side, dtype=torch.uint8)

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.net(self.preprocess(image)).float(), dim=1)
