"""Train, test and export a model: python train.py [overrides], for example trainer=ddp precision=16-mixed."""

import hydra
from omegaconf import DictConfig

from << cookiecutter.package_name >>.configuration import exit_codes
from << cookiecutter.package_name >>.request import start


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
@exit_codes
def main(config: DictConfig) -> None:
    # Loads torch, which takes seconds: only once the request is known to be right.
    from << cookiecutter.package_name >>.training import train

    train(config)


if __name__ == "__main__":
    start(main, "train")
