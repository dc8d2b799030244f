"""An exported file has the promised interface, agrees with its checkpoint, and needs nothing but itself."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.export import onnx as onnx_format

QUICK = ("model=mlp", "logger=null", "trainer.max_epochs=1", "trainer.enable_progress_bar=false")


def exported(trained_run):
    return trained_run.path / "export" / "model.onnx"


def session_of(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="session")
def images():
    """Give the images of the test split, uint8 (359, 1, 8, 8)."""
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    return datamodule.splits["test"].images


@pytest.fixture
def alone(trained_run, tmp_path):
    folder = tmp_path / "only a chäckpoint"
    folder.mkdir()
    return shutil.copy(trained_run.path / "checkpoints" / "best.ckpt", folder / "model.ckpt")


def test_the_file_takes_uint8_images_and_returns_probabilities(trained_run):
    session = session_of(exported(trained_run))
    (taken,), (returned,) = session.get_inputs(), session.get_outputs()
    assert (taken.name, taken.type, taken.shape[1:]) == ("image", "tensor(uint8)", [1, 8, 8])
    assert (returned.name, returned.type, returned.shape[1:]) == ("probabilities", "tensor(float)", [10])
    # A name instead of a number: any number of images.
    assert isinstance(taken.shape[0], str)


@pytest.mark.parametrize("number", [1, 2, 7, 359])
def test_the_file_agrees_with_the_checkpoint_for_any_number_of_images(trained_run, images, number):
    batch = images[:number]
    (got,) = session_of(exported(trained_run)).run(["probabilities"], {"image": batch.numpy()})
    with torch.inference_mode():
        expected = read_checkpoint(trained_run.path).build_model()(batch).softmax(dim=1).numpy()
    assert got.shape == (number, 10)
    assert got.dtype == np.float32
    assert np.abs(got - expected).max() <= 1e-4
    assert np.abs(got.sum(axis=1) - 1).max() < 1e-5


def test_the_file_describes_its_data_and_its_origin(trained_run):
    described = session_of(exported(trained_run)).get_modelmeta().custom_metadata_map
    checkpoint = torch.load(trained_run.path / "checkpoints" / "best.ckpt", weights_only=True)
    assert json.loads(described["data_spec"]) == checkpoint["data_spec"]
    assert json.loads(described["metadata"])["run"] == checkpoint["config"]["run_id"]


def test_the_measured_difference_is_recorded_and_within_the_tolerance(trained_run):
    report = json.loads((trained_run.path / "export" / "export.json").read_text(encoding="utf-8"))
    (record,) = report["exports"]
    assert report["tolerance"] == 1e-4
    assert (record["format"], record["path"], record["label_agreement"]) == ("onnx", "model.onnx", 1.0)
    assert 0 <= record["max_difference"] <= 1e-4
    assert "error" not in record
    assert trained_run.results["exports"] == [{**record, "path": str(exported(trained_run))}]


def test_nothing_of_this_machine_is_in_the_file(trained_run, project):
    content = exported(trained_run).read_bytes()
    own = [
        str(trained_run.path),
        str(project),
        str(Path.home()),
        str(Path(torch.__file__).parent),
        "site-packages",
        ".py",
    ]
    assert [path for path in own if path.encode() in content] == []
    onnx.checker.check_model(onnx.load(exported(trained_run)))


def test_nothing_but_the_file_and_its_report_is_left(trained_run):
    assert {path.name for path in (trained_run.path / "export").iterdir()} == {"model.onnx", "export.json"}


def test_a_checkpoint_alone_is_exported_where_it_is_sent(here, alone, images, tmp_path):
    done = here("export", "checkpoint=model.ckpt", "formats=[onnx]", "output=../sent", cwd=alone.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "sent").iterdir()} >= {"model.onnx", "export.json"}
    assert [path.name for path in alone.parent.iterdir()] == ["model.ckpt"]
    (got,) = session_of(tmp_path / "sent" / "model.onnx").run(["probabilities"], {"image": images.numpy()})
    with torch.inference_mode():
        expected = read_checkpoint(alone).build_model()(images).softmax(dim=1).numpy()
    assert np.abs(got - expected).max() <= 1e-4


@pytest.fixture
def written_before(trained_run, monkeypatch):
    """Let every export write the file of the trained run, whatever the model is."""

    def write(model, data_spec, metadata, path):
        shutil.copy(exported(trained_run), path)

    monkeypatch.setattr(onnx_format, "write", write)


def test_a_checkpoint_alone_is_exported_beside_itself_by_default(here, alone, written_before):
    assert here("export", f"checkpoint='{alone}'").returncode == 0
    assert {path.name for path in (alone.parent / "export").iterdir()} >= {"model.onnx", "export.json"}
    assert "error" not in (alone.parent / "export" / "export.json").read_text(encoding="utf-8")


def test_a_file_that_differs_from_its_checkpoint_is_an_error(here, alone, written_before):
    content = torch.load(alone, weights_only=True)
    *_, last = (key for key in content["state_dict"] if key.endswith(".bias"))
    content["state_dict"][last][0] += 100
    torch.save(content, alone)
    done = here("export", f"checkpoint='{alone}'")
    assert done.returncode == 1
    (record,) = json.loads((alone.parent / "export" / "export.json").read_text(encoding="utf-8"))["exports"]
    assert record["max_difference"] > 0.5
    assert "differs from the checkpoint by" in record["error"]
    assert "differs from the checkpoint by" in done.stdout
    # A file that gives other answers must not be there to be shipped, finished or not.
    assert list((alone.parent / "export").glob("*.onnx")) + list((alone.parent / "export").glob(".*.onnx")) == []


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        ("formats=[tflite]", ("formats has tflite", "Allowed: onnx", "Try formats=[onnx]")),
        ("formats=onnx", ("got onnx", "formats must be list", "Try formats=[onnx]")),
        ("tolerance=little", ("got little", "tolerance must be float", "Try tolerance=0.0001")),
        ("data.batch_sise=3", ("data.batch_sise does not exist", "data.batch_size", "Try data.batch_size=")),
        (
            "checkpoint=missing.ckpt",
            ("no checkpoint at missing.ckpt", "A run directory or a .ckpt file", "logs/latest"),
        ),
    ],
)
def test_a_wrong_request_ends_in_one_message(typed, parts, here, alone):
    own = [] if typed.startswith("checkpoint=") else [f"checkpoint='{alone}'"]
    done = here("export", *own, typed)
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr
    assert not (alone.parent / "export" / "model.onnx").exists()


def test_a_failing_export_lets_the_run_finish_and_exits_1(here, tmp_path, monkeypatch):
    def fail(model, data_spec, metadata, path):
        path.write_text("half a file", encoding="utf-8")
        raise RuntimeError("no space left")

    monkeypatch.setattr(onnx_format, "write", fail)
    done = here("train", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 1
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    assert results["metrics"]["test/acc"] > 0.1
    assert results["errors"] == ["export onnx: RuntimeError: no space left"]
    assert results["exports"][0]["error"] == "RuntimeError: no space left"
    assert not (tmp_path / "run" / "export" / "model.onnx").exists()
    assert "RuntimeError: no space left" in done.stdout
    assert "Traceback (most recent call last)" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")


# Prediction with the exported file.


@pytest.fixture
def pictures(tmp_path, images):
    folder = tmp_path / "pictures ü"
    folder.mkdir()
    for position in range(20):
        Image.fromarray(images[position, 0].numpy()).save(folder / f"{position:02d}.png")
    return folder


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_checkpoint_and_exported_file_give_the_same_table(here, trained_run, pictures, tmp_path):
    tables = []
    for model in (trained_run.path, exported(trained_run)):
        done = here("predict", model, pictures, "--top-k", 2, "--output", tmp_path / "table.csv")
        assert done.returncode == 0, done.stderr
        tables.append(rows_of(tmp_path / "table.csv"))
    assert len(tables[0]) == len(tables[1]) == 20
    for one, other in zip(*tables, strict=True):
        assert (one["path"], one["label"], one["label_2"]) == (other["path"], other["label"], other["label_2"])
        assert float(one["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-4)


def test_an_exported_file_predicts_without_torch(door, trained_run, pictures, tmp_path):
    poison = tmp_path / "poison"
    poison.mkdir()
    mark = tmp_path / "imported"
    for name in ("torch", "hydra"):
        text = f"open({str(mark)!r}, 'w').close()\nraise ImportError('poisoned')\n"
        (poison / f"{name}.py").write_text(text, encoding="utf-8")
    table = tmp_path / "table.csv"
    lone = shutil.copy(exported(trained_run), tmp_path / "lone model.onnx")
    done = door("predict", lone, pictures, "--output", table, PYTHONPATH=str(poison))
    assert done.returncode == 0, done.stderr
    assert len(rows_of(table)) == 20
    assert not mark.exists()


@pytest.mark.parametrize("damage", ["no model", "no description"])
def test_a_file_that_is_no_exported_model_is_refused(here, trained_run, pictures, tmp_path, damage):
    path = tmp_path / "other.onnx"
    if damage == "no model":
        path.write_text("nothing", encoding="utf-8")
    else:
        proto = onnx.load(exported(trained_run))
        del proto.metadata_props[:]
        onnx.save(proto, path)
    done = here("predict", path, pictures)
    assert done.returncode == 2
    assert f"{path} cannot be used" in done.stderr
    assert "An ONNX file written by export.py is allowed" in done.stderr
    assert "Traceback" not in done.stderr
