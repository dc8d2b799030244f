"""Networks of torchvision go through every format that holds a graph, whatever operators they use."""

import sys
from pathlib import Path
from zipfile import ZipFile, is_zipfile

import pytest
import torch

from << cookiecutter.package_name >>.building import build_model
from << cookiecutter.package_name >>.configuration import plain
from << cookiecutter.package_name >>.data.spec import DataSpec
from << cookiecutter.package_name >>.export.writing import ExportSettings, export_model

# Transformers of this kind take images of one size only.
SIDES = {"resnet18": 64, "convnext_tiny": 64, "efficientnet_b0": 64, "vit_b_16": 224, "swin_t": 64}
GRAPHS = ("onnx", "torch_export", "torchscript")


def parts_of(path):
    if not is_zipfile(path):
        yield path.read_bytes()
        return
    with ZipFile(path) as archive:
        yield from (archive.read(name) for name in archive.namelist())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", *SIDES])
def test_a_network_is_exported_to_every_graph_format(name, compose, tmp_path):
    chosen = ["model=cnn"] if name == "cnn" else ["model=torchvision", f"model.net.name={name}"]
    config = compose(*chosen)
    data_spec = DataSpec(("a", "b", "c"), 3, image_size=SIDES.get(name, 32), mean=(0.5,) * 3, std=(0.3,) * 3)
    torch.manual_seed(0)
    model = build_model(config, data_spec)
    model.config = plain(config)
    # Far from uniform, so that another answer shows.
    last = [module for module in model.net.modules() if isinstance(module, torch.nn.Linear)][-1]
    torch.nn.init.normal_(last.weight, std=1)
    settings = ExportSettings(list(GRAPHS), tolerance=1e-4, opset=20, benchmark=False)
    records = export_model(model.eval(), None, settings, tmp_path, metrics={})
    assert [record.get("error") for record in records] == [None] * 3
    assert [record["label_agreement"] for record in records] == [1.0] * 3
    own = (tmp_path, Path(__file__).parents[1], Path(torch.__file__).parent, sys.prefix, Path.home(), "site-packages")
    for record in records:
        for part in parts_of(tmp_path / record["path"]):
            assert [place for place in map(str, own) if place.encode() in part] == []
