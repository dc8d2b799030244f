"""Classify images: python predict.py logs/latest/export/model.onnx INPUT... [--top-k 3] [--output predictions.csv]."""

import argparse
import sys
from pathlib import Path

from << cookiecutter.package_name >>.configuration import exit_codes
from << cookiecutter.package_name >>.inference import predict


@exit_codes
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a run directory, a checkpoint (.ckpt) or an exported file")
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="image files, folders to search, patterns, or - for a list on stdin"
    )
    parser.add_argument("--output", type=Path, help="default: predictions.csv")
    parser.add_argument("--format", choices=("csv", "jsonl"), help="default: by the suffix of the output")
    parser.add_argument("--top-k", type=int, default=1, help="classes to name for each image, all at most")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an image cannot be read")
    asked = parser.parse_args()
    classified, unreadable = predict(
        asked.model, asked.inputs, asked.output, asked.format, asked.top_k, asked.batch_size
    )
    sys.exit(0 if classified and not (asked.strict and unreadable) else 1)


if __name__ == "__main__":
    main()
