"""The digits and their splits, the same batches on any number of processes, and how an image file is read."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from PIL import Image
from sklearn.datasets import load_digits

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data.digits import DigitsDataModule, digit_images, write_samples
from << cookiecutter.package_name >>.data.images import read_image
from << cookiecutter.package_name >>.data.loading import SharedBatches
from << cookiecutter.package_name >>.data.statistics import mean_and_std
from << cookiecutter.package_name >>.data.synthetic import SyntheticDataModule


def digits(**settings):
    datamodule = DigitsDataModule(**{"batch_size": 64, "val_fraction": 0.15, "test_fraction": 0.2, **settings})
    datamodule.setup()
    return datamodule


def rows(split):
    """Give each image with its label as bytes, so that they can be compared as a multiset."""
    return [image.numpy().tobytes() + bytes([label]) for image, label in zip(split.images, split.labels, strict=True)]


def test_digits_are_1797_grey_images_with_sixteenths_as_bytes():
    images, labels = digit_images()
    raw = load_digits()
    assert (images.shape, images.dtype, labels.shape) == ((1797, 1, 8, 8), np.uint8, (1797,))
    assert np.array_equal(images[:, 0], np.round(raw.images * 255 / 16))
    assert (images.min(), images.max()) == (0, 255)
    assert np.array_equal(labels, raw.target)


def test_the_splits_are_disjoint_and_complete():
    splits = digits().splits
    assert {name: len(split) for name, split in splits.items()} == {"train": 1168, "val": 270, "test": 359}
    images, labels = digit_images()
    every = [image.tobytes() + bytes([label]) for image, label in zip(images, labels, strict=True)]
    assert sorted(row for split in splits.values() for row in rows(split)) == sorted(every)


def test_every_split_has_each_class_in_its_share():
    _, labels = digit_images()
    for split in digits().splits.values():
        expected = np.bincount(labels) * len(split) / len(labels)
        assert np.abs(np.bincount(split.labels) - expected).max() <= 1


def test_the_split_follows_its_own_seed_and_no_other():
    assert rows(digits(split_seed=0, seed=1).splits["test"]) == rows(digits(split_seed=0, seed=2).splits["test"])
    assert rows(digits(split_seed=0).splits["test"]) != rows(digits(split_seed=1).splits["test"])


def test_mean_and_deviation_come_from_the_training_split():
    datamodule = digits()
    pixels = datamodule.splits["train"].images.double() / 255
    assert datamodule.data_spec.mean == pytest.approx([pixels.mean().item()], rel=1e-5)
    assert datamodule.data_spec.std == pytest.approx([pixels.std().item()], rel=1e-5)
    everything = torch.from_numpy(digit_images()[0]).double() / 255
    assert datamodule.data_spec.mean != pytest.approx([everything.mean().item()], rel=1e-5)


def test_the_specification_describes_the_digits():
    spec = digits().data_spec
    assert spec.class_names == tuple("0123456789")
    assert (spec.num_classes, spec.channels, spec.image_size) == (10, 1, 8)
    assert type(spec).from_dict(spec.to_dict()) == spec


def test_setting_up_twice_keeps_the_splits():
    datamodule = digits()
    before = datamodule.splits["train"]
    datamodule.setup()
    assert datamodule.splits["train"] is before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"data\.batch_size must be at least 1, got 0\. Try data\.batch_size=64"),
        ({"val_fraction": 0.0}, r"data\.val_fraction must lie between 0 and 1, got 0\.0\. Try data\.val_fraction="),
        ({"test_fraction": 1.5}, r"data\.test_fraction must lie between 0 and 1, got 1\.5\. Try data\.test_fraction="),
        ({"val_fraction": 0.5, "test_fraction": 0.5}, r"0\.5 \+ 0\.5 must stay below 0\.95\. Try data\.val_fraction="),
    ],
)
def test_impossible_settings_of_the_digits_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        digits(**settings)


def test_loaders_serve_whole_uint8_batches():
    datamodule = digits()
    batches = list(datamodule.train_dataloader())
    assert len(batches) == 1168 // 64
    for images, labels in batches:
        assert (images.shape, images.dtype, labels.shape, labels.dtype) == (
            (64, 1, 8, 8),
            torch.uint8,
            (64,),
            torch.int64,
        )


def test_validation_and_test_loaders_serve_their_split_in_order():
    datamodule = digits(batch_size=100)
    for name, loader in {"val": datamodule.val_dataloader(), "test": datamodule.test_dataloader()}.items():
        images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert torch.equal(images, datamodule.splits[name].images)
        assert torch.equal(labels, datamodule.splits[name].labels)


def shares(world_size, length=100, batch_size=12, seed=0, train=True, epoch=0):
    """Give each process's list of batches."""
    samplers = [SharedBatches(length, batch_size, rank, world_size, seed, train) for rank in range(world_size)]
    for sampler in samplers:
        sampler.sampler.set_epoch(epoch)
    return [list(sampler) for sampler in samplers]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_processes_together_see_the_batches_of_one(world_size):
    (alone,) = shares(1, epoch=3)
    together = [sorted(chain.from_iterable(parts)) for parts in zip(*shares(world_size, epoch=3), strict=True)]
    assert together == [sorted(batch) for batch in alone]


def test_every_process_gets_an_equal_share_of_a_training_batch():
    for batches in shares(3):
        assert [len(batch) for batch in batches] == [4] * 8


def test_the_training_order_follows_seed_and_epoch_alone():
    assert shares(1, seed=1, epoch=2) == shares(1, seed=1, epoch=2)
    assert shares(1, seed=1, epoch=2) != shares(1, seed=1, epoch=3)
    assert shares(1, seed=1, epoch=2) != shares(1, seed=2, epoch=2)


def test_seed_zero_is_a_seed():
    assert shares(1, seed=0) == shares(1, seed=0)
    assert shares(1, seed=0) != shares(1, seed=1)
    assert shares(1, seed=0, epoch=0) != shares(1, seed=0, epoch=1)


def test_training_sees_a_sample_at_most_once_an_epoch():
    seen = list(chain.from_iterable(shares(1)[0]))
    assert len(seen) == len(set(seen)) == 96


def test_training_leaves_out_an_incomplete_last_batch_unless_it_is_the_only_one():
    assert [len(batch) for batch in shares(1, length=25, batch_size=12)[0]] == [12, 12]
    assert [len(batch) for batch in shares(1, length=24, batch_size=12)[0]] == [12, 12]
    assert [len(batch) for batch in shares(1, length=5, batch_size=12)[0]] == [5]


@pytest.mark.parametrize("length", [5, 24, 25])
@pytest.mark.parametrize("train", [True, False])
def test_a_sampler_knows_how_many_batches_it_has(length, train):
    assert len(SharedBatches(length, 12, 0, 1, 0, train)) == len(shares(1, length, train=train)[0])


@pytest.mark.parametrize(("world_size", "length", "batch_size"), [(2, 21, 4), (2, 21, 2), (3, 4, 3), (4, 1001, 64)])
def test_every_process_has_a_share_of_every_batch_it_evaluates(world_size, length, batch_size):
    seen = shares(world_size, length, batch_size, train=False)
    # One without a batch, or with an empty one, would let the others wait for ever.
    assert len({len(batches) for batches in seen}) == 1
    assert min(len(batch) for batches in seen for batch in batches) >= 1
    assert sorted(index for batches in seen for batch in batches for index in batch) == list(range(length))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_covers_every_sample_exactly_once(world_size):
    seen = [index for batches in shares(world_size, train=False) for batch in batches for index in batch]
    assert sorted(seen) == list(range(100))


def test_lightning_sets_the_epoch_of_the_batches_in_a_run(compose):
    class Seen(Callback):
        def __init__(self):
            self.epochs = []

        def on_train_epoch_start(self, trainer, pl_module):
            self.epochs.append(trainer.train_dataloader.batch_sampler.epoch)

    datamodule, seen = digits(), Seen()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=3,
        limit_train_batches=1,
        limit_val_batches=0,
        callbacks=[seen],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(build_model(compose("model=mlp"), datamodule.data_spec), datamodule=datamodule)
    assert seen.epochs == [0, 1, 2]


def on_process(rank, world_size):
    """Give as much of a trainer as a data module asks for."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    processes = {"world_size": world_size, "global_rank": rank, "num_devices": world_size}
    return SimpleNamespace(**processes, strategy=strategy, lightning_module=None)


def test_a_batch_that_does_not_divide_is_rounded_down_and_said(caplog):
    datamodule = digits(batch_size=64)
    datamodule.trainer = on_process(0, 3)
    with caplog.at_level("INFO"):
        loader = datamodule.train_dataloader()
    assert {len(labels) for _, labels in loader} == {21}
    assert caplog.messages == ["data.batch_size=64 does not divide by 3 processes: using 63"]


@pytest.mark.parametrize(("batch_size", "images"), [(2, 359), (64, 2)])
def test_a_batch_or_split_smaller_than_the_processes_is_refused(batch_size, images):
    datamodule = digits(batch_size=batch_size)
    datamodule.trainer = on_process(0, 3)
    split = datamodule.splits["test"]
    split.images, split.labels = split.images[:images], split.labels[:images]
    message = rf"3 processes cannot share the test split of {images} images in batches of {batch_size}.*devices=2\."
    with pytest.raises(ConfigError, match=message):
        datamodule.test_dataloader()


def test_samples_are_test_digits_named_by_their_label(tmp_path):
    write_samples(tmp_path / "digits", 3)
    split = digits().splits["test"]
    expected = [f"{position:02d}_is_{split.labels[position]}.png" for position in range(3)]
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == expected
    for position, name in enumerate(expected):
        assert np.array_equal(read_image(tmp_path / "digits" / name, 8, 1), split.images[position])


@pytest.fixture
def saved(tmp_path):
    """Save a picture under a name, and give its path."""

    def save(image, name="picture.png", **options):
        image.save(tmp_path / name, **options)
        return tmp_path / name

    return save


def filled(mode, colour, size=(8, 8)):
    return Image.new(mode, size, colour)


def pixels_of(image):
    """Give the one colour of an image that has only one."""
    colours = {tuple(pixel) for pixel in image.reshape(len(image), -1).T.tolist()}
    assert len(colours) == 1, colours
    return colours.pop()


def test_a_grey_image_is_read_pixel_by_pixel(saved):
    values = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    image = read_image(saved(Image.fromarray(values)), 8, 1)
    assert (image.shape, image.dtype) == ((1, 8, 8), np.uint8)
    assert np.array_equal(image[0], values)


def test_an_rgb_image_is_read_channel_by_channel(saved):
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = read_image(saved(Image.fromarray(values)), 8, 3)
    assert (image.shape, image.dtype) == ((3, 8, 8), np.uint8)
    assert np.array_equal(image, values.transpose(2, 0, 1))


def test_colour_becomes_grey_and_grey_becomes_colour_where_the_model_wants_it(saved):
    # ITU-R 601: 0.299 of red.
    assert pixels_of(read_image(saved(filled("RGB", (255, 0, 0))), 8, 1)) == (76,)
    assert pixels_of(read_image(saved(filled("L", 90)), 8, 3)) == (90, 90, 90)


def test_a_palette_image_is_read_in_its_colours(saved):
    image = filled("P", 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert pixels_of(read_image(saved(image), 8, 3)) == (10, 20, 30)


def test_transparency_lies_on_white(saved):
    assert pixels_of(read_image(saved(filled("RGBA", (0, 0, 0, 0))), 8, 3)) == (255, 255, 255)
    assert pixels_of(read_image(saved(filled("RGBA", (10, 20, 30, 255))), 8, 3)) == (10, 20, 30)
    half = pixels_of(read_image(saved(filled("RGBA", (0, 0, 0, 128))), 8, 1))
    assert half == pytest.approx((127,), abs=1)
    assert pixels_of(read_image(saved(filled("LA", (0, 0))), 8, 1)) == (255,)


def test_a_transparent_palette_colour_lies_on_white(saved):
    image = filled("P", 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert pixels_of(read_image(saved(image, transparency=1), 8, 3)) == (255, 255, 255)


def test_a_cmyk_image_is_read_in_its_colours(saved):
    path = saved(filled("CMYK", (0, 255, 255, 0)), "picture.tif")
    assert pixels_of(read_image(path, 8, 3)) == (255, 0, 0)


@pytest.mark.parametrize(("deep", "byte"), [(0, 0), (257 * 77, 77), (32896, 128), (65535, 255)])
def test_a_16_bit_grey_image_keeps_its_brightness(saved, deep, byte):
    path = saved(Image.fromarray(np.full((8, 8), deep, dtype=np.uint16)))
    assert pixels_of(read_image(path, 8, 1)) == (byte,)
    assert pixels_of(read_image(path, 8, 3)) == (byte, byte, byte)


def test_the_orientation_of_a_photo_is_applied(saved):
    stored = np.zeros((16, 16), dtype=np.uint8)
    stored[:, 8:] = 255
    # 6: the camera was held so that the stored image must be turned by 90 degrees clockwise.
    exif = Image.Exif()
    exif[0x0112] = 6
    image = read_image(saved(Image.fromarray(stored), "photo.jpg", exif=exif, quality=95), 16, 1)
    assert image[0, :8].max() < 10
    assert image[0, 8:].min() > 245


def test_the_centre_square_is_cut_out_of_a_wide_and_of_a_tall_image(saved):
    wide = np.zeros((8, 24), dtype=np.uint8)
    wide[:, 8:16] = 200
    assert pixels_of(read_image(saved(Image.fromarray(wide)), 8, 1)) == (200,)
    assert pixels_of(read_image(saved(Image.fromarray(np.ascontiguousarray(wide.T))), 8, 1)) == (200,)


def test_the_shorter_side_is_resized_to_the_models_size(saved):
    quarters = np.kron(np.array([[0, 255], [255, 0]], dtype=np.uint8), np.ones((32, 32), dtype=np.uint8))
    image = read_image(saved(Image.fromarray(quarters)), 8, 1)
    assert image.shape == (1, 8, 8)
    assert (image[0, 0, 0], image[0, 0, 7], image[0, 7, 0], image[0, 7, 7]) == (0, 255, 255, 0)


@pytest.mark.parametrize("damage", ["text", "cut off", "missing"])
def test_a_file_that_cannot_be_read_is_named(saved, tmp_path, damage):
    path = tmp_path / "broken picture.png"
    if damage == "text":
        path.write_text("no image")
    elif damage == "cut off":
        noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
        whole = saved(Image.fromarray(noise)).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match=r"broken picture\.png cannot be read as an image: "):
        read_image(path, 8, 1)


def synthetic(**settings):
    shape = {"channels": 3, "image_size": 8, "num_classes": 4}
    sizes = {"train_samples": 256, "val_samples": 64, "test_samples": 100, "batch_size": 32}
    datamodule = SyntheticDataModule(**{**shape, **sizes, **settings})
    datamodule.setup()
    return datamodule


def test_synthetic_images_have_the_shape_and_number_that_is_asked_for():
    datamodule = synthetic(channels=1, image_size=5, num_classes=7)
    sizes = {name: (tuple(split.images.shape), split.images.dtype) for name, split in datamodule.splits.items()}
    assert sizes == {name: ((count, 1, 5, 5), torch.uint8) for name, count in datamodule.samples.items()}
    assert {name: len(split) for name, split in datamodule.splits.items()} == {"train": 256, "val": 64, "test": 100}
    assert set(torch.cat([split.labels for split in datamodule.splits.values()]).tolist()) == set(range(7))
    spec = datamodule.data_spec
    assert (spec.class_names, spec.channels, spec.image_size) == (tuple("0123456"), 1, 5)


def test_synthetic_images_follow_the_split_seed_and_no_other():
    assert rows(synthetic(seed=0).splits["test"]) == rows(synthetic(seed=1).splits["test"])
    assert rows(synthetic(split_seed=0).splits["test"]) != rows(synthetic(split_seed=1).splits["test"])


def test_no_synthetic_image_lies_in_two_splits():
    images = [image for split in synthetic().splits.values() for image in rows(split)]
    assert len(set(images)) == len(images) == 420


def test_mean_and_deviation_of_each_channel_are_those_of_all_pixels():
    images = torch.randint(0, 256, (2500, 3, 2, 2), dtype=torch.uint8)
    images[:, 1] //= 3
    mean, std = mean_and_std(images.split(1000))
    pixels = images.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-9)
    assert std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), rel=1e-9)
    datamodule = synthetic()
    assert (datamodule.data_spec.mean, datamodule.data_spec.std) == mean_and_std([datamodule.splits["train"].images])


def test_a_network_learns_the_synthetic_classes_in_a_moment(compose):
    datamodule = synthetic()
    model = build_model(compose("model=mlp"), datamodule.data_spec)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = Trainer(accelerator="cpu", max_epochs=5, use_distributed_sampler=False, **dict.fromkeys(quiet, False))
    trainer.fit(model, datamodule=datamodule)
    trainer.test(model, datamodule=datamodule, verbose=False)
    assert trainer.callback_metrics["test/acc"] > 0.95


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        *(("channels", 1), ("image_size", 1), ("num_classes", 2)),
        *((f"{split}_samples", 1) for split in ("train", "val", "test")),
    ],
)
def test_impossible_settings_of_synthetic_images_are_refused(name, smallest):
    message = rf"data\.{name} must be at least {smallest}, got {smallest - 1}\. Try data\.{name}={smallest}\."
    with pytest.raises(ConfigError, match=message):
        synthetic(**{name: smallest - 1})
