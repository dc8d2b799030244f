"""Write model files from a checkpoint: python export.py checkpoint=logs/latest [formats=[onnx]] [output=DIR]."""

import hydra
from omegaconf import DictConfig

from << cookiecutter.package_name >>.configuration import exit_codes
from << cookiecutter.package_name >>.request import start


@hydra.main(version_base="1.3", config_path="configs", config_name="export")
@exit_codes
def main(config: DictConfig) -> None:
    from << cookiecutter.package_name >>.export.command import export

    export(config)


if __name__ == "__main__":
    start(main, "export")
