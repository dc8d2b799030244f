"""Classify images: python predict.py logs/latest/export/model.onnx FILE_OR_FOLDER... [--top-k 3]."""

import argparse
import sys
from pathlib import Path

from << cookiecutter.package_name >>.configuration import exit_codes
from << cookiecutter.package_name >>.inference import predict


@exit_codes
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a run directory, a checkpoint (.ckpt) or an exported file (.onnx)")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="image files, or folders to search")
    parser.add_argument("--output", type=Path, default=Path("predictions.csv"), help="default: %(default)s")
    parser.add_argument("--top-k", type=int, default=1, help="classes to name for each image")
    parser.add_argument("--batch-size", type=int, default=64)
    arguments = parser.parse_args()
    classified = predict(arguments.model, arguments.inputs, arguments.output, arguments.top_k, arguments.batch_size)
    sys.exit(0 if classified else 1)


if __name__ == "__main__":
    main()
