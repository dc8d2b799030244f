"""Refuses settings and splits with which nothing could be learned."""

from ..configuration import ConfigError
from .loading import Images


def check_at_least(name: str, value: int, smallest: int, example: str) -> None:
    if value < smallest:
        raise ConfigError(f"data.{name} must be at least {smallest}, got {value}. Try data.{name}={example}.")


def check_fraction(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"data.{name} must lie between 0 and 1, got {value}. Try data.{name}=0.15.")


def check_rest(val_fraction: float, test_fraction: float) -> None:
    if val_fraction + test_fraction >= 0.95:
        raise ConfigError(
            f"data.val_fraction and data.test_fraction leave too little to train on: {val_fraction} + {test_fraction} "
            "must stay below 0.95. Try data.val_fraction=0.15 data.test_fraction=0.2."
        )


def check_splits(splits: dict[str, Images], class_names: tuple[str, ...]) -> None:
    """
    Raises:
        ConfigError: a split is empty, there is one class only, or a label has no class or no image to learn it from.
    """
    sizes = ", ".join(f"{name} {len(split)}" for name, split in splits.items())
    for name in ("train", "val"):
        if name not in splits:
            raise ConfigError(
                f"There are too few images for a {name} split ({sizes or 'none at all'}). Add images, or try another "
                "share, such as data.val_fraction=0.5."
            )
    for name, split in splits.items():
        if len(split) == 0:
            raise ConfigError(
                f"The {name} split holds no image ({sizes}). Each needs at least one. Add images, or try another "
                "share, such as data.val_fraction=0.5."
            )
        lowest, highest = int(split.labels.min()), int(split.labels.max())
        if lowest < 0 or highest >= len(class_names):
            raise ConfigError(
                f"The {name} split holds labels from {lowest} to {highest}. Allowed for {len(class_names)} classes: 0 "
                f"to {len(class_names) - 1}. The files are damaged or of another data set."
            )
    if len(class_names) < 2:
        raise ConfigError(
            f"There is one class only, {', '.join(class_names)}, and nothing to tell it from. At least two are "
            "needed. Add images of another."
        )
    seen = {name: set(split.labels.tolist()) for name, split in splits.items()}
    for name in seen.keys() - {"train"}:
        if missing := [class_names[label] for label in sorted(seen[name] - seen["train"])]:
            raise ConfigError(
                f"No training image shows {', '.join(missing)}, but the {name} split does ({sizes}): it cannot be "
                "learned. Add training images of it, or try data.split_seed=1."
            )
