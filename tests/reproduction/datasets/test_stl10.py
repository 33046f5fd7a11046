import hashlib
import io
import tarfile

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from lmd.errors import FileError, InputError
from lmd.reproduction.datasets import datasets, fetch, image_data, images

COUNTS = {"train": 3, "test": 2, "unlabeled": 4}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """An STL-10 of nine images."""
    monkeypatch.setattr(images, "STL10_COUNTS", COUNTS)


def pictures(part):
    return np.random.default_rng(len(part)).integers(0, 256, (COUNTS[part], 3, 96, 96), dtype=np.uint8)


def stored(part):
    """As the files have it: column by column."""
    return pictures(part).transpose(0, 1, 3, 2).tobytes()


def archive(parts=tuple(COUNTS)):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as members:
        for part in parts:
            info = tarfile.TarInfo(f"stl10_binary/{part}_X.bin")
            info.size = len(stored(part))
            members.addfile(info, io.BytesIO(stored(part)))
        extra = tarfile.TarInfo("../outside")
        members.addfile(extra, io.BytesIO(b""))
    return buffer.getvalue()


@pytest.mark.parametrize("place", ["stl10", "stl10_binary", "."])
def test_images_are_found_and_upright(tmp_path, monkeypatch, place):
    folder = tmp_path / "data" / place
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(stored(part))
    monkeypatch.setenv("LMD_DATA", str(tmp_path / "data"))
    for data in (image_data("stl10"), image_data(), image_data("stl10", tmp_path / "data")):
        assert data.name == "stl10"
        assert_close(data.train_images, torch.from_numpy(pictures("train")))
        assert_close(data.test_images, torch.from_numpy(pictures("test")))
    assert image_data("photographs").name == "photographs"


def test_from_nothing_to_present(server, own_cache, monkeypatch):
    content = archive()
    (server.folder / images.STL10_ARCHIVE).write_bytes(content)
    monkeypatch.setattr(images, "STL10_SOURCES", (server.address,))
    monkeypatch.setattr(images, "STL10_SHA256", hashlib.sha256(content).hexdigest())
    for _ in range(2):
        assert fetch("stl10") == own_cache / "stl10"
    assert server.requested == [f"/{images.STL10_ARCHIVE}"]
    assert sorted(path.name for path in (own_cache / "stl10").iterdir()) == [
        f"{p}_X.bin" for p in ("test", "train", "unlabeled")
    ]
    assert {dataset.name: dataset.present for dataset in datasets()}["stl10"]
    assert_close(
        torch.from_numpy(images.read_stl10(own_cache / "stl10", "unlabeled").copy()),
        torch.from_numpy(pictures("unlabeled")),
    )
    assert not (own_cache / "outside").exists() and not (own_cache.parent / "outside").exists()


def test_an_archive_without_a_part_is_refused(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(archive(("train",)))
    with pytest.raises(FileError, match=r"^STL-10: got .*test_X\.bin.* expected the genuine archive"):
        images.unpack_stl10(tmp_path / "a.tar.gz", tmp_path / "out")
    (tmp_path / "a.tar.gz").write_bytes(archive()[:-100])
    with pytest.raises(FileError, match=r"^STL-10: got .*expected the genuine archive"):
        images.unpack_stl10(tmp_path / "a.tar.gz", tmp_path / "out")


def test_what_is_missing_or_cut_short_is_said(tmp_path):
    (tmp_path / "train_X.bin").write_bytes(stored("train"))
    with pytest.raises(FileError, match=r"without test_X\.bin, expected all its files; `lmd data fetch stl10`"):
        image_data("stl10", tmp_path)
    (tmp_path / "test_X.bin").write_bytes(stored("test")[:-1])
    with pytest.raises(FileError, match=r"test_X\.bin of 55295 bytes, expected 55296: 2 images of 27648"):
        image_data("stl10", tmp_path)
    with pytest.raises(FileError, match=r"^STL-10: got no STL-10 in LMD_DATA or the cache"):
        image_data("stl10")
    with pytest.raises(FileError, match="which is not a folder"):
        image_data("stl10", tmp_path / "none")
    with pytest.raises(InputError, match=r"^part: got 'tets'"):
        images.read_stl10(tmp_path, "tets")
