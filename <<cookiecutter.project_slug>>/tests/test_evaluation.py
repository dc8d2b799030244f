"""eval.py gives a run's own numbers from its checkpoint alone, and writes what explains them."""

import csv
import json
import shutil

import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.evaluation import write_mistakes, write_reliability
from << cookiecutter.package_name >>.figures import draw_confusion
from << cookiecutter.package_name >>.findings import BINS, MISTAKES, Mistakes, Reliability

ON_TWO_PROCESSES = ("strategy=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


@pytest.fixture
def alone(trained_run, tmp_path):
    """Copy the best checkpoint into an empty folder with a blank and an umlaut in its name."""
    folder = tmp_path / "only a chäckpoint"
    folder.mkdir()
    return shutil.copy(trained_run.path / "checkpoints" / "best.ckpt", folder / "model.ckpt")


@pytest.fixture
def evaluate(here, alone):
    """Evaluate the lone checkpoint in this process and give the folder of the split."""

    def run(*overrides, split="test"):
        done = here("eval", f"checkpoint='{alone}'", f"split={split}", *overrides)
        assert done.returncode == 0, done.stdout + done.stderr
        return alone.parent / f"eval-{split}"

    return run


@pytest.fixture(scope="module")
def evaluated(trained_run, start_here, tmp_path_factory):
    """Evaluate the best checkpoint alone on the test split, once for all tests that only read the result."""
    folder = tmp_path_factory.mktemp("evaluated") / "only a chäckpoint"
    folder.mkdir()
    checkpoint = shutil.copy(trained_run.path / "checkpoints" / "best.ckpt", folder / "model.ckpt")
    done = start_here("eval", f"checkpoint='{checkpoint}'", cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "eval-test"


def results_of(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def confusion_of(folder):
    header, *rows = table(folder / "confusion_matrix.csv")
    assert header[1:] == [row[0] for row in rows] == list("0123456789")
    return [[int(count) for count in row[1:]] for row in rows]


def test_a_checkpoint_alone_gives_the_numbers_of_its_run(evaluated, trained_run):
    results = results_of(evaluated)
    assert results["metrics"]["test/acc"] == pytest.approx(trained_run.results["metrics"]["test/acc"], abs=1e-6)
    assert results["metrics"]["test/loss"] == pytest.approx(trained_run.results["metrics"]["test/loss"], abs=1e-6)
    assert (results["split"], results["samples"], results["world_size"]) == ("test", 359, 1)
    assert results["checkpoint"] == str(evaluated.parent / "model.ckpt")


def test_the_numbers_are_means_over_samples(evaluated, alone):
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    datamodule.setup()
    split = datamodule.splits["test"]
    with torch.inference_mode():
        logits = read_checkpoint(alone).build_model()(split.images)
    metrics = results_of(evaluated)["metrics"]
    assert metrics["test/loss"] == pytest.approx(cross_entropy(logits, split.labels).item(), abs=1e-6)
    assert metrics["test/acc"] == pytest.approx((logits.argmax(dim=1) == split.labels).double().mean().item(), abs=1e-6)


def test_the_validation_split_gives_the_best_score(evaluate, trained_run):
    results = results_of(evaluate(split="val"))
    assert results["metrics"].keys() == {f"val/{name}" for name in ("loss", "acc", "f1", "ece", "top5")}
    assert results["metrics"]["val/loss"] == pytest.approx(trained_run.results["best_score"], abs=1e-6)
    assert results["samples"] == 270


def test_the_training_split_is_evaluated_whole(evaluate):
    assert results_of(evaluate(split="train"))["samples"] == 1168


def test_a_run_directory_stands_for_its_best_checkpoint(here, trained_run, tmp_path):
    done = here("eval", f"checkpoint='{trained_run.path}'", f"hydra.run.dir={tmp_path / 'elsewhere'}")
    assert done.returncode == 0, done.stderr
    results = results_of(tmp_path / "elsewhere")
    assert results["checkpoint"] == trained_run.results["best_checkpoint"]
    assert not (trained_run.path / "eval-test").exists()
    assert results["metrics"]["test/acc"] == pytest.approx(trained_run.results["metrics"]["test/acc"], abs=1e-6)


def test_a_checkpoint_in_a_run_directory_writes_into_the_run(here, trained_run, tmp_path):
    run_dir = shutil.copytree(trained_run.path, tmp_path / "moved run")
    assert here("eval", f"checkpoint='{run_dir / 'checkpoints' / 'last.ckpt'}'").returncode == 0
    assert results_of(run_dir / "eval-test")["samples"] == 359
    assert results_of(run_dir)["run_dir"] == str(trained_run.path)


def test_a_relative_path_is_relative_to_where_it_is_typed(here, alone):
    assert here("eval", "checkpoint=model.ckpt", cwd=alone.parent).returncode == 0
    assert {path.name for path in alone.parent.iterdir()} == {"model.ckpt", "eval-test"}


def test_evaluation_does_not_move_the_link_to_the_newest_run(evaluate, project):
    before = (project / "logs" / "latest").readlink()
    evaluate()
    assert (project / "logs" / "latest").readlink() == before


@pytest.mark.parametrize(
    "override", ["data.batch_size=7", pytest.param("data.batch_size=1000", marks=pytest.mark.slow)]
)
def test_overrides_lie_on_top_of_the_checkpoints_configuration(evaluate, trained_run, override):
    results = results_of(evaluate(override))
    assert results["samples"] == 359
    assert results["metrics"]["test/acc"] == pytest.approx(trained_run.results["metrics"]["test/acc"], abs=1e-6)
    assert results["metrics"]["test/loss"] == pytest.approx(trained_run.results["metrics"]["test/loss"], abs=1e-6)


def test_overrides_change_what_is_evaluated(evaluate):
    assert results_of(evaluate("data.test_fraction=0.1"))["samples"] == 180
    assert 0 < results_of(evaluate("trainer.limit_test_batches=2"))["samples"] < 200


def test_another_precision_is_used_and_recorded(evaluate):
    assert results_of(evaluate("precision=bf16-mixed"))["precision"] == "bf16-mixed"


def test_the_confusion_matrix_counts_every_sample_and_explains_the_accuracy(evaluated):
    matrix, results = confusion_of(evaluated), results_of(evaluated)
    assert sum(map(sum, matrix)) == results["samples"] == 359
    correct = sum(matrix[label][label] for label in range(10))
    assert correct / 359 == pytest.approx(results["metrics"]["test/acc"], abs=1e-6)
    assert (evaluated / "confusion_matrix.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_of_classes_follows_from_the_confusion_matrix(evaluated):
    matrix = confusion_of(evaluated)
    header, *rows = table(evaluated / "per_class.csv")
    assert header == ["class", "support", "precision", "recall", "f1"]
    for label, (name, *values) in enumerate(rows):
        support, precision, recall, f1 = map(float, values)
        correct, predicted = matrix[label][label], sum(row[label] for row in matrix)
        assert (name, support) == (str(label), sum(matrix[label]))
        assert precision == pytest.approx(correct / predicted)
        assert recall == pytest.approx(correct / support)
        assert f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_the_bins_of_confidence_hold_every_sample_and_explain_the_calibration_error(evaluated):
    header, *rows = table(evaluated / "reliability.csv")
    assert header == ["from", "to", "samples", "confidence", "accuracy"]
    filled = [[float(cell) for cell in row] for row in rows if row[2] != "0"]
    assert sum(samples for _, _, samples, _, _ in filled) == 359
    error = sum(samples * abs(accuracy - confidence) for _, _, samples, confidence, accuracy in filled) / 359
    metrics = results_of(evaluated)["metrics"]
    assert error == pytest.approx(metrics["test/ece"], abs=1e-4)
    assert sum(samples * accuracy for _, _, samples, _, accuracy in filled) / 359 == pytest.approx(metrics["test/acc"])
    for left, right, _, confidence, _ in filled:
        assert left <= confidence <= right
    assert (evaluated / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_certainty_falls_into_the_last_bin_and_empty_bins_stay_empty(tmp_path):
    reliability = Reliability()
    reliability.update(torch.tensor([[100.0, -100.0], [0.0, 0.0]]), torch.tensor([0, 1]))
    bins = reliability.compute()
    assert (bins["samples"][-1], bins["confidence"][-1], bins["accuracy"][-1]) == (1, 1, 1)
    assert bins["accuracy"][BINS // 2] == 0
    write_reliability(bins, tmp_path)
    rows = table(tmp_path / "reliability.csv")[1:]
    assert [row[2:] for row in rows if row[2] == "0"] == [["0", "", ""]] * (BINS - 2)


def logits_of(probabilities):
    """Give logits of two classes, of which the second has these probabilities."""
    return torch.stack([torch.zeros(len(probabilities)), torch.logit(torch.tensor(probabilities))], dim=1)


@pytest.fixture
def mistakes():
    return Mistakes(DataSpec(("$left$", "right"), channels=1, image_size=2, mean=(0.5,), std=(0.5,)))


def test_the_surest_mistakes_of_all_batches_are_kept_with_their_images(mistakes):
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 2, 2)
    mistakes.update(logits_of([0.6, 0.9, 0.8]), torch.tensor([0, 1, 0]), images[:3])
    mistakes.update(logits_of([0.7, 0.1, 0.2]), torch.tensor([0, 1, 0]), images[3:])
    kept = mistakes.compute()
    assert kept["confidence"].tolist() == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert kept["image"][:, 0, 0, 0].tolist() == [4, 2, 3, 0]
    assert list(zip(kept["label"].tolist(), kept["predicted"].tolist(), strict=True)) == [(1, 0), *[(0, 1)] * 3]


def test_no_more_mistakes_are_kept_than_fit_into_the_picture(mistakes):
    number = 2 * MISTAKES
    probabilities = torch.linspace(0.6, 0.9, number).tolist()
    images = torch.arange(number, dtype=torch.uint8).view(number, 1, 1, 1).expand(number, 1, 2, 2)
    mistakes.update(logits_of(probabilities), torch.zeros(number, dtype=torch.int64), images)
    assert mistakes.compute()["image"][:, 0, 0, 0].tolist() == list(range(number - 1, number - 1 - MISTAKES, -1))


def test_a_picture_of_mistakes_is_drawn_and_taken_away_when_there_are_none(mistakes, tmp_path):
    names = ("$left$", "a name that is far too long for the picture")
    mistakes.update(logits_of([0.6]), torch.tensor([0]), torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    write_mistakes(mistakes.compute(), names, tmp_path)
    assert (tmp_path / "mistakes.png").read_bytes().startswith(b"\x89PNG")
    mistakes.reset()
    mistakes.update(logits_of([0.6]), torch.tensor([1]), torch.zeros(1, 1, 2, 2, dtype=torch.uint8))
    write_mistakes(mistakes.compute(), names, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_picture_of_many_classes_has_a_size_that_can_be_opened(tmp_path):
    names = tuple(f"$class {number}$" for number in range(300))
    draw_confusion(torch.eye(300, dtype=torch.int64), names, tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as picture:
        assert max(picture.size) < 3000


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["checkpoint=missing.ckpt"],
            ("no checkpoint at missing.ckpt", "A run directory or a .ckpt file", "logs/latest"),
        ),
        ([], ("No checkpoint was given", "A run directory or a file", "Try checkpoint=logs/latest")),
        (["CHECKPOINT", "split=holdout"], ("got holdout", "split must be train or val or test", "Try split=test")),
        (
            ["CHECKPOINT", "data.batch_sise=3"],
            ("data.batch_sise does not exist", "data.batch_size", "Try data.batch_size="),
        ),
        (
            ["CHECKPOINT", "optimizer.lr=1.0"],
            ("optimizer belongs to the checkpoint", "Allowed: precision=", "Try data."),
        ),
        (
            ["CHECKPOINT", "model.net.dropout=0.5"],
            ("model belongs to the checkpoint", "Allowed: precision=", "Try data."),
        ),
        (["CHECKPOINT", "data.batch_size=many"], ("got many", "data.batch_size must be int", "Try data.batch_size=")),
        (["CHECKPOINT", "precision=fp8"], ("precision=fp8 does not exist", "Allowed: 16-mixed", "Try precision=")),
        (["CHECKPOINT", "anything=1"], ("anything does not exist", "Allowed here", "Try ")),
        (["CHECKPOINT", "data.test_fraction=2.0"], ("got 2.0", "data.test_fraction must ", "Try data.test_fraction=")),
    ],
)
def test_a_wrong_request_ends_in_one_message(overrides, parts, here, alone, tmp_path):
    typed = [f"checkpoint='{alone}'" if override == "CHECKPOINT" else override for override in overrides]
    done = here("eval", *typed, f"hydra.run.dir={tmp_path / 'out'}")
    assert done.returncode == 2
    assert done.stderr.count("Error: ") == 1
    assert "Traceback" not in done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr
    assert not (tmp_path / "out" / "results.json").exists()


def test_a_file_that_is_no_checkpoint_is_refused(here, tmp_path):
    (tmp_path / "notes.ckpt").write_text("no checkpoint", encoding="utf-8")
    done = here("eval", "checkpoint=notes.ckpt")
    assert done.returncode == 2
    assert "notes.ckpt is not a checkpoint that can be trusted" in done.stderr


def test_an_output_that_cannot_be_written_is_refused(here, alone):
    done = here("eval", f"checkpoint='{alone}'", f"hydra.run.dir='{alone}'")
    assert done.returncode == 2
    assert f"{alone} is no folder that you may write to. Try hydra.run.dir=DIR" in done.stderr


def test_data_with_other_classes_are_refused(here, alone, monkeypatch):
    def renamed(self, stage=None):
        setup(self, stage)
        names = tuple("abcdefghij")
        self.data_spec = type(self.data_spec)(**{**vars(self.data_spec), "class_names": names})

    setup = DigitsDataModule.setup
    monkeypatch.setattr(DigitsDataModule, "setup", renamed)
    done = here("eval", f"checkpoint='{alone}'")
    assert done.returncode == 2
    assert "class_names ('a', 'b'" in done.stderr
    assert "trained on ('0', '1'" in done.stderr


@pytest.mark.slow
def test_two_processes_count_what_one_counts(evaluated, door, alone, tmp_path):
    one, two = evaluated, tmp_path / "two"
    done = door("eval", f"checkpoint='{alone}'", *ON_TWO_PROCESSES, f"hydra.run.dir={two}")
    assert done.returncode == 0, done.stderr
    assert results_of(two)["world_size"] == 2
    assert confusion_of(two) == confusion_of(one)
    assert results_of(two)["samples"] == 359
    for name in ("reliability.csv", "mistakes.png"):
        assert (two / name).read_bytes() == (one / name).read_bytes()
    assert results_of(two)["metrics"]["test/acc"] == results_of(one)["metrics"]["test/acc"]
    assert results_of(two)["metrics"]["test/loss"] == pytest.approx(results_of(one)["metrics"]["test/loss"], abs=1e-6)
