"""Networks from normalised images (N, C, H, W) to logits (N, classes); their ends fit the data's specification.

The last layer is called `head`: weight decay, backbone_lr_scale, freeze_backbone and init_from tell it from the rest.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ..data.spec import DataSpec


class MLP(nn.Module):
    def __init__(self, data_spec: DataSpec, hidden_sizes: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        size = data_spec.channels * data_spec.image_size**2
        for hidden in hidden_sizes:
            layers += [nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout)]
            size = hidden
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(size, data_spec.num_classes)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(image))
        return logits


class CNN(nn.Module):
    """Stages of two 3x3 convolutions; the image is halved between stages and averaged at the end."""

    def __init__(self, data_spec: DataSpec, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = data_spec.channels
        for width in widths:
            # Rounds up, so that small images never shrink to nothing.
            halve = [nn.MaxPool2d(2, ceil_mode=True)] if stages else []
            stages.append(nn.Sequential(*halve, *_convolution(channels, width), *_convolution(width, width)))
            channels = width
        self.features = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(channels, data_spec.num_classes))

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(image).mean(dim=(2, 3)))
        return logits


def _convolution(channels: int, width: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
