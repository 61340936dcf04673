"""Archives that a user must get, and the format of the corpus."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from tests.support.image_files import write_imagenet
from workflow.bench import fetch
from workflow.bench.data import imagenet
from workflow.bench.data.vision import datasets
from workflow.bench.downloads.landing import INSTALL, unpack_imagenet, write_articles
from workflow.bench.downloads.transfer import TransferError
from workflow.bench.support.config import ROOT

CLASSES, TRAIN, VALIDATION = 3, 2, 2
ARCHIVES = {key: name for key, (name, _) in datasets.imagenet.ARCHIVE_META.items()}


def tar(files: dict[str, bytes], mode: Literal["w:", "w:gz"] = "w:") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.JPEG"))}


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ImageNet's folder with its three archives in their published layout: a tar of tars, one of all validation images,
    and the development kit, which names the class of each; ``<folder>/../unpacked`` has the images by class."""
    monkeypatch.setenv("MKOR_DATA", str(tmp_path / "data"))
    write_imagenet(tmp_path / "unpacked", classes=CLASSES, train=TRAIN, validation=VALIDATION)
    images = tmp_path / "unpacked" / "imagenet"
    classes = sorted(path.name for path in (images / "train").iterdir())
    # The validation images of all classes are numbered in turns: 1 of class 0, 2 of class 1, ...
    pictures = [(label, images / "val" / classes[label]) for _ in range(VALIDATION) for label in range(CLASSES)]
    validation = {
        f"ILSVRC2012_val_{n:08}.JPEG": sorted(folder.iterdir())[n // CLASSES].read_bytes()
        for n, (_, folder) in enumerate(pictures)
    }
    kinds = [("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "i4")]
    names = [(label + 1, name, f"class {label}", "x", 0) for label, name in enumerate(classes)]
    meta = io.BytesIO()
    savemat(meta, {"synsets": np.array([*names, (CLASSES + 1, "n99999999", "parent", "x", 3)], dtype=kinds)})
    truth = "".join(f"{label + 1}\n" for label, _ in pictures).encode()
    kit = {"data/meta.mat": meta.getvalue(), "data/ILSVRC2012_validation_ground_truth.txt": truth}
    archives = {
        "train": tar({f"{name}.tar": tar(contents(images / "train" / name)) for name in classes}),
        "val": tar(validation),
        "devkit": tar({f"ILSVRC2012_devkit_t12/{name}": data for name, data in kit.items()}, "w:gz"),
    }
    folder = tmp_path / "data" / "imagenet"
    folder.mkdir(parents=True)
    for key, data in archives.items():
        (folder / ARCHIVES[key]).write_bytes(data)
    sums = {key: (ARCHIVES[key], hashlib.md5(data).hexdigest()) for key, data in archives.items()}
    monkeypatch.setattr(datasets.imagenet, "ARCHIVE_META", sums)
    return folder


def test_imagenet_s_archives_are_unpacked_into_classes(registered, monkeypatch, capsys):
    """Truth: the folders before they were packed, by the class of each image."""
    assert fetch.main(["--what", "imagenet"]) == 0
    assert f"imagenet: in {registered}\n" in capsys.readouterr().out
    monkeypatch.setattr(imagenet, "CLASSES", CLASSES)
    data = imagenet.load()
    assert (len(data.train), len(data.validation)) == (CLASSES * TRAIN, CLASSES * VALIDATION)
    before = registered.parents[1] / "unpacked" / "imagenet"
    assert contents(registered / "train") == contents(before / "train")
    for label, folder in enumerate(sorted((before / "val").iterdir())):
        images = sorted(path.read_bytes() for path in folder.iterdir())
        found = [data.validation.path(n).read_bytes() for n, each in enumerate(data.validation.labels) if each == label]
        assert sorted(found) == images


def test_imagenet_is_named_with_both_steps_while_an_archive_is_missing(registered, capsys):
    (registered / ARCHIVES["val"]).unlink()
    assert fetch.main(["--what", "imagenet"]) == 0
    said = capsys.readouterr().out
    assert "imagenet cannot be downloaded freely (terms of access of image-net.org" in said
    assert (
        f"  1. register at https://image-net.org/download.php and put the files of ILSVRC 2012 into {registered}: "
        in said
    )
    assert "  2. python -m workflow.bench.fetch --tier single_gpu --what imagenet " in said
    assert not (registered / "train").exists()


def test_a_damaged_archive_of_imagenet_is_one_line_and_unpacks_nothing(registered, capsys):
    with (registered / ARCHIVES["train"]).open("ab") as file:
        file.write(b"x")
    assert fetch.main(["--what", "imagenet"]) == 1
    assert "imagenet: ImageNet: The archive ILSVRC2012_img_train.tar is not present" in capsys.readouterr().err
    assert not (registered / "train").exists()


def test_an_interrupted_unpacking_of_imagenet_starts_anew(registered):
    """Its folder has another name until it is whole."""
    (registered / "train.unfinished" / "n00000000").mkdir(parents=True)
    (registered / "train.unfinished" / "n00000000" / "half.JPEG").write_bytes(b"x")
    unpack_imagenet(registered)
    assert "half.JPEG" not in contents(registered / "train")
    assert sorted(path.name for path in registered.iterdir() if path.is_dir()) == ["train", "val"]


def test_a_parquet_file_becomes_text(tmp_path):
    """The true format, where PyArrow is installed (the extra ``corpus``)."""
    pytest.importorskip("pyarrow")
    articles = ["A.\n\nB é.", "", "C."]
    pd.DataFrame({"id": ["1", "2", "3"], "url": "u", "title": "t", "text": articles}).to_parquet(tmp_path / "a.parquet")
    write_articles(tmp_path / "a.parquet", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "A.\nB é.\n\nC.\n\n"
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no such file")
    with pytest.raises(TransferError, match=r"^b\.parquet: no Parquet file with a column 'text': "):
        write_articles(tmp_path / "b.parquet", tmp_path / "b.txt")
    pd.DataFrame({"title": ["t"]}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(TransferError, match=r"^c\.parquet: no Parquet file with a column 'text': "):
        write_articles(tmp_path / "c.parquet", tmp_path / "c.txt")
    assert [path.name for path in tmp_path.glob("*.txt")] == ["a.txt"]


def test_the_command_that_installs_pyarrow_is_the_extra():
    assert f'corpus = ["{INSTALL.removeprefix("pip install ")}"]' in (ROOT / "pyproject.toml").read_text()
