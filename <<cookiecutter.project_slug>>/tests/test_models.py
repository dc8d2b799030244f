"""Every shipped network learns, fits its data's specification and carries its own preprocessing."""

import math
import sys
from pathlib import Path

import pytest
import torch
import torchvision
from lightning import Callback, Trainer
from omegaconf import OmegaConf
from sklearn.metrics import f1_score
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from << cookiecutter.package_name >>.building import build, build_model
from << cookiecutter.package_name >>.checkpoints import read_checkpoint
from << cookiecutter.package_name >>.configuration import CONFIG_DIR, ConfigError, plain
from << cookiecutter.package_name >>.data.digits import DigitsDataModule, digit_images
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.machine import fit_to_machine
from << cookiecutter.package_name >>.models import networks
from << cookiecutter.package_name >>.models.preprocess import Preprocess
from << cookiecutter.package_name >>.models.stage_metrics import StageMetrics
from << cookiecutter.package_name >>.models.switches import switch_on
from << cookiecutter.package_name >>.training import check_image_size

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


# Loss and metrics out of the configuration.


def test_metrics_are_those_of_all_samples_however_they_were_batched():
    generator = torch.Generator().manual_seed(0)
    logits, label = torch.randn(210, 6, generator=generator), torch.randint(0, 6, (210,), generator=generator)
    measured = StageMetrics({"acc": MulticlassAccuracy(6, average="micro"), "f1": MulticlassF1Score(6)})
    # More batches than are handed over at a time, and a last one that is smaller.
    for batch in (*torch.arange(210).split(10)[:-1], torch.arange(200, 203), torch.arange(203, 210)):
        measured.update(cross_entropy(logits[batch], label[batch]), logits[batch], label[batch])
    got = {name: metric.compute().item() for name, metric in measured.compute().items()}
    right = logits.argmax(1) == label
    assert got["loss"] == pytest.approx(cross_entropy(logits, label).item(), abs=1e-6)
    assert got["acc"] == pytest.approx(right.float().mean().item(), abs=1e-6)
    assert got["f1"] == pytest.approx(f1_score(label, logits.argmax(1), average="macro"), abs=1e-6)


def test_a_loss_that_is_no_number_is_kept():
    measured = StageMetrics({})
    measured.update(torch.tensor(float("nan")), torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))
    assert math.isnan(measured.compute()["loss"].compute().item())


def test_metrics_are_chosen_in_the_configuration(compose):
    added = "+model.metrics.recall={_target_:torchmetrics.classification.MulticlassRecall}"
    bare = build_model(compose("model.metrics=null", "model.train_metrics=[]"), spec())
    assert set(bare.val_metrics.all) == {"loss"}
    built = build_model(compose("model.metrics.ece=null", added, "model.train_metrics=[acc,recall]"), spec())
    assert set(built.train_metrics.all) == {"loss", "acc", "recall"}
    assert set(built.val_metrics.all) == set(built.test_metrics.all) == {"loss", "acc", "f1", "top5", "recall"}


@pytest.mark.parametrize(("classes", "expected"), [(5, False), (6, True)])
def test_the_best_five_are_measured_where_there_are_more_classes(classes, expected, compose):
    assert ("val/top5" in build_model(compose(), spec(classes=classes)).metric_names) is expected


def test_label_smoothing_reaches_the_loss(compose):
    loss = build_model(compose("model.loss.label_smoothing=0.1"), spec()).loss
    logits, label = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0])
    log_probability = torch.log_softmax(logits, dim=1)[0]
    assert loss(logits, label).item() == pytest.approx(
        (-0.9 * log_probability[0] - 0.1 * log_probability.mean()).item()
    )


def test_class_weights_change_the_training_loss_alone(compose):
    classifier = build_model(compose(), spec(classes=2))
    keys = classifier.state_dict().keys()
    classifier.weigh_classes(torch.tensor([3.0, 1.0]))
    logits, label = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
    losses = cross_entropy(logits, label, reduction="none")
    # Both samples are of one class: weights divide themselves out.
    assert classifier.train_loss(logits, label).item() == pytest.approx(losses.mean().item())
    label = torch.tensor([0, 1])
    losses = cross_entropy(logits * torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), label, reduction="none")
    weighted = classifier.train_loss(logits * torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), label)
    assert weighted.item() == pytest.approx(((3 * losses[0] + losses[1]) / 4).item())
    assert classifier.loss.weight is None
    assert classifier.state_dict().keys() == keys
    classifier.loss = torch.nn.MSELoss()
    with pytest.raises(ConfigError, match="MSELoss has none"):
        classifier.weigh_classes(torch.ones(2))


@pytest.mark.parametrize("alpha", ["mixup_alpha", "cutmix_alpha"])
def test_mixed_images_have_labels_in_the_same_proportion(alpha, compose):
    torch.manual_seed(0)
    classifier = build_model(compose(f"model.{alpha}=1.0"), spec(classes=2))
    # Class 0 is black and class 1 is white: the share of white in a mixed image is the label of class 1.
    image, label = torch.zeros(8, 1, 8, 8), torch.tensor([0, 1] * 4)
    image[1::2] = 1.0
    mixed, target = classifier.mix(image, label)
    torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), target[:, 1])
    torch.testing.assert_close(target.sum(dim=1), torch.ones(8))
    assert ((target[:, 1] > 0) & (target[:, 1] < 1)).any()


def test_with_both_mixes_each_batch_draws_one(compose):
    classifier = build_model(compose("model.mixup_alpha=0.2", "model.cutmix_alpha=1.0"), spec())
    assert [type(mix).__name__ for mix in classifier.mix.transforms] == ["MixUp", "CutMix"]
    assert build_model(compose(), spec()).mix is None


# Switches.


def trained_step(classifier, images, labels):
    """Give gradients and buffers after one training step's forward and backward pass."""
    classifier.train()
    classifier.loss(classifier(images), labels).backward()
    wrapped = "_checkpoint_wrapped_module."
    gradients = {name.replace(wrapped, ""): parameter.grad for name, parameter in classifier.named_parameters()}
    return gradients, {name: value for name, value in classifier.state_dict().items() if "num_batches" not in name}


@pytest.mark.parametrize(
    ("model", "image_size"),
    [("model=cnn", 8), ("model=resnet18", 8), ("model=torchvision", 32)],
)
def test_gradient_checkpointing_changes_no_gradient_and_no_statistic(model, image_size, compose):
    overrides = [*model.split(), *(["model.net.dropout=0.0"] if model == "model=cnn" else [])]
    steps, calls = [], []
    for _ in range(2):
        torch.manual_seed(0)
        cfg = compose(
            *overrides, f"model.gradient_checkpointing={str(bool(steps)).lower()}", "model.channels_last=false"
        )
        classifier = build_model(cfg, spec(3, image_size, classes=4))
        switch_on(classifier, cfg.model)
        linear_or_conv = [m for m in classifier.net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
        calls.append(0)
        for module in linear_or_conv:
            module.register_forward_hook(lambda *_: calls.__setitem__(-1, calls[-1] + 1))
        steps.append(trained_step(classifier, noise(4, 3, image_size), torch.arange(4)))
    # Activations were computed a second time.
    assert calls[1] > calls[0] * 1.4
    for plain_part, again in zip(*steps, strict=True):
        assert plain_part.keys() == again.keys()
        for name, value in plain_part.items():
            torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("model", "name"), [("model=mlp", "MLP"), ("model=torchvision model.net.name=vgg11", "vgg11")])
def test_a_network_without_blocks_refuses_gradient_checkpointing_by_name(model, name, compose):
    cfg = compose(*model.split(), "model.gradient_checkpointing=true", "model.channels_last=false")
    message = (
        rf"model\.gradient_checkpointing needs blocks .*; {name} has none\. Try model\.gradient_checkpointing=false"
    )
    with pytest.raises(ConfigError, match=message):
        switch_on(build_model(cfg, spec(3, 32)), cfg.model)


def test_channels_last_changes_the_layout_alone(compose):
    cfg = compose("model.channels_last=true")
    classifier = build_model(cfg, spec(3, 8)).eval()
    before = classifier(noise(2, 3, 8))
    switch_on(classifier, cfg.model)
    assert classifier.net.features[1][1].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(classifier(noise(2, 3, 8)), before, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_weights_go_from_a_compiled_network_to_a_plain_one_and_back(compose):
    torch.manual_seed(0)
    cfg = compose("model=mlp", "model.compile=true", "model.channels_last=false")
    compiled, plain_one = build_model(cfg, spec()), build_model(cfg, spec())
    switch_on(compiled, cfg.model)
    assert compiled.state_dict().keys() == plain_one.state_dict().keys()
    image = noise(4, 1, 8)
    plain_one.load_state_dict(compiled.state_dict(), strict=True)
    torch.testing.assert_close(compiled.eval()(image), plain_one.eval()(image))
    assert compiled.net._compiled_call_impl is not None
    again = build_model(cfg, spec())
    compiled.load_state_dict(again.state_dict(), strict=True)
    torch.testing.assert_close(compiled(image), again.eval()(image))


def fit(classifier, epochs, **settings):
    """Train on a few batches and give the weights and statistics after each epoch."""
    states = []

    class Note(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            states.append({name: value.clone() for name, value in pl_module.state_dict().items()})

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    datamodule = DigitsDataModule(batch_size=64, val_fraction=0.15, test_fraction=0.2)
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, limit_train_batches=2, limit_val_batches=1, callbacks=[Note()],
        use_distributed_sampler=False, **quiet, **settings,
    )  # fmt: skip
    trainer.fit(classifier, datamodule=datamodule)
    return states


def changed(before, after):
    return {
        name.split(".")[1] for name in before if name.startswith("net.") and not torch.equal(before[name], after[name])
    }


def test_a_frozen_backbone_keeps_weights_and_statistics(compose):
    classifier = build_model(fit_to_machine(compose("model.freeze_backbone=true")), spec())
    start = {name: value.clone() for name, value in classifier.state_dict().items()}
    assert changed(start, fit(classifier, 2)[-1]) == {"head"}


def test_a_backbone_is_unfrozen_at_its_epoch(compose):
    cfg = fit_to_machine(compose("model.freeze_backbone=true", "model.unfreeze_epoch=2"))
    classifier = build_model(cfg, spec())
    start = {name: value.clone() for name, value in classifier.state_dict().items()}
    first, second, third = fit(classifier, 3)
    assert changed(start, first) == changed(first, second) == {"head"}
    assert changed(second, third) == {"head", "features"}


def test_every_shipped_network_has_a_head(compose):
    for model in MODELS:
        assert build_model(compose(f"model={model}", "model.freeze_backbone=true"), spec()).net.head is not None


def test_a_network_without_a_head_cannot_be_frozen(compose):
    cfg = compose("model=mlp", "model.freeze_backbone=true")
    cfg.model.net = {"_target_": f"{__name__}.Headless"}
    with pytest.raises(
        ConfigError, match=r"model\.freeze_backbone needs a network with a head; Headless has none\. Try"
    ):
        build_model(cfg, spec())


class Headless(torch.nn.Flatten):
    def __init__(self, data_spec):
        super().__init__()


@pytest.fixture
def stored_checkpoint(compose, tmp_path):
    """Write the checkpoint of a fresh cnn for ten classes."""
    torch.manual_seed(7)
    cfg = compose()
    classifier = build_model(cfg, spec(classes=10))
    content = {"state_dict": classifier.state_dict(), "config": plain(cfg), "data_spec": spec(classes=10).to_dict()}
    torch.save(content, tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt", classifier


def started_from(path, compose, data_spec, *overrides):
    cfg = compose(f"model.init_from='{path}'", "model.channels_last=false", *overrides)
    classifier = build_model(cfg, data_spec)
    switch_on(classifier, cfg.model)
    return classifier


def test_a_run_starts_from_the_weights_of_a_checkpoint(stored_checkpoint, compose):
    path, given = stored_checkpoint
    started = started_from(path, compose, spec())
    assert all(torch.equal(value, given.state_dict()[name]) for name, value in started.state_dict().items())


def test_other_classes_get_a_new_head_and_the_log_says_so(stored_checkpoint, compose, caplog):
    path, given = stored_checkpoint
    with caplog.at_level("INFO"):
        started = started_from(path, compose, spec(classes=3))
    assert torch.equal(started.net.features[0][0].weight, given.net.features[0][0].weight)
    assert started.net.head[1].weight.shape == (3, 128)
    assert "with a new head" in caplog.text


def test_weights_of_another_network_are_refused(stored_checkpoint, compose):
    path, _ = stored_checkpoint
    with pytest.raises(ConfigError, match=r"holds another network: net\.features\S+ differs, and only the head may"):
        started_from(path, compose, spec(), "model=mlp")
    with pytest.raises(ConfigError, match=r"net\.features\.0\.0\.weight differs"):
        started_from(path, compose, spec(channels=3))


def test_a_checkpoint_builds_a_plain_network_whatever_switches_were_on(compose, tmp_path):
    cfg = compose("model.compile=true", "model.gradient_checkpointing=true", "model.init_from=gone.ckpt")
    content = {"state_dict": build_model(cfg, spec()).state_dict(), "config": plain(cfg), "data_spec": spec().to_dict()}
    torch.save(content, tmp_path / "a.ckpt")
    built = read_checkpoint(tmp_path / "a.ckpt").build_model()
    assert built.net._compiled_call_impl is None
    assert not any("_checkpoint" in name for name, _ in built.named_modules())


# What the smaller ones show already.
LARGE = ("efficientnet_v2_s", "googlenet", "maxvit_t", "resnext50_32x4d", "swin_v2_t", "wide_resnet50_2")
FAMILIES = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 "
    "mobilenet_v2 mobilenet_v3_small regnet_x_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_1 swin_t "
    "swin_v2_t vgg11 vit_b_32 wide_resnet50_2"
)


def test_one_of_each_family_of_torchvision_is_listed():
    families = {torchvision.models.get_model_builder(name).__module__ for name in FAMILIES.split()}
    assert families == {
        torchvision.models.get_model_builder(name).__module__
        for name in torchvision.models.list_models(module=torchvision.models)
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in FAMILIES.split()]
)
def test_networks_of_each_family_of_torchvision_train_on_any_classes(name, compose):
    described = {**compose("model=torchvision").model.net, "name": name}
    # Shapes alone, without values: some of these have a hundred million weights.
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        net = build(OmegaConf.create(described), data_spec=spec(1, 224, classes=3))
        assert net.train()(torch.zeros(2, 1, 224, 224)).shape == (2, 3)
    in_head = sum(parameter.numel() for parameter in net.head.parameters())
    assert 0 < in_head < sum(parameter.numel() for parameter in net.parameters()) / 2


def test_a_vision_transformer_is_built_for_the_size_of_the_images(compose):
    net = build_model(compose("model=torchvision", "model.net.name=vit_b_32"), spec(1, 64)).net.net
    assert net.image_size == 64


# Networks of timm.


def test_a_network_of_timm_learns_other_classes_and_has_a_head(compose):
    classifier = build_model(compose("model=timm"), spec(1, 32, classes=4))
    assert classifier(noise(2, 1, 32)).shape == (2, 4)
    assert classifier.net.head.weight.shape[0] == 4


def test_a_transformer_of_timm_is_built_for_the_size_of_the_images(compose):
    classifier = build_model(compose("model=timm", "model.net.name=vit_tiny_patch16_224"), spec(1, 32, classes=4))
    assert classifier(noise(2, 1, 32)).shape == (2, 4)


def test_an_unknown_network_of_timm_names_those_near_it(compose):
    with pytest.raises(
        ConfigError,
        match=r"name=mobilenetv3_small_05 does not exist in timm\. Near it: .*mobilenetv3_small_050.*Try model",
    ):
        build_model(compose("model=timm", "model.net.name=mobilenetv3_small_05"), spec())


def test_a_missing_timm_says_what_to_install(compose, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"needs the package timm, which is not installed\. Type pip install timm"):
        build_model(compose("model=timm"), spec())


def test_a_network_that_cannot_take_the_images_is_refused(compose):
    with pytest.raises(ConfigError, match=r"does not take images of 1 x 8 x 8: .* Try model=cnn"):
        check_image_size(build_model(compose("model=torchvision", "model.net.name=alexnet"), spec()))
