"""Every shipped network learns, fits its data's specification and carries its own preprocessing."""

from pathlib import Path

import pytest
import torch
import torchvision

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.configuration import CONFIG_DIR, ConfigError, plain
from << cookiecutter.package_name >>.data.digits import digit_images
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.models import networks
from << cookiecutter.package_name >>.models.preprocess import Preprocess

MODELS = sorted(file.stem for file in (CONFIG_DIR / "model").glob("*.yaml"))


def spec(channels=1, image_size=8, classes=10):
    names = tuple(f"class {number}" for number in range(classes))
    return DataSpec(names, channels, image_size, mean=(0.3,) * channels, std=(0.4,) * channels)


def noise(number, channels, image_size):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, channels, image_size, image_size), dtype=torch.uint8, generator=generator)


def test_preprocess_scales_and_normalises_each_channel():
    image = noise(4, 3, 8)
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.4, 0.8)
    expected = torch.stack([(image[:, c].float() / 255 - mean[c]) / std[c] for c in range(3)], dim=1)
    got = Preprocess(mean, std)(image)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)


def test_preprocess_takes_a_channel_that_never_varies():
    assert Preprocess((0.0,), (0.0,))(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).abs().max() == 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("image_size", [7, 8, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_network_fits_its_data(model, image_size, channels, compose):
    classifier = build_model(compose(f"model={model}"), spec(channels, image_size, classes=5)).eval()
    image = noise(3, channels, image_size)
    logits = classifier(image)
    assert (logits.shape, logits.dtype) == ((3, 5), torch.float32)
    normalised = (image.float() / 255 - 0.3) / 0.4
    torch.testing.assert_close(logits, classifier.net(normalised))


@pytest.mark.parametrize("model", MODELS)
def test_every_network_learns_a_tiny_batch(model, compose):
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array[:16]) for array in digit_images())
    classifier = build_model(compose(f"model={model}"), spec())
    optimizer = classifier.build_optimizer(classifier.parameters())
    losses = []
    for _ in range(20):
        loss = classifier.loss(classifier(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_takes_part_in_training(model, compose):
    torch.manual_seed(0)
    classifier = build_model(compose(f"model={model}"), spec())
    classifier.loss(classifier(noise(8, 1, 8)), torch.arange(8)).backward()
    assert [name for name, weight in classifier.named_parameters() if not weight.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("model", MODELS)
def test_weights_have_the_plain_names_of_the_modules(model, compose):
    classifier = build_model(compose(f"model={model}"), spec())
    expected = {"preprocess.mean", "preprocess.std", *(f"net.{key}" for key in classifier.net.state_dict())}
    assert set(classifier.state_dict()) == expected


def test_the_same_seed_gives_the_same_new_weights(compose):
    built = []
    for _ in range(2):
        torch.manual_seed(1)
        built.append(build_model(compose(), spec()).state_dict())
    assert all(torch.equal(built[0][key], built[1][key]) for key in built[0])


def test_arguments_of_a_network_reach_it(compose):
    classifier = build_model(compose("model=mlp", "model.net.hidden_sizes=[5]"), spec())
    assert [tuple(weight.shape) for weight in classifier.net.parameters()] == [(5, 64), (5,), (10, 5), (10,)]


def test_an_argument_that_a_network_lacks_is_refused_with_those_it_has(compose):
    with pytest.raises(ConfigError, match=r"'depth'.* arguments are: data_spec, hidden_sizes, dropout"):
        build_model(compose("model=mlp", "+model.net.depth=3"), spec())


def test_a_network_that_does_not_exist_is_refused(compose):
    with pytest.raises(ConfigError, match=r"models\.networks\.MLPP"):
        build_model(compose("model=mlp", f"model.net._target_={networks.__name__}.MLPP"), spec())


# Networks of torchvision.


@pytest.fixture
def stored_weights(tmp_path, monkeypatch):
    """Put weights where torchvision looks before it downloads: `stored_weights("resnet18")`."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def store(name):
        torch.manual_seed(5)
        weights = torchvision.models.get_model(name).state_dict()
        file = tmp_path / "hub" / "checkpoints" / Path(torchvision.models.get_model_weights(name).DEFAULT.url).name
        file.parent.mkdir(parents=True)
        torch.save(weights, file)
        return weights

    return store


def test_pretrained_weights_are_loaded_under_a_new_head_with_their_own_normalisation(compose, stored_weights):
    weights = stored_weights("mobilenet_v3_small")
    classifier = build_model(compose("model=torchvision", "model.net.pretrained=true"), spec(1, 32, classes=4))
    assert torch.equal(classifier.net.net.features[0][0].weight, weights["features.0.0.weight"])
    assert classifier.net.head.weight.shape == (4, 1024)
    # The figures of ImageNet, with which torchvision's weights were trained.
    assert classifier.preprocess.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert classifier.data_spec.std == pytest.approx((0.229, 0.224, 0.225))
    assert classifier(noise(2, 1, 32)).shape == (2, 4)


def test_a_checkpoint_of_a_pretrained_network_downloads_nothing(compose, stored_weights, tmp_path, monkeypatch):
    stored_weights("mobilenet_v3_small")
    cfg = compose("model=torchvision", "model.net.pretrained=true")
    classifier = build_model(cfg, spec(3, 32)).eval()
    data_spec, config = classifier.data_spec.to_dict(), plain(cfg)
    torch.save({"state_dict": classifier.state_dict(), "config": config, "data_spec": data_spec}, tmp_path / "a.ckpt")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", None)
    again = read_checkpoint(tmp_path / "a.ckpt").build_model()
    image = noise(2, 3, 32)
    torch.testing.assert_close(again(image), classifier(image))


def test_an_unknown_network_of_torchvision_names_those_that_exist(compose):
    with pytest.raises(ConfigError, match=r"name=resnet99 does not exist\. Allowed: alexnet, .*Try model\.net\.name="):
        build_model(compose("model=torchvision", "model.net.name=resnet99"), spec())


def test_only_a_resnet_has_a_stem_for_small_images(compose):
    net = build_model(compose("model=resnet18"), spec(3, 32)).net.net
    assert net.maxpool(net.conv1(torch.zeros(1, 3, 32, 32))).shape == (1, 64, 32, 32)
    with pytest.raises(ConfigError, match="small_images fits ResNets, not mobilenet_v3_small"):
        build_model(compose("model=torchvision", "model.net.small_images=true"), spec())
