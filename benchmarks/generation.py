"""Generating the files of a project, beside starting cookiecutter alone."""

import sys

from measuring import Row, generate, in_turn, run

ROUNDS, THREADS = 5, None


def rows() -> list[Row]:
    files, start = in_turn(ROUNDS, generate, lambda: run([sys.executable, "-m", "cookiecutter", "--version"])[1])
    return [Row("generating a project's files", files, "cookiecutter --version", start, "s")]
