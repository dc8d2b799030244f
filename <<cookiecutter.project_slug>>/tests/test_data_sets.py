"""Sets that torchvision reads, from small files in the real formats: complete, missing, damaged and read-only."""

import gzip
import hashlib
import pickle
import struct
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import datasets

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data import torchvision_sets
from << cookiecutter.package_name >>.data.checks import check_splits
from << cookiecutter.package_name >>.data.loading import InMemoryImages
from << cookiecutter.package_name >>.data.torchvision_sets import TorchvisionDataModule


def grey(split, count):
    """Give images and labels of which every class has two bright rows of its own."""
    labels = np.arange(count, dtype=np.uint8) % 10
    images = np.random.default_rng(split == "train").integers(0, 50, (count, 28, 28), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label : 2 * label + 2] += 200
    return images, labels


def idx(array):
    """Write an array of bytes in MNIST's file format."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def mnist_files():
    """Give the content of MNIST's four files, 200 images to train on and 50 to test on."""
    files = {}
    for prefix, split, count in (("train", "train", 200), ("t10k", "test", 50)):
        images, labels = grey(split, count)
        files[f"{prefix}-images-idx3-ubyte"] = idx(images)
        files[f"{prefix}-labels-idx1-ubyte"] = idx(labels)
    return files


class Served(SimpleHTTPRequestHandler):
    def log_message(self, *message):
        pass


@pytest.fixture
def web(tmp_path):
    """Serve a folder on this machine, in place of the network; give the folder and its address."""
    folder = tmp_path / "server"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def server(mnist_files, web, monkeypatch):
    """Offer MNIST's archives."""
    folder, address = web
    resources = []
    for name, content in mnist_files.items():
        archive = folder / f"{name}.gz"
        archive.write_bytes(gzip.compress(content, mtime=0))
        resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
    monkeypatch.setattr(datasets.MNIST, "mirrors", [f"{address}/"])
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    return folder


@pytest.fixture
def no_network(monkeypatch):
    """Let every download fail, after it was counted."""
    tried = []

    def fail(url, *arguments, **options):
        tried.append(url)
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    return tried


def complete(root, files):
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / name).write_bytes(content)
    return root


def ready(root, name="mnist", **settings):
    datamodule = TorchvisionDataModule(name=name, root=str(root), batch_size=16, **settings)
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def test_the_official_test_images_stay_the_test_split(mnist_files, no_network, tmp_path):
    datamodule = ready(complete(tmp_path / "data", mnist_files), val_fraction=0.1)
    assert {name: len(split) for name, split in datamodule.splits.items()} == {"train": 180, "val": 20, "test": 50}
    images, labels = grey("test", 50)
    assert np.array_equal(datamodule.splits["test"].images[:, 0], images)
    assert np.array_equal(datamodule.splits["test"].labels, labels)
    assert np.bincount(datamodule.splits["val"].labels).tolist() == [2] * 10
    spec = datamodule.data_spec
    assert (spec.num_classes, spec.channels, spec.image_size) == (10, 1, 28)
    assert spec.class_names[3] == "3 - three"
    batch, _ = next(iter(datamodule.train_dataloader()))
    assert (batch.shape, batch.dtype) == ((16, 1, 28, 28), torch.uint8)
    assert no_network == []


def test_a_complete_folder_may_be_read_only(mnist_files, no_network, tmp_path):
    root = complete(tmp_path / "data", mnist_files)
    before = sorted(root.rglob("*"))
    for folder in (root, root / "MNIST", root / "MNIST" / "raw"):
        folder.chmod(0o555)
    ready(root)
    assert sorted(root.rglob("*")) == before


def test_what_is_missing_is_downloaded_and_unpacked(server, mnist_files, tmp_path):
    ready(tmp_path / "data")
    raw = tmp_path / "data" / "MNIST" / "raw"
    assert {file.name: file.read_bytes() for file in raw.iterdir()} == mnist_files
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".lock", "MNIST"]


def test_archives_put_there_by_hand_are_unpacked_without_network(server, no_network, mnist_files, tmp_path):
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for archive in server.iterdir():
        (raw / archive.name).write_bytes(archive.read_bytes())
    assert len(ready(tmp_path / "data").splits["test"]) == 50
    assert no_network == []


def test_several_processes_download_once(server, monkeypatch, tmp_path):
    downloads = []
    download = torchvision_sets.download
    monkeypatch.setattr(torchvision_sets, "download", lambda *where: (downloads.append(where), download(*where)))
    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(lambda _: len(ready(tmp_path / "data").splits["train"]), range(4)))
    assert sizes == [170] * 4
    assert len(downloads) == 1


def test_a_download_that_was_killed_half_way_is_started_again(server, monkeypatch, mnist_files, tmp_path):
    unpack = datasets.mnist.download_and_extract_archive

    def killed(url, download_root, **options):
        unpack(url, download_root, **options)
        # So far it came: one file is written in part, the others are not there.
        whole = next(file for file in Path(download_root).iterdir() if file.suffix != ".gz")
        whole.write_bytes(whole.read_bytes()[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(datasets.mnist, "download_and_extract_archive", killed)
        with pytest.raises(KeyboardInterrupt):
            ready(tmp_path / "data")
    assert not (tmp_path / "data" / "MNIST").exists()
    ready(tmp_path / "data")
    raw = tmp_path / "data" / "MNIST" / "raw"
    assert {file.name: file.read_bytes() for file in raw.iterdir()} == mnist_files


def test_without_network_the_files_the_folder_and_the_manual_way_are_named(no_network, here, tmp_path):
    done = here("train", "data=mnist", "data.root=sets", "export=null", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"mnist is not complete in {tmp_path / 'sets'}: MNIST/raw/train-images-idx3-ubyte, " in done.stderr
    assert "no route to host" in done.stderr
    for archive, url in torchvision_sets.archives("mnist").items():
        assert f"{url} as {tmp_path / 'sets' / archive}" in done.stderr
    assert "Try data.root=DIR" in done.stderr
    assert no_network != []


def test_a_folder_that_cannot_be_written_is_named(no_network, tmp_path):
    (tmp_path / "data").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match=r"mnist is not complete in .*data: .*File exists"):
        ready(tmp_path / "data")


@pytest.mark.parametrize("damage", ["cut off", "empty", "text", "labels of other images"])
def test_a_damaged_file_is_refused_with_its_folder(mnist_files, no_network, damage, tmp_path):
    files = dict(mnist_files)
    if damage == "labels of other images":
        files["train-labels-idx1-ubyte"] = files["t10k-labels-idx1-ubyte"]
    else:
        whole = files["train-images-idx3-ubyte"]
        files["train-images-idx3-ubyte"] = {"cut off": whole[:-100], "empty": b"", "text": b"<html>"}[damage]
    with pytest.raises(ConfigError, match=r"mnist in .*data/MNIST/raw cannot be read: .*Delete that folder"):
        ready(complete(tmp_path / "data", files))


def test_a_label_out_of_range_is_refused(mnist_files, no_network, tmp_path):
    labels = grey("train", 200)[1]
    labels[7] = 10
    files = {**mnist_files, "train-labels-idx1-ubyte": idx(labels)}
    with pytest.raises(ConfigError, match=r"holds labels from 0 to 10\. Allowed for 10 classes: 0 to 9\."):
        ready(complete(tmp_path / "data", files))


@pytest.fixture
def cifar(web, monkeypatch, request):
    """Offer small files in CIFAR's format as an archive; give the set and the pixels of its test images."""
    kind, count = request.param, 40
    rng = np.random.default_rng(0)
    served, address = web
    folder = served / kind.base_folder
    folder.mkdir()
    names = [f"class {number}" for number in range(10)]
    lists = {"train_list": [], "test_list": []}
    for split, files in lists.items():
        for name, _ in getattr(kind, split):
            pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
            key = "labels" if kind is datasets.CIFAR10 else "fine_labels"
            content = pickle.dumps({"data": pixels, key: [position % 10 for position in range(count)]})
            (folder / name).write_bytes(content)
            files.append([name, hashlib.md5(content).hexdigest()])
    meta = pickle.dumps({kind.meta["key"]: names})
    (folder / kind.meta["filename"]).write_bytes(meta)
    archive = served / kind.filename
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, kind.base_folder)
    monkeypatch.setattr(kind, "train_list", lists["train_list"])
    monkeypatch.setattr(kind, "test_list", lists["test_list"])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": hashlib.md5(meta).hexdigest()})
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(kind, "url", f"{address}/{kind.filename}")
    return kind, pixels


@pytest.mark.parametrize("cifar", [datasets.CIFAR10, datasets.CIFAR100], indirect=True)
def test_cifar_is_downloaded_once_and_read_in_its_colours(cifar, monkeypatch, tmp_path):
    kind, pixels = cifar
    name = {datasets.CIFAR10: "cifar10", datasets.CIFAR100: "cifar100"}[kind]
    for _ in range(2):
        datamodule = ready(tmp_path / "data", name=name)
        # The second time nothing is downloaded any more.
        monkeypatch.setattr(kind, "url", "http://127.0.0.1:9/nowhere")
    images, labels = datamodule.splits["test"].images, datamodule.splits["test"].labels
    assert np.array_equal(images, pixels.reshape(-1, 3, 32, 32))
    assert labels.tolist() == [position % 10 for position in range(40)]
    spec = datamodule.data_spec
    assert (spec.class_names[3], spec.channels, spec.image_size, len(spec.mean)) == ("class 3", 3, 32, 3)


@pytest.mark.parametrize("cifar", [datasets.CIFAR10], indirect=True)
def test_an_altered_file_of_cifar_is_not_unpickled(cifar, tmp_path):
    kind, _ = cifar
    ready(tmp_path / "data", name="cifar10")
    (tmp_path / "data" / kind.base_folder / "test_batch").write_bytes(b"altered")
    with pytest.raises(ConfigError, match=r"cifar10 in .*cifar-10-batches-py cannot be read: .*corrupted"):
        ready(tmp_path / "data", name="cifar10")


def test_a_network_learns_a_set_and_its_run_can_be_evaluated(mnist_files, no_network, here, tmp_path):
    root = complete(tmp_path / "data", mnist_files)
    run = tmp_path / "run"
    # The loggers and the export have tests of their own.
    overrides = ["model=mlp", "trainer.max_epochs=5", "data.batch_size=16", "logger=null", "export=null"]
    done = here("train", "data=mnist", f"data.root={root}", *overrides, f"hydra.run.dir={run}")
    assert done.returncode == 0, done.stderr
    evaluated = here("eval", f"checkpoint={run}", "split=test")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "(50 samples)" in evaluated.stdout
    assert "test/acc 1.0" in evaluated.stdout


def test_too_few_images_for_a_validation_split_are_refused():
    train = InMemoryImages(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.arange(2))
    with pytest.raises(
        ConfigError, match=r"too few images for a val split \(train 2\)\. Add images, or try another share"
    ):
        check_splits({"train": train}, ("a", "b"))
