"""What reads a file, as functions of its bytes: each reads them, or raises an error of lmd in one line.

    python tests/fuzz/targets.py NAME [libFuzzer's options] [corpus folder]

runs one of them under atheris, guided by coverage. `run.py` does that for all; `test_corpus.py` reads the corpora.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

FUZZED = __name__ == "__main__"
READERS = [
    "lmd.core.config",
    "lmd.reproduction.datasets",
    "lmd.core.files",
    "lmd.reproduction.page",
    "lmd.solvers.saving",
    "lmd.training.folder",
]
READERS += ["lmd.zoo.published"]

with importlib.import_module("atheris").instrument_imports(include=READERS) if FUZZED else nullcontext():
    import torch
    from safetensors.torch import save as tensor_bytes

    import lmd
    from lmd.core.files import sha256, with_checksum
    from lmd.errors import LmdError
    from lmd.imaging.image_files import read_header, read_mask, read_picture
    from lmd.reproduction import experiments
    from lmd.reproduction.datasets import read_images
    from lmd.reproduction.datasets.files import parse_idx
    from lmd.reproduction.page import write_page
    from lmd.training.folder import read_checkpoint
    from lmd.zoo.published import import_checkpoint

TARGETS: dict[str, Callable[[bytes, Path], object]] = {}


def target(function: Callable[[bytes, Path], object]) -> Callable[[bytes, Path], object]:
    TARGETS[function.__name__] = function
    return function


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


@target
def picture(content: bytes, folder: Path) -> object:
    path = write(folder / "in.png", content)
    header = read_header(path)
    found = read_picture(path)
    assert sorted(found.size) == sorted(header.size)  # upright or not
    return found


@target
def mask(content: bytes, folder: Path) -> object:
    found = read_mask(write(folder / "mask.png", content), (12, 14))
    assert found.shape == (12, 14) and found.any()
    return found


@target
def archive(content: bytes, folder: Path) -> object:
    return read_images(write(folder / "images.npz", content))


@target
def idx(content: bytes, folder: Path) -> object:
    return parse_idx(content, folder / "idx")


@target
def solver(content: bytes, folder: Path) -> object:
    """Any solver.json beside the weights of a solver for two variables, whose hash `HASH` in it stands for."""
    place = folder / "solver"
    if not (place / "weights.safetensors").exists():
        lmd.solvers.save(lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2), 3), place)
    write(place / "solver.json", content.replace(b"HASH", sha256(place / "weights.safetensors").encode()))
    return lmd.solvers.load(place)


@target
def weights(content: bytes, folder: Path) -> object:
    """Any weights beside a solver.json that names their hash."""
    place = folder / "weights"
    if not (place / "solver.json").exists():
        lmd.solvers.save(lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2), 3), place)
    description = json.loads((place / "solver.json").read_text())
    description["weights_sha256"] = sha256(write(place / "weights.safetensors", content))
    write(place / "solver.json", json.dumps(description).encode())
    return lmd.solvers.load(place)


@target
def metrics(content: bytes, folder: Path) -> object:
    """A metrics.json, up to the page that is made of it."""
    place = write(folder / "report" / "metrics.json", content).parent
    return write_page(place, experiments.read)


@target
def checkpoint(content: bytes, folder: Path) -> object:
    """The JSON file of a checkpoint, with its checksum, beside tensors whose hash `HASHES` in it stands for."""
    tensors = folder / "checkpoints" / "updates-00000001.safetensors"
    if not tensors.exists():
        write(tensors, tensor_bytes({"weights/x": torch.zeros(2)}))
    text = content.replace(b"HASHES", sha256(tensors).encode())
    with suppress(ValueError, RecursionError):
        if isinstance(state := json.loads(text), dict):
            text = json.dumps(with_checksum(state)).encode()
    return read_checkpoint(write(tensors.with_suffix(".json"), text))


@target
def published(content: bytes, folder: Path) -> object:
    return import_checkpoint(write(folder / "published", content))


def read_one(name: str, content: bytes, folder: Path) -> Any:
    """What the target makes of the bytes, or its error, which is one line."""
    try:
        return TARGETS[name](content, folder)
    except LmdError as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of more than one line: {error!r}") from error
        return error


def main() -> None:
    import atheris

    name, *options = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_FOLDER")))  # atheris leaves without taking anything apart

    def read(content: bytes) -> None:
        read_one(name, content, folder)

    atheris.Setup([sys.argv[0], *options], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
