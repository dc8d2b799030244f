"""Networks of torchvision with an end that fits the data (configs/model/resnet18.yaml, torchvision.yaml)."""

from typing import Any, cast

import torchvision
from torch import Tensor, nn

from ..configuration import ConfigError
from ..data.spec import DataSpec


class TorchvisionNet(nn.Module):
    """Any classifier of torchvision; grey images are repeated for its three channels.

    Args:
        name: as `torchvision.models.list_models()` has it.
        pretrained: start from torchvision's default weights, with a new last layer.
        small_images: replace a stem that divides the image by four by one that keeps its size (ResNets).

    Raises:
        ConfigError: the name does not exist, or the network has no such stem.
    """

    def __init__(self, data_spec: DataSpec, name: str, pretrained: bool = False, small_images: bool = False) -> None:
        super().__init__()
        allowed = torchvision.models.list_models(module=torchvision.models)
        if name not in allowed:
            raise ConfigError(
                f"model.net.name={name} does not exist. Allowed: {', '.join(allowed)}. Try model.net.name=resnet18."
            )
        weights = torchvision.models.get_model_weights(name).DEFAULT if pretrained else None
        # Mean and deviation of each channel that the weights were trained with.
        self.normalisation = (tuple(weights.transforms().mean), tuple(weights.transforms().std)) if weights else None
        # Vision transformers are built for one size.
        size: dict[str, Any] = {"image_size": data_spec.image_size} if name.startswith("vit_") else {}
        if name == "maxvit_t":
            size = {"input_size": (data_spec.image_size, data_spec.image_size)}
        self.net = torchvision.models.get_model(name, weights=weights, **size)
        if isinstance(self.net, torchvision.models.GoogLeNet | torchvision.models.Inception3):
            # Their classifiers half-way would return three kinds of logits.
            self.net.aux_logits = False
            self.net.aux1 = self.net.aux2 = self.net.AuxLogits = None
        if small_images:
            _keep_size(self.net, name)
        kinds = nn.Linear | nn.Conv2d
        self.head_name, last = [item for item in self.net.named_modules() if isinstance(item[1], kinds)][-1]
        new: nn.Conv2d | nn.Linear
        if isinstance(last, nn.Conv2d):
            # SqueezeNet ends in a convolution.
            new = nn.Conv2d(last.in_channels, data_spec.num_classes, kernel_size=1)
        else:
            new = nn.Linear(last.in_features, data_spec.num_classes)
        self.net.set_submodule(self.head_name, new)
        # A fresh vision transformer's head is all zeros, and so would every first prediction be the same.
        nn.init.trunc_normal_(new.weight, std=0.02)
        nn.init.zeros_(cast(Tensor, new.bias))

    @property
    def head(self) -> nn.Module:
        return cast(nn.Module, self.net.get_submodule(self.head_name))

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.net(image.expand(-1, 3, -1, -1))
        return logits


def _keep_size(net: Any, name: str) -> None:
    if not isinstance(net, torchvision.models.ResNet):
        raise ConfigError(f"model.net.small_images fits ResNets, not {name}. Try model.net.small_images=false.")
    # He et al., 2016, section 4.2: images of 32 pixels are not halved before the first stage.
    net.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()
