"""A cache of their own for the data tests, a tiny MNIST, and the real one where it is at hand."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from lmd.reproduction.datasets import digits

REAL_DATA = os.environ.get("LMD_DATA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test of data sees or changes what the developer has."""
    monkeypatch.setenv("LMD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMD_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def real_mnist():
    """The folder that LMD_DATA named when the tests began, if it holds MNIST."""
    if not REAL_DATA or digits.find_mnist(REAL_DATA) is None:
        pytest.skip("needs MNIST in the folder that LMD_DATA names")
    return Path(REAL_DATA)


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        self.server.requested.append(self.path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server of files on this machine alone; `requested` lists what it was asked for."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.requested, running.folder = [], folder
        running.address = f"http://127.0.0.1:{running.server_port}/"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def idx(array):
    """An array of bytes as an IDX file."""
    array = np.asarray(array, dtype=np.uint8)
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def as_idx():
    return idx


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """Four small files with MNIST's names, two of them packed, that count as genuine: 20 train and 10 test images."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    parts = []
    for part in digits.MNIST_PARTS:
        shape = (20 if part.name.startswith("train") else 10, *part.shape[1:])
        content = idx(generator.integers(0, 10 if len(shape) == 1 else 256, shape))
        packed = gzip.compress(content)
        (folder / f"{part.name}.gz").write_bytes(packed)
        if part.name.startswith("t10k"):
            (folder / f"{part.name}.gz").unlink()
            (folder / part.name).write_bytes(content)
        digests = {"packed": hashlib.sha256(packed).hexdigest(), "unpacked": hashlib.sha256(content).hexdigest()}
        parts.append(dataclasses.replace(part, shape=shape, **digests))
    monkeypatch.setattr(digits, "MNIST_PARTS", tuple(parts))
    return folder
