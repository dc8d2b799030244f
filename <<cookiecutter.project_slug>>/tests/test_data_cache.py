"""The cache of decoded images: equal to the files, made once, shared, renewed, and never half-written."""

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data import cache
from << cookiecutter.package_name >>.data.image_files import ImageFilesDataModule

SIZE = 12


@pytest.fixture
def photos(tmp_path):
    """Write a folder of two classes, twenty noisy pictures each."""
    root = tmp_path / "my photos"
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (SIZE + 4, SIZE + 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number:02d}.png")
    return root


@pytest.fixture
def ready(photos, tmp_path):
    """Set up the data of the folder, with its cache in a folder of its own."""

    def with_settings(**settings):
        given = {"image_size": SIZE, "batch_size": 8, "num_workers": 0, "cache": True, **settings}
        directory = {"cache_dir": str(tmp_path / "caches")} if given["cache"] else {}
        datamodule = ImageFilesDataModule(root=str(photos), **{**directory, **given})
        datamodule.setup()
        return datamodule

    return with_settings


@pytest.fixture
def decoded(monkeypatch):
    """Count the files that are decoded for a cache."""
    names = []
    read = cache.read_image
    monkeypatch.setattr(cache, "read_image", lambda path, *how: (names.append(path.name), read(path, *how))[1])
    return names


def entries(tmp_path):
    return sorted(path.name for path in (tmp_path / "caches").iterdir() if path.name != ".lock")


def same_batches(one, other):
    loaders = zip(one, other, strict=True)
    return all(torch.equal(*pair) for batches in loaders for pair in zip(*batches, strict=True))


@pytest.mark.parametrize("settings", [{}, {"channels": 1}, {"read_size": 16}])
def test_a_cache_serves_the_batches_of_the_files(ready, settings):
    cached, plain = ready(**settings), ready(cache=False, **settings)
    assert cached.data_spec == plain.data_spec
    for loader in ("train_dataloader", "val_dataloader", "test_dataloader"):
        assert same_batches(getattr(cached, loader)(), getattr(plain, loader)())
    images, _ = next(iter(cached.train_dataloader()))
    assert images.dtype == torch.uint8


def test_later_runs_and_folds_decode_nothing(ready, decoded):
    ready()
    assert len(decoded) == 40
    ready(seed=1, split_seed=1, n_folds=3, fold=2)
    assert len(decoded) == 40


def test_several_processes_make_one_cache(ready, decoded, tmp_path):
    with ThreadPoolExecutor(4) as threads:
        sizes = list(threads.map(lambda _: len(ready().splits["train"]), range(4)))
    assert sizes == [28] * 4
    assert len(decoded) == 40
    assert len(entries(tmp_path)) == 1


def another_file(photos):
    Image.new("RGB", (8, 8)).save(photos / "cat" / "new.png")


def fewer_files(photos):
    (photos / "cat" / "07.png").unlink()


def same_name_and_size(photos):
    path = photos / "cat" / "07.png"
    content = path.read_bytes()
    path.write_bytes(content)
    later = time.time_ns() + 1_000_000_000
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize("change", [another_file, fewer_files, same_name_and_size])
def test_a_change_of_the_folder_renews_the_cache(ready, photos, change, decoded, tmp_path):
    ready()
    (before,) = entries(tmp_path)
    change(photos)
    changed = ready()
    (after,) = entries(tmp_path)
    assert after != before
    assert same_batches(changed.train_dataloader(), ready(cache=False).train_dataloader())


def test_another_size_has_a_cache_of_its_own(ready, decoded, tmp_path):
    ready()
    ready(image_size=8)
    assert len(entries(tmp_path)) == 2
    ready()
    assert len(decoded) == 80


def test_a_cache_that_was_killed_half_way_is_made_anew(ready, monkeypatch, decoded, tmp_path):
    with monkeypatch.context() as patched:
        # What a kill leaves: nothing is tidied up any more.
        patched.setattr(cache.os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        patched.setattr(cache.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            ready()
    (left,) = entries(tmp_path)
    assert left.endswith(".unfinished")
    (tmp_path / "caches" / "of another folder.unfinished").mkdir()
    finished = ready()
    (entry,) = entries(tmp_path)
    assert entry == left.removesuffix(".unfinished")
    assert len(decoded) == 80
    assert same_batches(finished.train_dataloader(), ready(cache=False).train_dataloader())


@pytest.mark.parametrize("damage", ["cut off", "empty", "other"])
def test_a_damaged_cache_is_made_anew(ready, damage, decoded, tmp_path, caplog):
    ready()
    (entry,) = entries(tmp_path)
    file = tmp_path / "caches" / entry / "images.npy"
    whole = file.read_bytes()
    file.write_bytes({"cut off": whole[:-100], "empty": b"", "other": b"no numpy file at all"}[damage])
    ready()
    assert len(decoded) == 80
    assert "is damaged and made anew" in caplog.text
    assert file.read_bytes() == whole


def test_the_disk_it_needs_is_said_before(ready, caplog):
    with caplog.at_level("INFO"):
        ready(image_size=100)
    assert any(line.startswith("cache: 40 images at 100 pixels need 0.00 of ") for line in caplog.messages)


def test_a_disk_without_room_is_refused_before_anything_is_decoded(ready, monkeypatch, decoded, tmp_path):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ConfigError, match=r"needs 0\.00 GB: only 0\.00 GB are free\. Try data\.cache_dir=DIR"):
        ready()
    assert decoded == []
    assert entries(tmp_path) == []


def test_a_disk_that_gets_full_is_reported_and_leaves_nothing(ready, monkeypatch, tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "fsync", full)
    with pytest.raises(ConfigError, match=r"cannot be written to .*caches, .*No space left on device\. Try data"):
        ready()
    assert entries(tmp_path) == []


def test_a_cache_folder_that_cannot_be_written_is_named(ready, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match=r"cache cannot be written to .*file/caches, .*Try data\.cache_dir=DIR"):
        ready(cache_dir=str(tmp_path / "file" / "caches"))


def test_an_unreadable_file_is_named_or_skipped(ready, photos, decoded, tmp_path):
    broken = photos / "dog" / "03.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(ConfigError, match=r"dog/03\.png cannot be read as an image: .*try data\.on_error=skip\."):
        ready()
    assert entries(tmp_path) == []
    decoded.clear()
    skipping = ready(on_error="skip")
    assert len(decoded) == 40
    assert [file.path for file in skipping.files if file.split == "skipped"] == ["dog/03.png"]
    assert sum(map(len, skipping.splits.values())) == 39
    assert same_batches(skipping.train_dataloader(), ready(cache=False, on_error="skip").train_dataloader())
    # The cache is there now, and still the file is not passed over in silence.
    with pytest.raises(ConfigError, match=r"dog/03\.png cannot be read as an image"):
        ready()


def test_another_process_maps_the_cache_instead_of_getting_its_content(ready):
    split = ready(image_size=64).splits["train"]
    sent = pickle.dumps(split)
    assert len(sent) < 5000
    assert all(map(torch.equal, pickle.loads(sent).__getitems__([3, 1]), split.__getitems__([3, 1])))


def test_a_run_trains_from_its_cache(photos, here, tmp_path, project):
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.cache=true")
    short = ("model=mlp", "trainer.max_epochs=1", "callbacks=minimal", "logger=null", "export=null")
    done = here("train", "data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "cache: 40 images at 12 pixels need" in done.stdout
    # By default it lies where the project keeps data.
    assert len(list((project / "data" / "cache").glob("my photos-12-*/images.npy"))) == 1
    done = here("eval", f"checkpoint={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "cache: " not in done.stdout
