"""Lists image files with their labels and splits: from folders (configs/data/image_folder.yaml) or a table (csv.yaml).

A table of the same kind records in a run directory what went where.
"""

import csv
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..configuration import ConfigError
from .images import SUFFIXES

log = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")
# Stands for a split where a file could not be read.
SKIPPED = "skipped"
# What systems and archives leave beside people's files; hidden names count, too.
JUNK = ("__MACOSX", "__pycache__", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information")
KINDS = ", ".join(SUFFIXES)


class LabelledFile(NamedTuple):
    """An image, its path relative to the root with `/` between folders; split is empty where none was given."""

    path: str
    label: str
    split: str = ""


def list_folder(root: Path) -> list[LabelledFile]:
    """List images in `train/CLASS/`, `val/CLASS/` and `test/CLASS/`, or in `CLASS/`, each searched through.

    Raises:
        ConfigError: there is no such folder, it is built otherwise, or a class is empty.
    """
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise ConfigError(f"data.root={root} {found}. A folder of images is allowed. Try data.root=DIR.")
    folders = _subfolders(root)
    # A class may be called train, too: then its images lie in it and not in folders of classes.
    if "train" not in folders or not _subfolders(root / "train"):
        return _list_classes(root, folders, split="")
    if unknown := [name for name in folders if name not in SPLITS]:
        raise ConfigError(
            f"{root} holds the folder train beside {', '.join(unknown)}. Allowed beside train: val, test. Rename or "
            "move them, or put the classes directly below the root to have them split."
        )
    return [
        file
        for split in SPLITS
        if split in folders
        for file in _list_classes(root, [f"{split}/{name}" for name in _subfolders(root / split)], split)
    ]


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if is_shown(entry.name) and entry.is_dir())


def is_shown(name: str) -> bool:
    """Say whether a file or folder of this name is somebody's own."""
    return not name.startswith(".") and name not in JUNK


def _list_classes(root: Path, folders: list[str], split: str) -> list[LabelledFile]:
    files = []
    for folder in folders:
        paths = sorted(path.removeprefix(f"{root}{os.sep}").replace(os.sep, "/") for path in _images(root / folder))
        if not paths and split in ("", "train"):
            raise ConfigError(
                f"The class folder {root / folder} holds no image. Allowed: files ending in {KINDS}. Fill or remove it."
            )
        files += [LabelledFile(path, folder.rpartition("/")[2], split) for path in paths]
    if not files:
        raise ConfigError(
            f"{root / split} holds no folders with images. A folder for each class is needed, like "
            f"{root / split / 'cat' / '1.jpg'}; images end in {KINDS}. Try data.root=DIR, or data=csv data.index=FILE."
        )
    return files


def _images(folder: Path) -> Iterator[str]:
    # Links to folders are followed, each folder once: a link to a parent would never end.
    seen = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = filter(is_shown, folders)
        if os.path.realpath(parent) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(parent))
        yield from (f"{parent}{os.sep}{name}" for name in names if is_shown(name) and name.lower().endswith(SUFFIXES))


def read_index(index: Path) -> list[LabelledFile]:
    """Read a table with the columns path, label and, where wanted, split.

    Raises:
        ConfigError: it does not exist, lacks a column, or a line cannot be used.
    """
    example = "Its lines look like photos/1.jpg,cat,train below the header path,label,split; split may be left out."
    try:
        # A byte-order mark, as spreadsheets write it, is no part of the first column's name.
        with index.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            table = csv.DictReader(file, strict=True)
            rows = [(table.line_num, row) for row in table]
            columns = table.fieldnames or []
    except (OSError, csv.Error) as error:
        raise ConfigError(f"data.index={index} cannot be read: {error}. {example}") from error
    if "\0" in "".join(columns):
        raise ConfigError(f"data.index={index} is no UTF-8 text. Save it as CSV in UTF-8. {example}")
    if not {"path", "label"} <= set(columns):
        raise ConfigError(f"data.index={index} has the columns {', '.join(columns) or 'none'}. {example}")
    files, lines = [], dict[str, int]()
    for line, row in rows:
        listed = LabelledFile(row["path"] or "", (row["label"] or "").strip(), (row.get("split") or "").strip())
        problem = ""
        if not listed.path or not listed.label:
            problem = "lacks a path or a label"
        elif listed.split not in ("", *SPLITS, SKIPPED):
            problem = f"has the split {listed.split}. Allowed: {', '.join(SPLITS)}, or empty"
        elif listed.path in lines:
            problem = f"names {listed.path}, as line {lines[listed.path]} does"
        if problem:
            raise ConfigError(f"Line {line} of {index} {problem}. {example}")
        lines[listed.path] = line
        files.append(listed)
    if not files:
        raise ConfigError(f"data.index={index} lists no image. {example}")
    return files


def write_index(index: Path, files: Iterable[LabelledFile]) -> None:
    unfinished = index.with_name(f".{index.name}.unfinished")
    # A name that is not valid UTF-8 keeps its bytes.
    with unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        csv.writer(file).writerows([LabelledFile._fields, *files])
    unfinished.replace(index)


def split_like(recorded: list[LabelledFile], listed: list[LabelledFile], root: Path) -> list[LabelledFile]:
    """Give the recorded files if they are among the listed ones; if none of them is, these are other data.

    Raises:
        ConfigError: some are there and some are not.
    """
    there = {file.path for file in listed}
    missing = [file.path for file in recorded if file.path not in there]
    if len(missing) == len(recorded):
        log.warning("%s holds none of the files of the run's split: it is split anew", root)
        return listed
    if missing:
        raise ConfigError(
            f"{root} lacks {len(missing)} of {len(recorded)} files of the run's split, such as {missing[0]}. Bring "
            "them back, or try data.root=DIR with the folder that holds them."
        )
    if len(there) > len(recorded):
        log.warning("%d files of %s are newer than the run's split and left out", len(there) - len(recorded), root)
    return recorded
