"""The tasks that take pictures: the problem that `lmd solve` minimises for each, and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.operators import gaussian_kernel
from lmd.problems import TVDeblurring, TVDenoising, TVInpainting

DEFAULT_WEIGHT = 0.3
"""The weight of the total variation in the paper, for images in [0, 1]."""


@dataclass(frozen=True)
class PictureTask:
    """What `lmd solve NAME` does with a picture."""

    doing: str
    """A word for it while it runs, such as denoising."""

    about: str
    """A sentence, and the objective, for `--help`."""

    problem: Callable[[Tensor, Tensor | None, float | Tensor, bool], Any]
    """Make the problem of images `(B, C, *size)`, the extra input or None, the weight or weights, and `isotropic`."""

    extra: str = ""
    """The name of the extra input: "mask", true at known pixels, or "kernel", of a blur."""

    forms: bool = False
    """Whether it is denoising, which has other misfits, orders and colours to choose from."""


def _inpainting(images: Tensor, mask: Tensor | None, weight: float | Tensor, isotropic: bool) -> TVInpainting:
    known = images.new_ones(images.shape[2:]) if mask is None else mask
    return TVInpainting(images, known, weight, isotropic)


def _deblurring(images: Tensor, kernel: Tensor | None, weight: float | Tensor, isotropic: bool) -> TVDeblurring:
    taps = (gaussian_kernel(1.5) if kernel is None else kernel).to(images)
    low, high = (float(end) for end in torch.aminmax(images))
    return TVDeblurring(images, taps, weight, "replicate", isotropic, box=(min(low, 0.0), max(high, 1.0)))


PICTURE_TASKS = {
    "denoise": PictureTask(
        "denoising",
        "Remove the noise from the picture IN and write it to OUT.\n\n\b\nMinimises ||x - y||^2 + weight TV(x), y the "
        "picture with colours from 0 to 1, or what the options make of it.",
        lambda images, _, weight, isotropic: TVDenoising(images, weight, isotropic),
        forms=True,
    ),
    "inpaint": PictureTask(
        "inpainting",
        "Fill in the lost pixels of the picture IN and write it to OUT.\n\n\b\nMinimises ||Z(x - y)||^2 + weight "
        "TV(x), y the picture with colours from 0 to 1, Z the mask. Pixels are kept where\nthe mask is white (lighter "
        "than half) and lost where it is black.",
        _inpainting,
        extra="mask",
    ),
    "deblur": PictureTask(
        "deblurring",
        "Take the blur off the picture IN and write it to OUT.\n\n\b\nMinimises ||k * x - y||^2 + weight TV(x), y the "
        "picture with colours from 0 to 1, which x keeps to, k the kernel.",
        _deblurring,
        extra="kernel",
    ),
}
