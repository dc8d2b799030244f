"""Evaluate a checkpoint: python eval.py checkpoint=logs/latest [split=test] [overrides]."""

import hydra
from omegaconf import DictConfig

from << cookiecutter.package_name >>.configuration import exit_codes
from << cookiecutter.package_name >>.request import start


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
@exit_codes
def main(config: DictConfig) -> None:
    from << cookiecutter.package_name >>.evaluation import evaluate

    evaluate(config)


if __name__ == "__main__":
    start(main, "eval")
