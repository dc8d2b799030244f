"""Splits and folds in which every class has its share, balanced batches, and data with which nothing can be learned."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data.datamodule import ImageDataModule
from << cookiecutter.package_name >>.data.digits import DigitsDataModule
from << cookiecutter.package_name >>.data.loading import InMemoryImages, SharedBatches
from << cookiecutter.package_name >>.data.splitting import split_off, stratified_order


def labels_of(*counts):
    """Give labels with so many of each class, mixed."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


@pytest.mark.parametrize("counts", [(50, 50), (97, 13, 5), (1, 200), (3, 3, 3, 3)])
def test_every_stretch_of_a_stratified_order_holds_each_class_in_its_share(counts):
    labels = labels_of(*counts)
    order = stratified_order(labels, seed=0)
    assert sorted(order) == list(range(len(labels)))
    for start in range(0, len(labels), 7):
        stretch = labels[order[start : start + 20]]
        expected = np.array(counts) * len(stretch) / len(labels)
        assert np.abs(np.bincount(stretch, minlength=len(counts)) - expected).max() <= 1.5


def test_a_class_of_one_sample_stays_in_training():
    labels = labels_of(1, 40)
    for seed in range(10):
        stays, _ = split_off(labels, np.arange(41), 0.0, 0.3, seed)
        assert 0 in labels[stays]


def digits(**settings):
    datamodule = DigitsDataModule(**{"batch_size": 64, "test_fraction": 0.2, **settings})
    datamodule.setup()
    return datamodule


def rows(split):
    return [image.numpy().tobytes() for image in split.images]


def test_folds_validate_on_every_training_image_exactly_once():
    folds = [digits(n_folds=5, fold=fold).splits for fold in range(5)]
    validated = [row for splits in folds for row in rows(splits["val"])]
    assert sorted(validated) == sorted(rows(folds[0]["train"]) + rows(folds[0]["val"]))
    assert len(validated) == 1797 - 359
    for splits in folds:
        assert rows(splits["test"]) == rows(folds[0]["test"])
        expected = np.bincount(torch.cat([splits["train"].labels, splits["val"].labels])) / 5
        assert np.abs(np.bincount(splits["val"].labels) - expected).max() <= 1
        assert abs(len(splits["val"]) - (1797 - 359) / 5) < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_folds": 1}, r"data\.n_folds must be at least 2, got 1\. Try data\.n_folds=5\."),
        ({"n_folds": 5, "fold": 5}, r"data\.fold must lie between 0 and 4 \(data\.n_folds=5\), got 5\. Try data"),
        ({"num_workers": -1}, r"data\.num_workers must be at least 0, got -1\. Try data\.num_workers=auto"),
        ({"split_seed": -1}, r"data\.split_seed must be at least 0, got -1\. Try data\.split_seed=0"),
    ],
)
def test_impossible_shared_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        digits(**settings)


class GivenLabels(ImageDataModule):
    """Serves made-up images with the labels that a test gives: `given(train=[0, 1], val=[0])`."""

    def read_splits(self):
        def split(labels):
            return InMemoryImages(torch.zeros(len(labels), 1, 4, 4, dtype=torch.uint8), torch.as_tensor(labels))

        return {name: split(labels) for name, labels in self.given.items()}, self.class_names


def given(class_names=("cat", "dog", "owl"), batch_size=4, balance=False, **labels):
    datamodule = GivenLabels(batch_size=batch_size, balance=balance)
    datamodule.class_names = class_names
    datamodule.given = labels
    return datamodule


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"train": [], "val": [0]}, r"The train split holds no image \(train 0, val 1\)\. .*data\.val_fraction=0\.5"),
        ({"train": [0, 1], "val": []}, r"The val split holds no image \(train 2, val 0\)"),
        ({"train": [0, 1], "val": [0, 2]}, r"No training image shows owl, but the val split does .*Add training"),
        ({"train": [0, 3], "val": [0]}, r"train split holds labels from 0 to 3\. Allowed for 3 classes: 0 to 2"),
        ({"train": [-1, 1], "val": [0]}, r"train split holds labels from -1 to 1"),
        ({"train": [0, 0], "val": [0], "class_names": ("cat",)}, r"one class only, cat, .*At least two are needed"),
    ],
)
def test_splits_from_which_nothing_can_be_learned_are_refused(labels, message):
    with pytest.raises(ConfigError, match=message):
        given(**labels).setup()


def test_fewer_images_than_a_batch_are_one_batch():
    datamodule = given(train=[0, 1, 2], val=[0], batch_size=64)
    datamodule.setup()
    ((_, labels),) = datamodule.train_dataloader()
    assert sorted(labels.tolist()) == [0, 1, 2]


def test_balanced_batches_draw_every_class_equally_often():
    datamodule = given(train=[0] * 900 + [1] * 90 + [2] * 10, val=[0], balance=True, batch_size=100)
    datamodule.setup()
    counts = np.bincount(torch.cat([labels for _, labels in datamodule.train_dataloader()]))
    assert counts.sum() == 1000
    assert np.abs(counts - 1000 / 3).max() < 80
    seen = torch.cat([labels for _, labels in datamodule.val_dataloader()])
    assert seen.tolist() == [0]


def test_balanced_batches_are_the_same_on_any_number_of_processes():
    weights = torch.tensor([1.0, 5.0, 0.0, 2.0] * 25)
    alone = list(SharedBatches(100, 12, 0, 1, 3, True, weights))
    shares = [list(SharedBatches(100, 12, rank, 3, 3, True, weights)) for rank in range(3)]
    together = [sorted(chain.from_iterable(parts)) for parts in zip(*shares, strict=True)]
    assert together == [sorted(batch) for batch in alone]
    assert all(index % 4 != 2 for batch in alone for index in batch)


def test_class_weights_make_up_for_rare_classes():
    datamodule = given(train=[0] * 6 + [1] * 3 + [2], val=[0])
    datamodule.setup()
    weights = datamodule.class_weights()
    assert weights.tolist() == pytest.approx([10 / 18, 10 / 9, 10 / 3])
    assert weights[datamodule.splits["train"].labels].mean().item() == pytest.approx(1)


@pytest.mark.parametrize(("world_size", "batch_size", "images"), [(1, 1, 8), (2, 2, 8), (2, 64, 3)])
def test_a_single_image_never_reaches_batch_norm(world_size, batch_size, images):
    datamodule = given(train=[0, 1, 2, 0, 1, 2, 0, 1][:images], val=[0], batch_size=batch_size)
    datamodule.setup()
    processes = {"world_size": world_size, "global_rank": 0, "num_devices": world_size}
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    for net in (nn.Linear(2, 2), nn.BatchNorm2d(2)):
        datamodule.trainer = SimpleNamespace(**processes, strategy=strategy, lightning_module=nn.Sequential(net))
        if isinstance(net, nn.Linear):
            assert len(datamodule.train_dataloader()) > 0
        else:
            with pytest.raises(ConfigError, match=rf"data\.batch_size={batch_size} gives a process a single image"):
                datamodule.train_dataloader()


def test_a_split_that_does_not_exist_is_named():
    datamodule = given(train=[0, 1, 2], val=[0])
    datamodule.setup()
    with pytest.raises(ConfigError, match=r"There is no test split\. Allowed: train, val\. Try split=val\."):
        datamodule.test_dataloader()
