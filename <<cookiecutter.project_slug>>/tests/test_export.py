"""An exported file has the promised interface, agrees with its checkpoint, and needs nothing but itself."""

import csv
import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.configuration import ConfigError, plain
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.export import latency, writing
from << cookiecutter.package_name >>.export.deployed import Deployed
from << cookiecutter.package_name >>.export.formats import onnx as onnx_format
from << cookiecutter.package_name >>.inference import formats, load_classifier
from << cookiecutter.package_name >>.request import check

FILES = ("model.onnx", "model.pt2", "model.safetensors", "model.ts")
ROOT = Path(__file__).parents[1]
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


@pytest.fixture(scope="module")
def exports(trained_run, start_here, tmp_path_factory):
    """Write the trained run's best checkpoint in every format, once for all tests that only read the files."""
    folder = tmp_path_factory.mktemp("exports") / "any földer"
    done = start_here("export", f"checkpoint='{trained_run.path}'", "formats=all", f"output={folder}", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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


@pytest.mark.parametrize("name", FILES)
def test_every_file_agrees_with_the_checkpoint_for_any_number_of_images(name, exports, trained_run, images):
    run = load_classifier(str(exports / name))
    model = read_checkpoint(trained_run.path).build_model()
    for number in (1, 2, 7, 359):
        got = run(images[:number].numpy())
        with torch.inference_mode():
            expected = model(images[:number]).softmax(dim=1).numpy()
        assert got.shape == (number, 10)
        assert got.dtype == np.float32
        assert np.abs(got - expected).max() <= 1e-4
        assert np.abs(got.sum(axis=1) - 1).max() < 1e-5


def texts_in(path):
    """Read the texts that a file carries with the means of its own runtime."""
    texts = {"data_spec": "", "metadata": ""}
    match path.suffix:
        case ".onnx":
            return session_of(path).get_modelmeta().custom_metadata_map
        case ".safetensors":
            with safe_open(path, framework="np") as file:
                return file.metadata()
        case ".pt2":
            torch.export.load(path, extra_files=texts)
        case ".ts":
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                torch.jit.load(path, _extra_files=texts)
    return texts


@pytest.mark.parametrize("name", FILES)
def test_every_file_describes_its_data_and_its_origin(name, exports, trained_run):
    texts = texts_in(exports / name)
    checkpoint = torch.load(trained_run.path / "checkpoints" / "best.ckpt", weights_only=True)
    assert json.loads(texts["data_spec"]) == checkpoint["data_spec"]
    metadata = json.loads(texts["metadata"])
    assert (metadata["package"], metadata["version"]) == ("<< cookiecutter.package_name >>", "0.1.0")
    assert metadata["run"] == checkpoint["config"]["run_id"]
    assert metadata["metrics"] == trained_run.results["metrics"]
    assert "centre square" in metadata["reading"]


def test_the_measured_difference_is_recorded_and_within_the_tolerance(trained_run):
    report = json.loads((trained_run.path / "export" / "export.json").read_text(encoding="utf-8"))
    (record,) = report["exports"]
    assert report["tolerance"] == 1e-4
    assert (record["format"], record["path"], record["label_agreement"]) == ("onnx", "model.onnx", 1.0)
    assert record["images"] == ["random", "validation"]
    assert 0 <= record["max_difference"] <= 1e-4
    assert "error" not in record
    assert trained_run.results["exports"] == [{**record, "path": str(exported(trained_run))}]


def contents(path):
    """Give what is in a file; of an archive, every member as it was before it was packed."""
    if not is_zipfile(path):
        return [path.read_bytes()]
    with ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


def paths_in(path, own):
    libraries = (Path(torch.__file__).parent, sys.prefix, Path.home(), "site-packages")
    places = [re.escape(str(place).encode()) for place in (*own, *libraries)]
    # Of a source file more than its ending: weights hold any three bytes by chance.
    return [found for place in (*places, rb"/\w+\.py") for part in contents(path) for found in re.findall(place, part)]


@pytest.mark.parametrize("name", FILES)
def test_nothing_of_this_machine_is_in_a_file(name, exports, trained_run, project):
    assert paths_in(exports / name, own=(exports.parent, trained_run.path, project, ROOT)) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_permissions_of_any_other(name, exports):
    assert (exports / name).stat().st_mode == (exports / "export.json").stat().st_mode


def test_the_networks_configuration_may_not_name_a_file_of_this_machine(linear, tmp_path):
    linear.net_config = {**linear.net_config, "pretrained": "/here/weights.pth"}
    formats()["safetensors"].write(linear, {}, tmp_path / "model.safetensors")
    assert b"/here" not in (tmp_path / "model.safetensors").read_bytes()
    linear.net_config = {**linear.net_config, "vocabulary": "/here/words.txt"}
    with pytest.raises(ValueError, match=r"vocabulary=/here/words\.txt lies on this machine only"):
        formats()["safetensors"].write(linear, {}, tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_moved_and_renamed_gives_the_same_answers(name, exports, images, tmp_path):
    expected = load_classifier(str(exports / name))(images[:3].numpy())
    moved = tmp_path / "elsewhere" / f"digits v3.1 ü{Path(name).suffix}"
    moved.parent.mkdir()
    shutil.copy(exports / name, moved)
    assert (load_classifier(str(moved))(images[:3].numpy()) == expected).all()


def test_torchscript_says_that_it_is_deprecated(alone, here, tmp_path):
    done = here("export", f"checkpoint='{alone}'", "formats=[torchscript]", f"output={tmp_path / 'out'}")
    assert done.returncode == 0
    assert done.stdout.count("deprecates") == 1
    assert done.stderr == ""


# How long an answer takes.


def test_latencies_are_measured_for_every_subject_and_batch(linear, tmp_path, monkeypatch):
    def no_compiler(model):
        def run(images):
            raise RuntimeError("no C++ compiler")

        return run

    monkeypatch.setattr(torch, "compile", no_compiler)
    answered = []
    rows = latency.measure_latency(linear, {"onnx": lambda images: answered.append(len(images))})
    assert [(row["model"], row["batch"]) for row in rows] == [
        (model, batch) for model in ("eager", "torch.compile", "onnx") for batch in (1, 32)
    ]
    assert answered == [1] * 53 + [32] * 53
    for row in rows:
        if row["model"] == "torch.compile":
            assert row["error"] == "RuntimeError: no C++ compiler"
        else:
            assert 0 <= row["median_ms"] <= row["p95_ms"]
    lines = latency.table(rows).splitlines()
    assert [line.split()[0] for line in lines] == ["milliseconds", "eager", "torch.compile", "onnx"]
    assert lines[2].split() == ["torch.compile", "failed", "failed"]
    assert len({len(line) for line in lines}) == 1


def test_percentiles_are_in_milliseconds_and_slow_calls_are_few(monkeypatch):
    # Each call takes a second of this clock.
    ticks = iter(range(1000))
    monkeypatch.setattr(latency, "perf_counter", lambda: float(next(ticks)))
    calls = []
    assert latency.time_calls(lambda: calls.append(1)) == {"median_ms": 1000.0, "p95_ms": 1000.0}
    assert len(calls) == latency.WARM_UP + 3


@pytest.mark.slow
def test_the_table_of_latencies_is_reported_and_shown(here, alone):
    done = here("export", f"checkpoint='{alone}'", "formats=all", "benchmark=true")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((alone.parent / "export" / "export.json").read_text(encoding="utf-8"))["latency"]
    assert {row["model"] for row in rows} == {"eager", "torch.compile", *formats()}
    assert all(0 < row["median_ms"] <= row["p95_ms"] for row in rows)
    assert "batch 32" in done.stdout
    assert "torch.compile" in done.stdout


# ONNX alone: its version and its size.


@pytest.fixture
def linear(compose):
    """Give a small network with random weights as it is shipped."""
    config = compose("model=linear")
    data_spec = DataSpec(("left", "right"), channels=1, image_size=4, mean=(0.5,), std=(0.3,))
    model = build_model(config, data_spec)
    model.config = plain(config)
    return Deployed.of(model)


def test_the_opset_that_was_asked_for_is_written_and_run(linear, tmp_path):
    texts = {"data_spec": json.dumps(linear.data_spec.to_dict())}
    onnx_format.write(linear, texts, tmp_path / "model.onnx", 18)
    proto = onnx.load(tmp_path / "model.onnx")
    assert [entry.version for entry in proto.opset_import if entry.domain == ""] == [18]
    got = onnx_format.classifier(tmp_path / "model.onnx")(linear.example().numpy())
    assert np.abs(got - linear(linear.example()).detach().numpy()).max() < 1e-6


def test_another_opset_than_the_one_asked_for_is_an_error(compose, tmp_path):
    # A convolution's mean cannot be converted to a version below those that torch writes itself.
    config = compose("model=cnn")
    model = build_model(config, DataSpec(("left", "right"), channels=1, image_size=4, mean=(0.5,), std=(0.3,)))
    model.config = plain(config)
    with pytest.raises(ValueError, match="torch wrote opset 18 instead of 17"):
        onnx_format.write(Deployed.of(model), {}, tmp_path / "model.onnx", 17)
    assert not (tmp_path / "model.onnx").exists()


def test_weights_beyond_the_size_of_one_file_are_an_error(linear, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format, "LARGEST", 100)
    with pytest.raises(ValueError, match="an ONNX file holds up to 2 GB"):
        onnx_format.write(linear, {}, tmp_path / "model.onnx", 20)


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

    def write(model, described, path, opset):
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
        ("formats=[tflite]", ("tflite", "torch_export", "Try formats=[onnx]")),
        ("formats=onnx", ("got onnx", "formats must be all or list", "Try formats=[onnx]")),
        ("opset=17", ("got 17", "opset must", "Try opset=20")),
        ("tolerance=-1", ("got -1", "tolerance must be float >= 0", "Try tolerance=0.0001")),
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


@pytest.mark.parametrize("output", ["model.ckpt", "model.ckpt/deeper"])
def test_an_output_that_cannot_be_written_is_refused(output, here, alone):
    done = here("export", f"checkpoint='{alone}'", f"output='{alone.parent / Path(output)}'", cwd=alone.parent)
    assert done.returncode == 2
    assert f"{alone} is no folder that you may write to. Try output=DIR" in done.stderr
    assert [path.name for path in alone.parent.iterdir()] == ["model.ckpt"]


def test_formats_of_a_run_are_checked_before_it_starts():
    check("train", ["export=all"])
    check("train", ["export.formats=all"])
    check("train", ["export.formats=[torchscript,onnx]"])
    with pytest.raises(ConfigError, match=r"export\.formats must be all or list of onnx or .*, got \[tflite\]"):
        check("train", ["export.formats=[tflite]"])


def test_a_failing_export_lets_the_run_finish_and_exits_1(here, tmp_path, monkeypatch):
    def fail(model, described, path, opset):
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


def missing(package):
    return lambda name: None if name == package else name


@pytest.mark.parametrize(
    "package", ["onnx", *(pytest.param(name, marks=pytest.mark.slow) for name in ("onnxscript", "onnxruntime"))]
)
def test_a_package_that_an_export_needs_is_missed_before_training(package, here, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "find_spec", missing(package))
    done = here("train", *QUICK, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert f"The format onnx needs {package}, not installed here. Try pip install {package}" in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_wrong_opset_is_refused_before_training(here, tmp_path):
    done = here("train", *QUICK, "export.opset=3", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "export.opset must be 18 <= int <= 25, got 3" in done.stderr
    assert not (tmp_path / "run").exists()


def test_data_that_are_not_here_are_replaced_by_random_images(here, alone, written_before, monkeypatch):
    def not_here(self):
        raise OSError("no such folder")

    monkeypatch.setattr(DigitsDataModule, "prepare_data", not_here)
    done = here("export", f"checkpoint='{alone}'")
    assert done.returncode == 0, done.stderr
    assert "compared on random images only. no such folder" in done.stdout
    (record,) = json.loads((alone.parent / "export" / "export.json").read_text(encoding="utf-8"))["exports"]
    assert record["images"] == ["random"]


@pytest.mark.slow
def test_a_run_goes_on_without_one_of_the_formats(copy_project, tmp_path):
    clone = copy_project(tmp_path / "clone")
    next(clone.glob("*/export/formats/onnx.py")).unlink()
    command = [sys.executable, "train.py", *QUICK, "export=all", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    left = {path.name for path in (tmp_path / "run" / "export").iterdir()}
    assert left == {"export.json", *FILES} - {"model.onnx"}


# Runs whose weights were trained in other ways.


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("precision=bf16-mixed",),
        ("precision=bf16-true",),
        ("model.compile=true",),
        ("model.channels_last=true",),
        ("callbacks=ema",),
        ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_a_run_of_any_kind_exports_its_best_weights(overrides, door, images, tmp_path):
    common = ("model=cnn", "model.net.widths=[8]", "logger=null", "trainer.max_epochs=2", "export=all")
    done = door("train", *common, *overrides, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    # The checkpoint alone, in a folder that holds nothing else.
    (tmp_path / "alone").mkdir()
    moved = shutil.copy(tmp_path / "run" / "checkpoints" / "best.ckpt", tmp_path / "alone")
    with torch.inference_mode():
        expected = read_checkpoint(moved).build_model()(images).softmax(dim=1).numpy()
    for name in FILES:
        got = load_classifier(str(tmp_path / "run" / "export" / name))(images.numpy())
        assert np.abs(got - expected).max() <= 1e-4
    assert paths_in(tmp_path / "run" / "export" / "model.onnx", own=(tmp_path,)) == []


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


@pytest.fixture
def table_of(here, tmp_path):
    def classify(model, pictures):
        done = here("predict", model, pictures, "--top-k", 2, "--output", tmp_path / "table.csv")
        assert done.returncode == 0, done.stderr
        return rows_of(tmp_path / "table.csv")

    return classify


def agree(rows, expected):
    for one, other in zip(rows, expected, strict=True):
        assert (one["path"], one["label"], one["label_2"]) == (other["path"], other["label"], other["label_2"])
        assert float(one["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-4)
        assert float(one["confidence_2"]) == pytest.approx(float(other["confidence_2"]), abs=1e-4)


@pytest.mark.parametrize("name", FILES)
def test_checkpoint_and_exported_file_give_the_same_table(name, table_of, exports, trained_run, pictures):
    rows = table_of(exports / name, pictures)
    assert len(rows) == 20
    agree(rows, table_of(trained_run.path, pictures))


@pytest.fixture
def photos(tmp_path):
    """Write the same colourful picture as JPEG, CMYK JPEG, JPEG lying on its side, and a grey one with 16 bits."""
    folder = tmp_path / "photos"
    folder.mkdir()
    down, right = np.mgrid[0:150, 0:200]
    pixels = np.stack([right, 255 - down, (down * right // 8) % 256], axis=2).astype(np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(folder / "plain.jpg", quality=95)
    picture.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    on_its_side = Image.Exif()
    on_its_side[0x0112] = 6
    picture.rotate(90, expand=True).save(folder / "on its side.jpg", quality=95, exif=on_its_side)
    Image.fromarray((down * right * 2).astype(np.uint16)).save(folder / "sixteen bits.png")
    return folder


ONNXRUNTIME_ALONE = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1])
texts = session.get_modelmeta().custom_metadata_map
data_spec, reading = json.loads(texts["data_spec"]), json.loads(texts["metadata"])["reading"]
print(reading, file=sys.stderr)  # what the following lines do
side, answers = data_spec["image_size"], {}
for path in sys.argv[2:]:
    image = Image.open(path)
    image.draft(None, (2 * side, 2 * side))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    image = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.BILINEAR)
    batch = np.asarray(image).transpose(2, 0, 1)[None]
    (probabilities,) = session.run(["probabilities"], {"image": batch})
    answers[path] = dict(zip(data_spec["class_names"], probabilities[0].tolist()))
assert not {"torch", "<< cookiecutter.package_name >>"} & set(sys.modules)
print(json.dumps(answers))
"""


def test_four_kinds_of_image_files_get_the_same_answer_everywhere(compose, table_of, photos, tmp_path):
    config = compose("model=cnn")
    data_spec = DataSpec(("rot", "grün", "blau"), 3, image_size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.3))
    model = build_model(config, data_spec)
    model.config = plain(config)
    # Far from uniform, so that a wrongly read image shows.
    torch.nn.init.normal_(model.net.head[-1].weight, std=3)
    checkpoint = {"state_dict": model.state_dict(), "config": model.config, "data_spec": data_spec.to_dict()}
    torch.save(checkpoint, tmp_path / "model.ckpt")
    writing.export_model(model.eval(), None, writing.ExportSettings("all", 1e-4, 20, False), tmp_path, metrics={})
    expected = table_of(tmp_path / "model.ckpt", photos)
    assert len({row["confidence"] for row in expected}) == 4
    for name in FILES:
        agree(table_of(tmp_path / name, photos), expected)

    script = [sys.executable, "-c", ONNXRUNTIME_ALONE, tmp_path / "model.onnx", *(row["path"] for row in expected)]
    done = subprocess.run(script, cwd=photos, capture_output=True, text=True, check=True)
    answers = json.loads(done.stdout)
    for row in expected:
        probabilities = answers[row["path"]]
        assert max(probabilities, key=probabilities.get) == row["label"]
        assert probabilities[row["label"]] == pytest.approx(float(row["confidence"]), abs=1e-4)


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


def refused(done, path):
    assert done.returncode == 2
    assert done.stderr.count("Error: ") == 1
    assert f"{path} cannot be used: " in done.stderr
    assert f"A {path.suffix} file written by export.py is allowed. Try python export.py" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".safetensors", ".ts"])
def test_a_file_that_is_no_model_is_refused(suffix, here, pictures, tmp_path):
    path = tmp_path / f"other{suffix}"
    path.write_text("nothing that any library could load", encoding="utf-8")
    refused(here("predict", path, pictures), path)


@pytest.mark.parametrize("name", FILES)
def test_an_export_of_something_else_is_refused(name, here, linear, pictures, tmp_path):
    path = tmp_path / name
    (module,) = (module for module in formats().values() if path.suffix == module.SUFFIX)
    module.write(linear, {"made by": "another project"}, path, **({"opset": 20} if name == "model.onnx" else {}))
    done = here("predict", path, pictures)
    refused(done, path)
    assert "it carries no description of its classes and image size" in done.stderr


def test_weights_that_name_code_which_is_not_trusted_are_refused(here, linear, pictures, tmp_path):
    path = tmp_path / "model.safetensors"
    linear.net_config = {"_target_": "os.system", "command": f"touch {tmp_path / 'run'}"}
    formats()["safetensors"].write(linear, {"data_spec": json.dumps(linear.data_spec.to_dict())}, path)
    done = here("predict", path, pictures)
    assert done.returncode == 2
    assert "names os.system, which is not a network" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_missing_runtime_is_named(here, exports, pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = here("predict", exports / "model.onnx", pictures)
    assert done.returncode == 2
    assert "needs onnxruntime, not installed here. Try pip install onnxruntime" in done.stderr
