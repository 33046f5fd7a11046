import hashlib

import pytest

from lmd.errors import FileError, InputError
from lmd.reproduction.datasets import datasets, digits, fetch
from lmd.reproduction.datasets.files import download

CONTENT = b"some bytes worth keeping" * 1000
FILES = {"file.bin": hashlib.sha256(CONTENT).hexdigest()}


def test_a_file_is_fetched_once(server, tmp_path):
    (server.folder / "file.bin").write_bytes(CONTENT)
    for _ in range(2):
        (path,) = download(FILES, [server.address], tmp_path / "kept")
        assert path.read_bytes() == CONTENT
    assert server.requested == ["/file.bin"]


def test_a_kept_file_that_was_changed_is_fetched_again(server, tmp_path):
    (server.folder / "file.bin").write_bytes(CONTENT)
    (path,) = download(FILES, [server.address], tmp_path / "kept")
    path.write_bytes(CONTENT[:-1])
    download(FILES, [server.address], tmp_path / "kept")
    assert path.read_bytes() == CONTENT and len(server.requested) == 2


def test_another_content_is_refused_and_not_kept(server, tmp_path):
    (server.folder / "file.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(
        FileError, match=r"^file.bin: got nothing usable from http.*another SHA-256 .* LMD_DATA"
    ) as caught:
        download(FILES, [server.address], tmp_path / "kept")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_next_source_is_tried(server, tmp_path):
    (server.folder / "file.bin").write_bytes(CONTENT)
    sources = [f"{server.address}nothing/here/", server.address]
    (path,) = download(FILES, sources, tmp_path / "kept")
    assert path.read_bytes() == CONTENT and server.requested[-1] == "/file.bin"


def test_no_source_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(FileError, match=r"^file.bin: got nothing usable from http://127.0.0.1:9/ \(\w+Error\)"):
        download(FILES, ["http://127.0.0.1:9/"], tmp_path / "kept")


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "kept").write_text("in the way")
    with pytest.raises(FileError, match=r"^cache folder: got .*kept, where a file is in the way"):
        download(FILES, ["http://127.0.0.1:9/"], tmp_path / "kept")


def test_mnist_from_nothing_to_present(server, tiny_mnist, own_cache, monkeypatch):
    for part in digits.MNIST_PARTS:
        packed = tiny_mnist / f"{part.name}.gz"
        if packed.is_file():
            packed.rename(server.folder / packed.name)
    served = tuple(part for part in digits.MNIST_PARTS if (server.folder / f"{part.name}.gz").is_file())
    monkeypatch.setattr(digits, "MNIST_PARTS", served)
    monkeypatch.setattr(digits, "MNIST_SOURCES", (server.address,))
    present = {dataset.name: dataset.present for dataset in datasets()}
    assert present == {"digits": True, "photographs": True, "mnist": False, "stl10": False}
    assert fetch("mnist") == own_cache / "mnist"
    assert sorted(server.requested) == ["/train-images-idx3-ubyte.gz", "/train-labels-idx1-ubyte.gz"]
    (found,) = (dataset for dataset in datasets() if dataset.name == "mnist")
    assert found.present and found.folder == own_cache / "mnist"


def test_nothing_to_fetch_or_nothing_known():
    assert fetch("digits") is None
    with pytest.raises(InputError, match=r"^dataset: got 'mnits', expected one of mnist, digits"):
        fetch("mnits")
