"""Count the function calls and files of the package that common calls go through.

    python benchmarks/journeys.py [--list]

Counts are of Python frames whose code lies in the package, in all threads, seen by `sys.setprofile`. Every journey is
made twice and the second is counted, so that imports and caches are not in it. Bodies of modules and classes are not
counted; comprehensions and generator expressions are. A file is counted once. Building the problem is part of
`lmd.solve`, and choosing the weight part of the other two. `before` is dedaf69, the commit that the limits were set at.
`--list` prints every call in its order. The exit code is 1 if a limit is exceeded.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch

import lmd
from lmd.cli.program import cli

PACKAGE = str(Path(lmd.__file__).parent)


class Journey(NamedTuple):
    """A call that people make, and the most calls and files that it may go through."""

    name: str
    make: Callable[[], Any]
    before: tuple[int, int]
    most: tuple[int, int]


def noisy_image(channels: int = 3) -> np.ndarray:
    """A smooth image `(96, 96, channels)` in [0, 1] with noise."""
    slope = np.linspace(0, 1, 96)
    clean = np.stack([np.outer(slope, slope**power) for power in range(1, channels + 1)], axis=-1)
    return np.clip(clean + 0.1 * np.random.default_rng(0).standard_normal(clean.shape), 0, 1)


def record(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """The file and function of every call inside the package, in order."""
    found: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_flags & 0x2:  # CO_NEWLOCALS
            found.append((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def journeys(folder: Path) -> list[Journey]:
    """The three of the issue, on an image of 96 x 96 pixels."""
    from PIL import Image

    image = noisy_image()
    noisy = torch.from_numpy(np.moveaxis(image, -1, 0)[None]).float()
    Image.fromarray((255 * image).astype(np.uint8)).save(folder / "noisy.png")
    command = ["solve", "denoise", str(folder / "noisy.png"), str(folder / "clean.png"), "--overwrite"]

    def from_the_command_line() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main(command, standalone_mode=False)

    return [
        Journey(
            "lmd.solve", lambda: lmd.solve(lmd.problems.TVDenoising(noisy, 0.3), tolerance=1e-3), (104, 17), (40, 10)
        ),
        Journey("lmd.denoise", lambda: lmd.denoise(image), (278, 22), (120, 14)),
        Journey("lmd solve denoise", from_the_command_line, (501, 36), (250, 22)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every call")
    listed, over = parser.parse_args().list, False
    print(f"{'':20}{'calls':>7}{'before':>8}{'limit':>7}{'files':>9}{'before':>8}{'limit':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for journey in journeys(Path(folder)):
            journey.make()
            found = record(journey.make)
            counts = len(found), len({file for file, _ in found})
            columns = zip(counts, journey.before, journey.most, strict=True)
            (calls, *rest), (files, *others) = columns
            marks = "  over" if calls > journey.most[0] or files > journey.most[1] else ""
            over = over or bool(marks)
            print(f"{journey.name:20}{calls:7}{rest[0]:8}{rest[1]:7}{files:9}{others[0]:8}{others[1]:7}{marks}")
            if listed:
                print(*(f"    {file}: {function}" for file, function in found), sep="\n")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
