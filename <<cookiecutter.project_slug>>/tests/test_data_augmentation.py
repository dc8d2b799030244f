"""Random changes of training images: drawn for each image, repeatable, and none of them in an evaluation."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data import augmentation
from << cookiecutter.package_name >>.data.augmentation import augment, cut, recolour, warp
from << cookiecutter.package_name >>.data.digits import DigitsDataModule

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def noise(count=8, size=16, channels=3):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


def ramps(count=200, size=16):
    """Give images whose columns get brighter from left to right."""
    return (torch.arange(size, dtype=torch.uint8) * 10).expand(count, 1, size, size)


def test_without_augmentation_the_centre_is_cut_out():
    images = noise(size=16)
    assert torch.equal(augment(images, 16, "none", flip=True), images)
    assert torch.equal(augment(images, 12, "none", flip=True), images[..., 2:14, 2:14])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("strength", ["light", "strong"])
@pytest.mark.parametrize(("channels", "read_size", "size"), [(3, 20, 16), (3, 16, 16), (1, 8, 8), (1, 1, 1), (1, 2, 2)])
def test_every_image_is_changed_in_its_own_way(strength, channels, read_size, size, device):
    images = noise(1, read_size, channels).expand(64, -1, -1, -1).to(device)
    changed = augment(images, size, strength, flip=True)
    assert (changed.shape, changed.dtype, changed.device.type) == ((64, channels, size, size), torch.uint8, device)
    assert len({image.cpu().numpy().tobytes() for image in changed}) > 8


@pytest.mark.parametrize("strength", ["light", "strong"])
def test_augmentation_follows_torchs_seed(strength):
    images, drawn = noise(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(augment(images, 12, strength, flip=True))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_large_batch_is_changed_like_a_small_one():
    # On a CPU a batch is taken in pieces.
    changed = augment(torch.full((40, 3, 224, 224), 100, dtype=torch.uint8), 224, "light", flip=True)
    assert changed.shape == (40, 3, 224, 224)
    brightness = changed.float().mean((1, 2, 3))
    assert brightness.std() > 5
    assert brightness.min() > 100 * 0.8 - 1
    assert brightness.max() < 100 * 1.2 + 1


def test_a_cut_shows_a_part_of_its_own_image():
    images = noise(32, 12)
    for image, square in zip(images, cut(images, 8, flip=True), strict=True):
        windows = image.unfold(1, 8, 1).unfold(2, 8, 1).permute(1, 2, 0, 3, 4).reshape(-1, 3, 8, 8)
        assert any(torch.equal(square, window) or torch.equal(square, window.flip(2)) for window in windows)


def test_cuts_come_from_every_place():
    numbered = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(300, -1, -1, -1)
    assert set(cut(numbered, 3, flip=False)[:, 0, 0, 0].tolist()) == {0, 1, 4, 5}


def test_images_are_mirrored_only_where_that_keeps_the_label():
    def share(flip):
        first_row = cut(ramps(), 12, flip)[:, 0, 0]
        return (first_row[:, 0] > first_row[:, 11]).float().mean().item()

    assert share(flip=False) == 0
    assert 0.35 < share(flip=True) < 0.65


def test_a_warp_by_nothing_changes_nothing():
    pixels = noise().float()
    zero = torch.zeros(8)
    assert torch.allclose(warp(pixels, zero, zero, zero, zero + 1), pixels, atol=1e-2)


def test_a_warp_turns_each_image_by_its_own_angle():
    pixels, zero = noise(4).float(), torch.zeros(4)
    turned = warp(pixels, torch.arange(4) * math.pi / 2, zero, zero, zero + 1)
    for quarter, (before, after) in enumerate(zip(pixels, turned, strict=True)):
        assert torch.allclose(after, before.rot90(quarter, (1, 2)), atol=0.1)


def test_a_warp_scales_about_the_centre():
    square = torch.zeros(1, 1, 16, 16)
    square[..., 6:10, 6:10] = 255
    zero = torch.zeros(1)
    grown = warp(square, zero, zero, zero, zero + 2)
    assert (grown > 127).sum() == 64
    assert torch.equal(grown.flip(3), grown)


def test_a_warp_shears_along_one_axis():
    bar = torch.zeros(1, 1, 17, 17)
    bar[..., 8] = 255
    zero = torch.zeros(1)
    leaning = warp(bar, zero, zero + 0.5, zero, zero + 1)
    tops = [leaning[0, 0, row].argmax().item() for row in (0, 8, 16)]
    assert tops[1] == 8
    assert abs(tops[0] - tops[2]) == 8
    assert torch.allclose(warp(bar, zero, zero, zero + 0.5, zero + 1), bar, atol=0.1)


def test_colours_change_by_their_factors():
    one = torch.ones(1)
    pixels = torch.tensor([40.0, 80.0, 120.0]).view(1, 3, 1, 1).expand(1, 3, 2, 2)

    def changed(*factors):
        return recolour(pixels, *factors)[0, :, 0, 0].tolist()

    assert changed(one, one, one) == pytest.approx([40, 80, 120])
    assert changed(one * 1.5, one, one) == pytest.approx([60, 120, 180])
    assert changed(one, one * 0.5, one) == pytest.approx([60, 80, 100])
    assert changed(one, one, one * 0) == pytest.approx([80, 80, 80])
    assert changed(one * 10, one, one) == pytest.approx([255, 255, 255])


def test_covered_squares_have_their_share_of_the_side():
    covered = augmentation.cover_squares(torch.zeros(100, 3, 20, 20), torch.linspace(0, 0.5, 100))
    areas = (covered[:, 0] > 0).sum((1, 2))
    assert areas[0] == 0
    assert areas.max() <= 11 * 11
    assert areas[50:].float().mean() > 30


def digits(**settings):
    datamodule = DigitsDataModule(batch_size=64, test_fraction=0.2, **settings)
    datamodule.setup()
    return datamodule


def test_only_training_batches_are_changed():
    datamodule = digits(augment="strong")
    batch = next(iter(datamodule.train_dataloader()))
    for training in (True, False):
        datamodule.trainer = SimpleNamespace(training=training)
        images, labels = datamodule.on_after_batch_transfer(batch, 0)
        assert torch.equal(images, batch[0]) is not training
        assert torch.equal(labels, batch[1])


def test_an_augmentation_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"data\.augment=heavy does not exist\. Allowed: none, light, strong\."):
        digits(augment="heavy")


def test_a_batch_after_augmentation_can_be_saved_as_a_picture(tmp_path):
    images = augment(noise(), 12, "strong", flip=True)
    Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(tmp_path / "changed.png")
    with Image.open(tmp_path / "changed.png") as image:
        assert np.array_equal(np.asarray(image), images[0].permute(1, 2, 0))


@pytest.mark.slow
def test_a_run_learns_from_strongly_changed_digits(here, tmp_path):
    short = ("trainer.max_epochs=4", "callbacks=minimal", "logger=null", "export=null")
    done = here("train", "data.augment=strong", *short, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    accuracy = float(done.stdout.partition("test/acc ")[2].split()[0])
    assert accuracy > 0.8


def accuracy_after_training(change, seed):
    datamodule = digits(seed=seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
    batches = datamodule.train_dataloader()
    for epoch in range(8):
        batches.batch_sampler.set_epoch(epoch)
        for images, labels in batches:
            loss = nn.functional.cross_entropy(net(change(images).float() / 255), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    test = datamodule.splits["test"]
    return (net(test.images.float() / 255).argmax(1) == test.labels).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("strength", ["light", "strong"])
def test_batched_and_per_sample_augmentation_reach_the_same_accuracy(strength):
    def batched(images):
        return augment(images, 8, strength, flip=False)

    def per_sample(images):
        return torch.cat([augment(image[None], 8, strength, flip=False) for image in images])

    scores = np.array([[accuracy_after_training(way, seed) for seed in range(5)] for way in (batched, per_sample)])
    noise_of_a_mean = np.sqrt(scores.var(1, ddof=1).sum() / 5)
    assert scores.min() > 0.6
    assert abs(np.diff(scores.mean(1))[0]) < max(3 * noise_of_a_mean, 0.01), scores
