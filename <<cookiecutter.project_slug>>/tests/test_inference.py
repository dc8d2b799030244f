"""predict.py: which files are found, what stands in the table, and what is refused."""

import contextlib
import csv
import io
import json
import os
import sys
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.data.images import read_image
from << cookiecutter.package_name >>.inference import find_images


@pytest.fixture(scope="session")
def digits():
    """Give the images and labels of the test split."""
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    return datamodule.splits["test"]


@pytest.fixture
def pictures(tmp_path, digits):
    """Write 20 digits as 00.png to 19.png into a folder with a blank and an umlaut in its name."""
    folder = tmp_path / "pictures ü"
    folder.mkdir()
    for position in range(20):
        Image.fromarray(digits.images[position, 0].numpy()).save(folder / f"{position:02d}.png")
    return folder


@pytest.fixture
def predict(here, trained_run, tmp_path):
    """Classify in this process with the trained run, and give the rows of the table."""

    def run(*arguments):
        done = here("predict", trained_run.path, *arguments, "--output", tmp_path / "table.csv")
        assert done.returncode == 0, done.stderr
        with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file)), done

    return run


def test_the_table_holds_the_models_labels_and_probabilities(predict, pictures, trained_run, digits):
    rows, done = predict(pictures)
    model = read_checkpoint(trained_run.path).build_model()
    with torch.inference_mode():
        expected = model(digits.images[:20]).softmax(dim=1)
    assert [row["path"] for row in rows] == [str(pictures / f"{position:02d}.png") for position in range(20)]
    assert [row["label"] for row in rows] == [str(label) for label in expected.argmax(dim=1).tolist()]
    confidences = [float(row["confidence"]) for row in rows]
    assert confidences == pytest.approx(expected.max(dim=1).values.tolist(), abs=1e-5)
    assert sum(row["label"] == str(int(label)) for row, label in zip(rows, digits.labels, strict=False)) >= 18
    assert "20 images classified, 0 unreadable" in done.stdout


def test_top_k_names_the_next_classes_in_falling_order(predict, pictures):
    rows, _ = predict(pictures, "--top-k", 3)
    assert list(rows[0]) == ["path", "label", "confidence", "label_2", "confidence_2", "label_3", "confidence_3"]
    for row in rows:
        first, second, third = (float(row[key]) for key in ("confidence", "confidence_2", "confidence_3"))
        assert 1 >= first >= second >= third >= 0
        assert len({row["label"], row["label_2"], row["label_3"]}) == 3


def test_top_k_beyond_the_classes_names_all_of_them(predict, pictures):
    rows, _ = predict(pictures / "00.png", "--top-k", 99)
    labels = [value for key, value in rows[0].items() if key.startswith("label")]
    assert sorted(labels) == list("0123456789")
    confidences = [float(value) for key, value in rows[0].items() if key.startswith("confidence")]
    assert sum(confidences) == pytest.approx(1, abs=1e-4)


def test_the_size_of_a_batch_changes_nothing(predict, pictures):
    (few, _), (many, _) = predict(pictures, "--batch-size", 3), predict(pictures, "--batch-size", 64)
    assert [(row["path"], row["label"]) for row in few] == [(row["path"], row["label"]) for row in many]
    confidences = [float(row["confidence"]) for row in many]
    assert [float(row["confidence"]) for row in few] == pytest.approx(confidences, abs=2e-6)


def test_a_checkpoint_file_and_its_run_give_the_same_table(here, predict, pictures, trained_run, tmp_path):
    rows, _ = predict(pictures)
    checkpoint = trained_run.path / "checkpoints" / "best.ckpt"
    assert here("predict", checkpoint, pictures, "--output", tmp_path / "again.csv").returncode == 0
    with (tmp_path / "again.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == rows


def test_folders_are_searched_through_without_hidden_and_other_files(predict, tmp_path, digits):
    folder = tmp_path / "tree"
    for name in ("b.png", "a/z.JPG", "a/deep/y.tiff", ".hidden.png", ".cache/x.png", "__MACOSX/w.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        kind = "jpeg" if name.endswith("JPG") else None
        Image.fromarray(digits.images[0, 0].numpy()).save(folder / name, format=kind)
    (folder / "notes.txt").write_text("no image", encoding="utf-8")
    rows, _ = predict(folder)
    found = [row["path"].removeprefix(f"{folder}/") for row in rows]
    assert found == ["a/deep/y.tiff", "a/z.JPG", "b.png"]


def test_inputs_keep_the_order_in_which_they_were_typed(predict, pictures):
    rows, _ = predict(pictures / "05.png", pictures / "01.png", pictures)
    names = [row["path"].rpartition("/")[2] for row in rows]
    assert names == ["05.png", "01.png", *(f"{position:02d}.png" for position in range(20))]


def test_a_pattern_that_the_shell_left_as_it_is_is_expanded(predict, pictures):
    rows, _ = predict(pictures / "0[13]*.png", pictures.parent / "*ures ü" / "1?.png")
    names = [row["path"].rpartition("/")[2] for row in rows]
    assert names == ["01.png", "03.png", *(f"{position}.png" for position in range(10, 20))]


def test_a_pattern_reaches_through_folders_and_may_match_folders(pictures, tmp_path):
    (pictures / "deeper").mkdir()
    (pictures / "00.png").rename(pictures / "deeper" / "00.png")
    assert find_images([str(tmp_path / "**" / "00.png")]) == [pictures / "deeper" / "00.png"]
    assert find_images([str(tmp_path / "pict*" / "deep*")]) == [pictures / "deeper" / "00.png"]


def test_a_name_with_brackets_is_a_name_first(pictures):
    (pictures / "00.png").rename(pictures / "[1].png")
    (pictures / "01.png").rename(pictures / "1.png")
    assert find_images([str(pictures / "[1].png")]) == [pictures / "[1].png"]


@pytest.fixture
def listed(monkeypatch):
    """Put a list on standard input."""

    def put(*lines, end="\n"):
        stream = io.TextIOWrapper(io.BytesIO(b"".join(os.fsencode(line) + end.encode() for line in lines)))
        monkeypatch.setattr(sys, "stdin", stream)

    return put


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_list_on_standard_input_is_read(predict, pictures, listed, end):
    listed(pictures / "03.png", "", pictures / "01.png", end=end)
    rows, _ = predict("-", pictures / "02.png")
    assert [row["path"].rpartition("/")[2] for row in rows] == ["03.png", "01.png", "02.png"]


def test_what_a_list_names_in_vain_is_counted_and_the_rest_classified(predict, pictures, listed):
    listed(pictures / "03.png", pictures / "deleted.png", b"/not/utf8\xff.png")
    rows, done = predict("-")
    assert len(rows) == 1
    assert "1 images classified, 2 unreadable" in done.stdout
    assert f"Skipped: {pictures / 'deleted.png'}" in done.stderr


def test_the_door_reads_its_list_from_another_command(door, trained_run, pictures, tmp_path):
    # The door's standard input is empty here.
    done = door("predict", trained_run.path / "export" / "model.onnx", "-", "--output", tmp_path / "table.csv")
    assert done.returncode == 2
    assert "- holds no image" in done.stderr


def test_json_lines_hold_what_the_table_holds(here, predict, pictures, trained_run, tmp_path):
    rows, _ = predict(pictures, "--top-k", 2)
    (pictures / "07.png").unlink()
    for arguments in (["--output", tmp_path / "a.jsonl"], ["--format", "jsonl", "--output", tmp_path / "b.txt"]):
        done = here("predict", trained_run.path, pictures, "--top-k", 2, *arguments)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.txt").read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [{key: str(value) for key, value in line.items()} for line in lines] == [*rows[:7], *rows[8:]]
    assert isinstance(lines[0]["confidence"], float)


def test_a_format_without_an_output_names_the_file(here, trained_run, pictures, tmp_path):
    assert here("predict", trained_run.path, pictures, "--format", "jsonl").returncode == 0
    assert len((tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 20


def test_json_lines_are_utf_8_whatever_a_file_is_called(here, trained_run, pictures, tmp_path):
    name = os.fsdecode(os.fsencode(pictures) + b"/\xff.png")
    os.rename(pictures / "00.png", name)  # noqa: PTH104
    assert here("predict", trained_run.path, name, pictures / "01.png", "--format", "jsonl").returncode == 0
    first, second = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first)["path"] == name
    assert json.loads(second)["path"] == str(pictures / "01.png")
    assert "ü" in second


def test_images_are_read_in_background_threads_and_keep_their_order(predict, pictures, monkeypatch):
    from << cookiecutter.package_name >> import inference

    readers = set()

    def read(path, image_size, channels):
        readers.add(threading.current_thread())
        if path.name == "00.png":
            # The first of all is the last to be read.
            wait.wait(timeout=30)
        if path.name == "05.png":
            wait.set()
        return read_image(path, image_size, channels)

    expected, _ = predict(pictures)
    wait = threading.Event()
    monkeypatch.setattr(inference, "read_image", read)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    rows, _ = predict(pictures, "--batch-size", 4)
    assert [(row["path"], row["label"]) for row in rows] == [(row["path"], row["label"]) for row in expected]
    assert threading.main_thread() not in readers
    assert wait.is_set()


def test_no_more_images_are_read_ahead_than_two_batches(pictures):
    from << cookiecutter.package_name >>.inference import _read_ahead

    asked = []

    def paths():
        for path in sorted(pictures.iterdir()):
            asked.append(path)
            yield path

    read = _read_ahead(paths(), {"image_size": 8, "channels": 1}, ahead=4)
    next(read)
    assert len(asked) <= 5
    read.close()


def test_an_unreadable_file_is_skipped_named_and_counted(predict, pictures):
    (pictures / "07.png").write_text("no image", encoding="utf-8")
    rows, done = predict(pictures)
    assert len(rows) == 19
    assert not any("07.png" in row["path"] for row in rows)
    assert done.stderr.count("Skipped: ") == 1
    assert f"{pictures / '07.png'} cannot be read as an image" in done.stderr
    assert "19 images classified, 1 unreadable" in done.stdout


def test_a_file_name_that_is_no_text_keeps_its_bytes(here, trained_run, digits, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff.png"
    picture = tmp_path / "0.png"
    Image.fromarray(digits.images[0, 0].numpy()).save(picture)
    picture.rename(os.fsdecode(name))
    done = here("predict", trained_run.path, os.fsdecode(name), "--output", tmp_path / "table.csv")
    assert done.returncode == 0
    assert b"\xff.png," in (tmp_path / "table.csv").read_bytes()


def test_a_command_that_could_read_no_image_has_failed(here, trained_run, tmp_path):
    (tmp_path / "no.png").write_text("no image", encoding="utf-8")
    done = here("predict", trained_run.path, tmp_path / "no.png", "--output", tmp_path / "table.csv")
    assert done.returncode == 1
    assert "0 images classified, 1 unreadable" in done.stdout


def test_progress_is_shown_on_a_terminal_only():
    from << cookiecutter.package_name >>.inference import _with_progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with contextlib.redirect_stderr(stream):
            assert list(_with_progress(iter([1, 2]), 2)) == [1, 2]
        assert ("classifying" in stream.getvalue()) == shown


def test_strict_fails_for_one_unreadable_image_and_still_writes_the_table(here, trained_run, pictures, tmp_path):
    arguments = ("predict", trained_run.path, pictures, "--strict", "--output", tmp_path / "table.csv")
    assert here(*arguments).returncode == 0
    (pictures / "07.png").write_text("no image", encoding="utf-8")
    done = here(*arguments)
    assert done.returncode == 1
    assert "19 images classified, 1 unreadable" in done.stdout
    assert len((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()) == 20


def test_an_interrupted_command_leaves_the_table_as_it_was(here, trained_run, pictures, tmp_path, monkeypatch):
    from << cookiecutter.package_name >> import inference

    def interrupt(path, image_size, channels):
        raise KeyboardInterrupt

    (tmp_path / "table.csv").write_text("before", encoding="utf-8")
    monkeypatch.setattr(inference, "read_image", interrupt)
    done = here("predict", trained_run.path, pictures, "--output", tmp_path / "table.csv")
    assert done.returncode == 130
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == "before"
    assert list(tmp_path.glob(".*.unfinished")) == []


def test_an_image_of_another_size_and_mode_is_read_as_the_model_needs_it(predict, tmp_path, digits, trained_run):
    large = np.kron(digits.images[0, 0].numpy(), np.ones((4, 4), dtype=np.uint8))
    Image.fromarray(large).convert("RGBA").save(tmp_path / "large.png")
    (row,), _ = predict(tmp_path / "large.png")
    image = torch.tensor(read_image(tmp_path / "large.png", 8, 1))
    with torch.inference_mode():
        expected = read_checkpoint(trained_run.path).build_model()(image[None]).softmax(dim=1)[0]
    assert (row["label"], int(digits.labels[0])) == (str(expected.argmax().item()), expected.argmax().item())
    assert float(row["confidence"]) == pytest.approx(expected.max().item(), abs=1e-5)


def test_the_table_lies_where_the_command_was_typed_by_default(here, pictures, trained_run, tmp_path):
    (tmp_path / "typed here").mkdir()
    done = here("predict", trained_run.path, "../pictures ü/00.png", cwd=tmp_path / "typed here")
    assert done.returncode == 0
    text = (tmp_path / "typed here" / "predictions.csv").read_text(encoding="utf-8")
    assert text.splitlines()[1].startswith("../pictures ü/00.png,")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["missing.ckpt", "PICTURES"],
            ("missing.ckpt does not exist", "A run directory, a checkpoint", "Try logs/latest"),
        ),
        (["missing.onnx", "PICTURES"], ("missing.onnx does not exist", "a checkpoint (.ckpt)", "Try logs/latest")),
        (
            ["notes.txt", "PICTURES"],
            ("notes.txt is of another kind", "A run directory, a checkpoint", "Try logs/latest"),
        ),
        (["damaged.ckpt", "PICTURES"], ("damaged.ckpt is not a checkpoint", "train.py is allowed", "Try logs/latest")),
        (["empty", "PICTURES"], ("no checkpoint at empty", "A run directory or a .ckpt file", "Try logs/latest")),
        (
            ["RUN", "missing.png"],
            ("missing.png does not exist", "Image files, folders, patterns", "Try python predict.py"),
        ),
        (["RUN", "empty"], ("empty holds no image", "Allowed: files ending in", ".png")),
        (["RUN", "PICTURES", "--top-k", "0"], ("got 0", "--top-k must be at least 1", "Try --top-k 1")),
        (
            ["RUN", "PICTURES", "--batch-size", "-1"],
            ("got -1", "--batch-size must be at least 1", "Try --batch-size 1"),
        ),
        (
            ["RUN", "PICTURES", "--output", "no/table.csv"],
            ("no/table.csv cannot be written", "A file in a folder that exists", "Try --output predictions.csv"),
        ),
        (
            ["RUN", "PICTURES", "--output", "empty", "--format", "csv"],
            ("empty cannot be written: it is a folder or a device", "A file in", "Try --output predictions.csv"),
        ),
        (
            ["RUN", "PICTURES", "--output", "/dev/null"],
            ("/dev/null does not say what to write", "Allowed: .csv, .jsonl", "Try --output null.csv"),
        ),
        (
            ["RUN", "PICTURES", "--output", "/dev/null", "--format", "csv"],
            ("/dev/null cannot be written: it is a folder or a device", "A file in", "Try --output predictions.csv"),
        ),
        (
            ["RUN", "PICTURES", "--output", "table.xls"],
            ("table.xls does not say what to write", "any name with --format", "Try --output table.csv"),
        ),
    ],
)
def test_a_wrong_request_ends_in_one_message(arguments, parts, here, pictures, trained_run, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "damaged.ckpt"):
        (tmp_path / name).write_text("nothing", encoding="utf-8")
    known = {"RUN": trained_run.path, "PICTURES": pictures}
    done = here("predict", *(known.get(argument, argument) for argument in arguments))
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr
    assert list(tmp_path.glob("*.csv")) == []
