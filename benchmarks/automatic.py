"""The automatic weight: how far below the best weight of each photograph it ends, and what it costs.

    python benchmarks/automatic.py --images FOLDER [--count 24] [--side 128] [--grey] [--only NAME] [--times]

Random crops of photographs, noise of 2, 5, 10 and 20% for denoising and of 2, 5 and 10% for inpainting with half the
pixels lost and deblurring (Gaussian of 1.5 pixels, motion over 9). The best is the highest PSNR that any of 15 weights
gives for that photograph. With `--times`, in place of the quality, seconds of `lmd.denoise(image)` and its like over
those of the same call with the weight that it chose: medians over the crops, interleaved.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lmd
from lmd.operators import Blur, gaussian_kernel, motion_kernel

Call = Callable[..., Any]
"""Of a weight, which may be left out, and the options of `lmd.denoise`."""

GRIDS = {"denoise": (0.1, 1.6), "inpaint": (0.05, 1.6), "deblur-gaussian": (0.05, 1.0), "deblur-motion": (0.05, 1.0)}
"""The tasks, and the ends of their 15 weights in multiples of twice the noise."""

NOISE = (2, 5, 10, 20)
"""Percent of white; the last for denoising alone."""

KERNELS = {"deblur-gaussian": gaussian_kernel(1.5), "deblur-motion": motion_kernel(9, math.pi / 6)}


def photographs(folder: Path, count: int, side: int, grey: bool) -> Tensor:
    """Random crops `(n, 3 or 1, side, side)` of the first photographs of a folder, between 0 and 1."""
    generator, crops = torch.Generator().manual_seed(0), []
    for image in lmd.reproduction.datasets.read_images(folder).images[:count]:
        top, left = (int(torch.randint(length - side + 1, (1,), generator=generator)) for length in image.shape[1:])
        crops.append(image[:, top : top + side, left : left + side] / 255)
    return torch.stack(crops).mean(1, keepdim=True) if grey else torch.stack(crops)


def task(name: str, clean: Tensor, noise: float, seed: int = 0) -> Call:
    """The call that a person makes, on what is left of photographs `(B, C, H, W)`."""
    generator = torch.Generator().manual_seed(seed)
    added = noise * torch.randn(clean.shape, generator=generator)
    if name in KERNELS:
        kernel = KERNELS[name]
        noisy = Blur(kernel.float(), *clean.shape[2:], "replicate")(clean) + added
        return lambda *weight, **options: lmd.deblur(noisy, kernel, *weight, **options)
    noisy = clean + added
    if name == "denoise":
        return lambda *weight, **options: lmd.denoise(noisy, *weight, **options)
    mask = (torch.rand(clean[:, :1].shape, generator=generator) < 0.5).expand_as(clean)
    return lambda *weight, **options: lmd.inpaint(noisy, mask, *weight, **options)


def psnr(x: Tensor, clean: Tensor) -> Tensor:
    """In dB, of numbers between 0 and 1 `(B,)`."""
    return -10 * (x.clamp(0, 1) - clean).square().flatten(1).mean(1).log10()


def quality(name: str, percent: int, clean: Tensor, tolerance: float) -> str:
    """A line: mean PSNR of the automatic weight and of the best, the mean and the largest difference."""
    low, high = GRIDS[name]
    grid = [2 * percent / 100 * low * (high / low) ** (k / 14) for k in range(15)]
    call = task(name, clean, percent / 100)
    x, info = call(tolerance=tolerance, info=True)
    automatic = psnr(x, clean)
    best, at = torch.stack([psnr(call(weight, tolerance=tolerance), clean) for weight in grid]).max(dim=0)
    below, ends = best - automatic, int(((at == 0) | (at == 14)).sum())
    ratio = (info.weight.log() - torch.tensor(grid).log()[at]).mean().exp()
    return (
        f"{name:16} {percent:3}%  {automatic.mean():6.2f} of {best.mean():6.2f} dB: below by {below.mean():5.2f}, "
        f"at most {below.max():5.2f}; weights {ratio:.2f} times the best, {ends} of which are at an end"
    )


def times(name: str, percent: int, clean: Tensor, repeats: int = 5) -> str:
    """A line: milliseconds of the call with and without its weight, and their ratio."""
    ratios, alone = [], []
    for seed, one in enumerate(clean.split(1)):
        call = task(name, one, percent / 100, seed)
        _, info = call(info=True)
        pairs = [(_seconds(call, info.weight), _seconds(call)) for _ in range(repeats)]
        given, chosen = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(chosen / given)
        alone.append(1e3 * given)
    said = f"{statistics.median(ratios):4.2f}, at most {max(ratios):4.2f} times"
    return f"{name:16} {percent:3}%  one solve {statistics.median(alone):7.1f} ms; with the choice {said}"


def _seconds(call: Call, *weight: float) -> float:
    begun = time.perf_counter()
    call(*weight)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--grey", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of the quality; times are at the default")
    parser.add_argument("--noise", type=int, choices=NOISE)
    parser.add_argument("--only", choices=tuple(GRIDS))
    parser.add_argument("--times", action="store_true")
    options = parser.parse_args()
    clean = photographs(options.images, options.count, options.side, options.grey)
    for name in GRIDS if options.only is None else (options.only,):
        for percent in NOISE if name == "denoise" else NOISE[:3]:
            if options.noise in (None, percent):
                line = times if options.times else lambda *case: quality(*case, options.tolerance)
                print(line(name, percent, clean), flush=True)


if __name__ == "__main__":
    main()
