"""What a model must know of its data. It travels from the data module into the model, checkpoint and export."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DataSpec:
    """
    Attributes:
        class_names: in the order of the model's outputs.
        channels: 1 for grey, 3 for RGB.
        image_size: side of the square image, pixels.
        mean: of each channel, on the scale 0 to 1.
        std: of each channel, on the scale 0 to 1.
    """

    class_names: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists and numbers, which a weights-only checkpoint and JSON can hold."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "DataSpec":
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()
        }
        return cls(**fields)
