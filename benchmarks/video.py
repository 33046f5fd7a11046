"""Ten frames of a moving picture, each to a proven 1e-3: warm starts against cold ones.

    python benchmarks/video.py [--sizes 96,256,360] [--weights 0.1,0.3]

A window moves over a photograph of scikit-image's, 2 rows and 3 columns from one frame to the next: without noise, with
5% of noise that moves along, and with 5% that is new in each frame. For each weight, and for the automatic one, the
milliseconds of all ten frames by `lmd.denoise_video` and by `lmd.denoise` of each, the fastest of several, and the
iterations of the last frame. With a weight given `lmd.solve(..., warm=result)` is beside it, without what arrays take.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from skimage import data

import lmd
from lmd.problems import TVDenoising

FRAMES, TOLERANCE = 10, 1e-3
KINDS = ("no noise", "noise that moves along", "new noise in each frame")


def frames(size: int, kind: str, noise: float = 0.05) -> list[np.ndarray]:
    """Frames `(size, size, 3)`, float32."""
    random, picture = np.random.default_rng(0), data.coffee().astype(np.float32) / 255
    if kind == KINDS[1]:
        picture = picture + noise * random.normal(size=picture.shape).astype(np.float32)
    windows = [picture[a : a + size, b : b + size] for a, b in ((20 + 2 * t, 20 + 3 * t) for t in range(FRAMES))]
    own = noise if kind == KINDS[2] else 0.0
    return [(each + own * random.normal(size=each.shape)).astype(np.float32) for each in windows]


def fastest(call: Callable[[], Any], repeats: int = 7) -> float:
    """Milliseconds."""
    call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e3 * min(times)


def solved(problems: list[TVDenoising], warm: bool) -> list[Any]:
    results: list[Any] = []
    for problem in problems:
        results.append(lmd.solve(problem, TOLERANCE, warm=results[-1] if warm and results else None))
    return results


def row(pictures: list[np.ndarray], weight: float | str) -> str:
    """Iterations and milliseconds, as cells of a table."""
    cold = fastest(lambda: [lmd.denoise(each, weight, tolerance=TOLERANCE) for each in pictures])
    video = fastest(lambda: lmd.denoise_video(pictures, weight, tolerance=TOLERANCE))
    told = f"{video:.1f} of {cold:.1f} ms, {video / cold:.2f}"
    if isinstance(weight, str):
        return f" | | {told}"
    tensors = [torch.tensor(np.moveaxis(each, -1, 0).copy())[None] for each in pictures]
    problems = [TVDenoising(each, weight) for each in tensors]
    alone, warm = (fastest(lambda warm=warm: solved(problems, warm)) for warm in (False, True))
    counts = " and ".join(str(int(solved(problems, warm)[-1].iterations)) for warm in (False, True))
    return f"{counts} | {warm:.1f} of {alone:.1f} ms, {warm / alone:.2f} | {told}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="96,256,360")
    parser.add_argument("--weights", default="0.1,0.3")
    given = parser.parse_args()
    print("| side | noise | weight | iterations, cold and warm | `lmd.solve` | `lmd.denoise_video` |")
    print("|---|---|---|---|---|---|")
    for size in map(int, given.sizes.split(",")):
        for kind in KINDS:
            for weight in (*map(float, given.weights.split(",")), "auto"):
                print(f"| {size} | {kind} | {weight} | {row(frames(size, kind), weight)} |", flush=True)


if __name__ == "__main__":
    main()
