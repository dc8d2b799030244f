"""People's own image files: folders and tables, splits that are kept, every kind of file, and clear errors."""

import csv
import os
import pickle
import shutil
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.data.image_files import ImageFilesDataModule
from << cookiecutter.package_name >>.data.images import read_image
from << cookiecutter.package_name >>.data.listing import read_index
from << cookiecutter.package_name >>.inference import predict

COLOURS = {"blau": (30, 60, 200), "grün": (40, 180, 70), "rot": (200, 40, 50)}
SIZE = 12


def picture(colour, number=0):
    """Give a wide picture in a colour with a little noise."""
    noise = np.random.default_rng(number).integers(-20, 20, (SIZE + 4, SIZE + 8, 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture
def photos(tmp_path):
    """Write a folder of three classes, twenty pictures each."""
    root = tmp_path / "my photos"
    for label, colour in COLOURS.items():
        (root / label).mkdir(parents=True)
        for number in range(20):
            picture(colour, number).save(root / label / f"{number:02d}.png")
    return root


def prepared(root=None, **settings):
    given = {"image_size": SIZE, "batch_size": 8, "num_workers": 0, **settings}
    return ImageFilesDataModule(root=str(root) if root else None, **given)


def ready(root=None, **settings):
    datamodule = prepared(root, **settings)
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def paths(datamodule, split):
    return sorted(file.path for file in datamodule.files if file.split == split)


def sizes(datamodule):
    return {name: len(split) for name, split in datamodule.splits.items()}


def test_one_folder_is_split_by_class(photos):
    datamodule = ready(photos, val_fraction=0.2, test_fraction=0.1)
    assert sizes(datamodule) == {"train": 42, "val": 12, "test": 6}
    assert datamodule.data_spec.class_names == ("blau", "grün", "rot")
    for split in datamodule.splits.values():
        assert np.bincount(split.labels).tolist() == [len(split) / 3] * 3
    every = chain.from_iterable(paths(datamodule, split) for split in datamodule.splits)
    assert sorted(every) == sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.png"))


def test_the_split_follows_its_own_seed_and_not_the_place(photos, tmp_path):
    datamodule = ready(photos, split_seed=1, seed=1)
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    assert paths(ready(moved, split_seed=1, seed=2), "test") == paths(datamodule, "test")
    assert paths(ready(photos, split_seed=2), "test") != paths(datamodule, "test")


@pytest.mark.parametrize("given", [("train", "val", "test"), ("train", "val"), ("train", "test"), ("train",)])
def test_folders_named_train_val_and_test_are_kept(photos, given, caplog):
    for split in given:
        (photos / split).mkdir()
    for label in COLOURS:
        for number, path in enumerate(sorted((photos / label).iterdir())):
            path.parent.with_name(given[number % len(given)]).joinpath(label).mkdir(exist_ok=True)
            path.rename(photos / given[number % len(given)] / label / path.name)
        (photos / label).rmdir()
    datamodule = ready(photos, val_fraction=0.2, test_fraction=0.1)
    for split in {"val", "test"} & set(given):
        assert paths(datamodule, split) == sorted(
            path.relative_to(photos).as_posix() for path in (photos / split).rglob("*.png")
        )
    # What is needed and not there is taken out of train; a test split only if nothing was set apart.
    assert set(datamodule.splits) == {"train", "val", *({"test"} if given != ("train", "val") else ())}
    assert sum(sizes(datamodule).values()) == 60
    assert ("no images are kept for testing" in caplog.text) is (given == ("train", "val"))


def test_hidden_and_junk_files_and_folders_are_ignored(photos):
    before = ready(photos)
    for junk in (".git", "__MACOSX", "@eaDir", "rot/.thumbnails", "rot/__MACOSX"):
        (photos / junk).mkdir()
        shutil.copy(photos / "rot" / "00.png", photos / junk / "picture.png")
    for junk in ("Thumbs.db", "rot/Thumbs.db", "rot/._00.png", "rot/notes.txt", "readme.md"):
        (photos / junk).write_text("junk")
    after = ready(photos)
    assert [paths(after, split) for split in after.splits] == [paths(before, split) for split in before.splits]


def test_folders_inside_a_class_belong_to_it_and_links_are_followed(photos, tmp_path):
    (photos / "rot" / "deep" / "er").mkdir(parents=True)
    (photos / "rot" / "00.png").rename(photos / "rot" / "deep" / "er" / "00.png")
    (photos / "rot" / "loop").symlink_to(photos / "rot", target_is_directory=True)
    shutil.move(photos / "blau", tmp_path / "elsewhere")
    (photos / "blau").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    datamodule = ready(photos)
    assert sum(sizes(datamodule).values()) == 60
    assert {file.label for file in datamodule.files if file.path.startswith("rot/")} == {"rot"}


def save_every_kind(folder, colour, label):
    """Write a picture as every kind of file; give the paths, all to be seen in the same colour."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def save(name, image, **options):
        written.append(folder / f"{label} {name}")
        image.save(written[-1], **options)

    rgb = Image.new("RGB", (2 * SIZE, 2 * SIZE), colour)
    for name in ("a.jpg", "b.JPEG", "c.png", "d.PNG", "e.webp", "f.bmp", "g.tif", "h.TIFF"):
        save(name, rgb)
    save("palette.png", rgb.quantize(4))
    save("opaque.png", rgb.convert("RGBA"))
    save("cmyk.tif", rgb.convert("CMYK"))
    save("cmyk.jpg", rgb.convert("CMYK"), quality=95)
    exif = Image.Exif()
    exif[0x0112] = 6
    save("turned.jpg", rgb, exif=exif, quality=95)
    return written


def save_every_grey_kind(folder, brightness, label):
    folder.mkdir(parents=True, exist_ok=True)
    deep = Image.fromarray(np.full((SIZE, SIZE), brightness * 257, dtype=np.uint16))
    grey = Image.new("L", (SIZE, SIZE), brightness)
    layers = Image.merge("LA", (grey, Image.new("L", grey.size, 255)))
    kinds = {"grey.png": grey, "grey.jpg": grey, "16 bit.png": deep, "16 bit.tif": deep, "layers.png": layers}
    for name, image in kinds.items():
        image.save(folder / f"{label} {name}")
    return [folder / f"{label} {name}" for name in kinds]


def test_every_kind_of_file_is_seen_alike(tmp_path):
    for path in save_every_kind(tmp_path, (200, 40, 50), "rot"):
        pixels = read_image(path, SIZE, 3).reshape(3, -1)
        assert np.abs(pixels.mean(1) - (200, 40, 50)).max() < 6, path
    for path in save_every_grey_kind(tmp_path, 180, "grau"):
        assert np.abs(read_image(path, SIZE, 3).astype(int) - 180).max() < 3, path


def test_training_evaluation_prediction_and_export_see_the_same_class_in_every_kind_of_file(here, tmp_path):
    root = tmp_path / "kinds"
    written = []
    for label, colour in COLOURS.items():
        written += save_every_kind(root / label, colour, label)
    for label, brightness in {"dunkel": 50, "hell": 220}.items():
        written += save_every_grey_kind(root / label, brightness, label)
    run = tmp_path / "run"
    size = ("data.image_size=8", "data.batch_size=8", "data.num_workers=0")
    short = ("model=mlp", "model.net.hidden_sizes=[16]", "callbacks=minimal", "logger=null")
    quick = ("trainer.max_epochs=20", "optimizer.lr=0.01")
    done = here("train", "data=image_folder", f"data.root={root}", *size, *short, *quick, f"hydra.run.dir={run}")
    assert done.returncode == 0, done.stderr
    expected = {str(path): path.parent.name for path in written}
    for model in (run, run / "export" / "model.onnx"):
        predict(str(model), [str(root)], tmp_path / "table.csv", kind="csv", top_k=1, batch_size=5)
        with (tmp_path / "table.csv").open(encoding="utf-8") as file:
            assert {row["path"]: row["label"] for row in csv.DictReader(file)} == expected
    for split in ("train", "val", "test"):
        evaluated = here("eval", f"checkpoint={run}", f"split={split}")
        assert f"{split}/acc 1.0000" in evaluated.stdout, evaluated.stdout + evaluated.stderr


@pytest.mark.parametrize("names", [pytest.param(("a", "b", "c"), marks=pytest.mark.slow), ("c", "a", "b")])
def test_separable_colours_are_learned_whatever_the_order_of_class_folders(photos, names, here, tmp_path):
    for label, name in zip(COLOURS, names, strict=True):
        (photos / label).rename(photos / name)
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=2")
    short = ("model=mlp", "trainer.max_epochs=5", "callbacks=minimal", "logger=null", "export=null")
    done = here("train", "data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert "worker" not in done.stderr
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8") as file:
        reached = [float(row["val/acc"]) for row in csv.DictReader(file) if row["val/acc"]]
    assert reached[-1] > 0.95


def test_an_evaluation_sees_the_split_of_its_run(photos, here, tmp_path):
    run = tmp_path / "run"
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=0")
    short = ("model=mlp", "trainer.max_epochs=1", "callbacks=minimal", "logger=null", "export=null")
    here("train", "data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={run}")
    before = read_index(run / "split.csv")
    assert len(before) == 60
    for number in range(30):
        picture(COLOURS["rot"], number).save(photos / "rot" / f"0 new {number}.png")
    done = here("eval", f"checkpoint={run}")
    assert done.returncode == 0, done.stderr
    kept = [file.path for file in before if file.split == "test"]
    assert f"({len(kept)} samples)" in done.stdout
    again = prepared(photos)
    again.read_split(run)
    again.setup()
    assert sorted(again.files) == sorted(before)
    (photos / kept[0]).unlink()
    gone = here("eval", f"checkpoint={run}")
    assert gone.returncode == 2
    assert f"lacks 1 of 60 files of the run's split, such as {kept[0]}" in gone.stderr


def test_paths_are_relative_to_where_they_are_typed_and_kept_absolute(photos, here, tmp_path):
    photos.rename(tmp_path / "my, photos [1]")
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=0")
    short = ("model=mlp", "trainer.max_epochs=1", "callbacks=minimal", "logger=null", "export=null")
    done = here("train", "data=image_folder", "data.root=my, photos [1]", *size, *short, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    (tmp_path / "elsewhere").mkdir()
    evaluated = here("eval", "checkpoint=../run", cwd=tmp_path / "elsewhere")
    assert evaluated.returncode == 0, evaluated.stderr


def test_other_data_than_the_runs_are_split_anew(photos, tmp_path, caplog):
    ready(photos).write_split(tmp_path)
    for path in sorted(photos.rglob("*.png")):
        path.rename(path.with_name(f"other {path.name}"))
    datamodule = prepared(photos)
    datamodule.read_split(tmp_path)
    datamodule.setup()
    assert sum(sizes(datamodule).values()) == 60
    assert "holds none of the files of the run's split: it is split anew" in caplog.text


def test_folds_cover_a_folder_once(photos):
    validated = [paths(ready(photos, n_folds=3, fold=fold, test_fraction=0.0), "val") for fold in range(3)]
    assert sorted(chain.from_iterable(validated)) == sorted(
        path.relative_to(photos).as_posix() for path in photos.rglob("*.png")
    )


@pytest.fixture
def table(photos, tmp_path):
    """Write lines below the header `path,label,split`, with paths relative to the folder of the table."""

    def write(lines, header="path,label,split", encoding="utf-8"):
        index = tmp_path / "index.csv"
        index.write_text("\n".join([header, *lines, ""]), encoding=encoding)
        return index

    return write


def listed(photos, split=lambda number: ""):
    return [
        f"{path.relative_to(photos.parent).as_posix()},{path.parent.name},{split(number)}"
        for number, path in enumerate(sorted(photos.rglob("*.png")))
    ]


def test_a_table_names_files_labels_and_splits(photos, table):
    index = table(listed(photos, lambda number: ("train", "train", "val", "test")[number % 4]), encoding="utf-8-sig")
    datamodule = ready(index=str(index))
    assert sizes(datamodule) == {"train": 30, "val": 15, "test": 15}
    assert datamodule.data_spec.class_names == ("blau", "grün", "rot")
    images, labels = datamodule.splits["test"].__getitems__([0])
    first = paths(datamodule, "test")[0]
    assert np.array_equal(images[0], read_image(photos.parent / first, SIZE, 3))
    assert labels.tolist() == [0]


def test_a_table_without_splits_is_split_like_a_folder(photos, table):
    with_root = ready(photos.parent, index=str(table([line[:-1] for line in listed(photos)], header="path,label")))
    assert [path.removeprefix("my photos/") for path in paths(with_root, "val")] == paths(ready(photos), "val")


def test_a_run_trains_from_a_table(photos, table, here, tmp_path):
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=0")
    short = ("model=mlp", "trainer.max_epochs=1", "callbacks=minimal", "logger=null", "export=null")
    index = table(listed(photos))
    done = here("train", "data=csv", f"data.index={index}", *size, *short, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    # The record of the split is such a table itself.
    again = ready(photos.parent, index=str(tmp_path / "run" / "split.csv"))
    assert sizes(again) == {"train": 42, "val": 9, "test": 9}


@pytest.mark.parametrize(
    ("header", "lines", "message"),
    [
        ("file;class", ["a.png;rot"], r"index\.csv has the columns file;class\. Its lines look like "),
        ("path,label", [], r"index\.csv lists no image\. Its lines look like "),
        ("path,label", ["a.png,"], r"Line 2 of .*index\.csv lacks a path or a label\."),
        ("path,label,split", ["a.png,rot,dev"], r"Line 2 of .* has the split dev\. Allowed: train, val, test, or"),
        ("path,label", ["a.png,rot", "b.png,rot", "a.png,blau"], r"Line 4 of .* names a\.png, as line 2 does"),
        ("path,label", ["a.png,rot", "b.png,blau"], r"2 of 2 files do not exist or are links to nothing, such"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(table, header, lines, message):
    with pytest.raises(ConfigError, match=message):
        ready(index=str(table(lines, header)))


def test_a_table_in_another_encoding_is_named_as_that(table):
    index = table(["a.png,rot"])
    index.write_text(index.read_text(encoding="utf-8"), encoding="utf-16")
    with pytest.raises(ConfigError, match=r"index\.csv is no UTF-8 text\. Save it as CSV in UTF-8\. Its lines look"):
        ready(index=str(index))


def test_a_table_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.index=.*nowhere\.csv cannot be read: .*No such file"):
        ready(index=str(tmp_path / "nowhere.csv"))


def empty_class(root):
    (root / "leer").mkdir()


def single_class(root):
    shutil.rmtree(root / "blau")
    shutil.rmtree(root / "rot")


def class_only_in_val(root):
    for label in COLOURS:
        shutil.copytree(root / label, root / "train" / label)
    shutil.copytree(root / "train", root / "val")
    shutil.rmtree(root / "train" / "rot")
    for label in COLOURS:
        shutil.rmtree(root / label)


def other_folder_beside_train(root):
    shutil.copytree(root / "rot", root / "train" / "rot")


def no_classes(root):
    for label in COLOURS:
        for path in (root / label).iterdir():
            path.rename(root / f"{label} {path.name}")
        (root / label).rmdir()


def dangling_link(root):
    (root / "rot" / "link.png").symlink_to(root / "nothing.png")


def one_image_of_each(root):
    for path in root.rglob("*.png"):
        if path.name != "00.png":
            path.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, r"data\.root=.*my photos does not exist\. A folder of images is allowed\. Try data\.root=DIR"),
        (empty_class, r"class folder .*my photos/leer holds no image\. Allowed: files ending in .*Fill or remove"),
        (single_class, r"one class only, grün, and nothing to tell it from\. .*Add images of another"),
        (class_only_in_val, r"No training image shows rot, but val/rot/00\.png of the val split does"),
        (other_folder_beside_train, r"holds the folder train beside blau, grün, rot\. Allowed beside train: val, test"),
        (no_classes, r"my photos holds no folders with images\. A folder for each class is needed.*data=csv"),
        (dangling_link, r"1 of 61 files do not exist or are links to nothing, such as .*rot/link\.png\. Remove them"),
        (one_image_of_each, r"No training image shows .*, but .*/00\.png of the val split does\. .*Add some of it"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(photos, damage, message):
    damage(photos)
    with pytest.raises(ConfigError, match=message):
        ready(photos)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"root": None}, r"data\.root was not given\. .*Try data\.root=DIR"),
        ({"read_size": 8}, r"data\.read_size=8 is smaller than data\.image_size=12.*Try data\.read_size=14"),
        ({"channels": 4}, r"data\.channels must be 1 for grey or 3 for colour, got 4"),
        ({"test_fraction": 0.9}, r"0\.15 \+ 0\.9 must stay below 0\.95"),
    ],
)
def test_impossible_settings_of_a_folder_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        prepared(**{"root": "photos", **settings})


def test_folds_and_a_validation_folder_exclude_each_other(photos):
    shutil.copytree(photos, photos / "train")
    shutil.copytree(photos / "train", photos / "val")
    for label in COLOURS:
        shutil.rmtree(photos / label)
    with pytest.raises(ConfigError, match=r"data\.n_folds=5 divides the training images, but .* sets files apart"):
        ready(photos, n_folds=5)


def truncate(path):
    path.write_bytes(path.read_bytes()[:60])
    return path


def test_an_unreadable_file_ends_a_run_with_its_name(photos, here, tmp_path):
    broken = truncate(photos / "rot" / "07.png")
    for workers in (0, 1):
        size = (f"data.image_size={SIZE}", "data.batch_size=8", f"data.num_workers={workers}")
        short = ("model=mlp", "trainer.max_epochs=1", "logger=null", "export=null")
        run = tmp_path / f"run {workers}"
        done = here("train", "data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={run}")
        assert done.returncode == 2, done.stderr
        (message,) = done.stderr.strip().splitlines()
        assert message.startswith(f"Error: {broken} cannot be read as an image: ")
        assert message.endswith("Replace or remove the file, or try data.on_error=skip.")


def test_unreadable_files_are_skipped_counted_and_listed(photos, here, tmp_path):
    broken = {truncate(photos / "rot" / f"{number:02d}.png") for number in (3, 7)}
    (photos / "blau" / "link.png").symlink_to(photos / "nothing.png")
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=0", "data.on_error=skip")
    short = ("model=mlp", "trainer.max_epochs=1", "logger=null", "export=null")
    run = tmp_path / "run"
    done = here("train", "data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={run}")
    assert done.returncode == 0, done.stderr
    assert "3 of 61 files cannot be read and are skipped:" in done.stdout
    skipped = [file.path for file in read_index(run / "split.csv") if file.split == "skipped"]
    assert skipped == ["blau/link.png", *sorted(path.relative_to(photos).as_posix() for path in broken)]
    again = prepared(photos, on_error="skip")
    again.read_split(run)
    again.setup()
    assert sum(sizes(again).values()) == 58


@pytest.mark.slow
def test_names_beyond_ascii_work_in_the_c_locale(photos, door, tmp_path):
    (photos / "rot").rename(photos / "röt 漢字")
    size = (f"data.image_size={SIZE}", "data.batch_size=8", "data.num_workers=1")
    short = ("model=mlp", "trainer.max_epochs=1", "logger=null", "export=null")
    run = tmp_path / "run"
    arguments = ("data=image_folder", f"data.root={photos}", *size, *short, f"hydra.run.dir={run}")
    done = door("train", *arguments, LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert {file.label for file in read_index(run / "split.csv")} == {"blau", "grün", "röt 漢字"}


def test_a_class_name_that_is_no_text_is_refused(photos):
    (photos / "rot").rename(photos / os.fsdecode(b"r\xf6t"))
    with pytest.raises(ConfigError, match=r"The class name 'r\\udcf6t' is not valid UTF-8 text\. Rename it\."):
        ready(photos)


def test_training_reads_larger_squares_than_evaluation(photos):
    datamodule = ready(photos, read_size=16)
    (images, _), (val_images, _) = next(iter(datamodule.train_dataloader())), next(iter(datamodule.val_dataloader()))
    assert (images.shape[1:], val_images.shape[1:]) == ((3, 16, 16), (3, 12, 12))
    assert datamodule.data_spec.image_size == 12


def test_workers_and_one_process_serve_the_same_batches(photos):
    alone, shared = ready(photos).train_dataloader(), ready(photos, num_workers=2).train_dataloader()
    for _ in range(2):
        for one, other in zip(alone, shared, strict=True):
            assert all(map(torch.equal, one, other))
    assert shared.persistent_workers


def test_workers_are_as_many_as_cores_and_batches_allow(photos, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(40)), raising=False)
    datamodule = ready(photos, batch_size=1)
    datamodule.num_workers = "auto"
    assert datamodule.train_dataloader().num_workers == 16
    datamodule.batch_size = 12
    assert datamodule.train_dataloader().num_workers == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert datamodule.train_dataloader().num_workers == 1


def test_a_data_set_can_be_sent_to_another_process(photos):
    split = ready(photos).splits["train"]
    copy = pickle.loads(pickle.dumps(split))
    assert all(map(torch.equal, copy.__getitems__([1, 3]), split.__getitems__([1, 3])))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_start_by_any_method(photos, method):
    datamodule = ready(photos, num_workers=2)
    loader = datamodule.train_dataloader()
    other = DataLoader(
        loader.dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=loader.collate_fn,
        num_workers=2,
        multiprocessing_context=method,
    )
    for one, two in zip(loader, other, strict=True):
        assert all(map(torch.equal, one, two))
