"""Families of total variation problems on photographs: random crops, noise, weights, masks, blurs and projections."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_choice, check_count, check_interval, check_positive, shape_of
from lmd.errors import InputError
from lmd.operators.blur import BORDERS, Blur, gaussian_kernel
from lmd.operators.projections import ParallelBeam
from lmd.problems.base import Family, Problem
from lmd.problems.tv import TVDeblurring, TVDenoising, TVInpainting, TVModel, TVTomography

Range = float | tuple[float, float]
"""One number for all instances, or (low, high): one number per instance is drawn uniformly from this interval."""


def add_noise(images: Tensor, noise: float | Tensor, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to images `(B, C, H, W)`, without clipping; `noise` is its deviation, `(B,)` or a number."""
    normal = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=generator.device)
    level = noise.reshape(-1, 1, 1, 1) if isinstance(noise, Tensor) else noise
    return images + level * normal.to(images.device)


def random_masks(batch: int, height: int, width: int, kept: float | Tensor, generator: torch.Generator) -> Tensor:
    """Draw masks `(B, 1, H, W)` of 0 and 1 that keep this share of the pixels, rounded, and at least one pixel.

    The share `kept` is a number, or one per mask `(B,)`.
    """
    places = torch.rand(batch, height * width, generator=generator, dtype=torch.float32, device=generator.device)
    share = kept.reshape(-1, 1) if isinstance(kept, Tensor) else kept
    count = (places.new_ones(batch, 1) * share * height * width).round().clamp(min=1)
    rank = places.argsort(dim=1).argsort(dim=1)
    return (rank < count).to(places.dtype).reshape(batch, 1, height, width)


class TVDenoisingFamily(Family):
    """TV denoising of random crops; other families override `measure`.

    For each instance, a sample takes a random image and crops `crop` x `crop` pixels of it (None: the whole image, if
    all have one size). It flips the crop along each axis with probability 1/2, measures it, and adds noise.

    Args:
        images: `(n, C, H, W)`, or a list of `(C, H, W)`: numbers in [0, 1], or bytes.
        noise: The standard deviation of the noise, for images in [0, 1]: a number, or (low, high) to draw one per
            instance.
        crop: The side of the crops in pixels; None is the whole image.
        weight: The weight of the regulariser: a positive number, or (low, high) to draw one per instance.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        dtype: The dtype of the problems and the starting points.

    >>> family = TVDenoisingFamily(torch.rand(5, 3, 64, 64), noise=(0.0, 0.2), crop=32)
    >>> problem, x0 = family.sample(4, torch.Generator().manual_seed(0))
    >>> x0.shape, bool((x0 == problem.noisy).all())
    (torch.Size([4, 3, 32, 32]), True)
    """

    name = "tv-denoising"

    def __init__(
        self,
        images: Tensor | Sequence[Tensor],
        noise: Range = 0.05,
        crop: int | None = None,
        weight: Range = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.images = _check_images(images)
        sizes = {tuple(image.shape[1:]) for image in self.images}
        if crop is None and len(sizes) > 1:
            raise InputError("crop", None, "a size, as the images have several")
        if crop is not None and (least := min(min(size) for size in sizes)) < check_count("crop", crop):
            raise InputError("crop", crop, f"at most {least}, the shortest side of the images")
        self.crop = crop
        self.noise, self.weight = check_range("noise", noise, zero=True), check_range("weight", weight)
        self.isotropic, self.halved, self.dtype = isotropic, halved, dtype

    @property
    def size(self) -> tuple[int, int]:
        """The height and width of the crops."""
        height, width = self.images[0].shape[1:]
        return (height, width) if self.crop is None else (self.crop, self.crop)

    def measure(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Callable[..., TVModel]]:
        """Return noiseless measurements of the images, and a function from noisy measurements to the problem."""
        return images, TVDenoising

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        exact, model = self.measure(self.sample_images(batch, generator), generator)
        noisy = add_noise(exact, self._uniform(self.noise, batch, generator), generator)
        weight = self._uniform(self.weight, batch, generator)
        problem = model(noisy, weight=weight, isotropic=self.isotropic, halved=self.halved)
        return problem, problem.start()

    def harder(self) -> dict[str, Family]:
        return {f"{factor} times the noise": self.with_noise(factor * self.noise[1]) for factor in (2, 4)}

    def with_noise(self, noise: float) -> TVDenoisingFamily:
        other = copy.copy(self)
        other.noise = (noise, noise)
        return other

    def sample_images(self, batch: int, generator: torch.Generator) -> Tensor:
        """Return random crops `(B, C, h, w)` in [0, 1], without noise."""
        chosen = self._draw(check_count("batch", batch), len(self.images), generator)
        return torch.stack([self._piece(self.images[i], generator) for i in chosen]).to(generator.device)

    def _piece(self, image: Tensor, generator: torch.Generator) -> Tensor:
        height, width = self.size
        (top,) = self._draw(1, image.shape[1] - height + 1, generator)
        (left,) = self._draw(1, image.shape[2] - width + 1, generator)
        piece = image[:, top : top + height, left : left + width]
        flips = [axis for axis, flip in zip((1, 2), self._draw(2, 2, generator), strict=True) if flip]
        return as_float(piece, self.dtype).flip(flips)

    @staticmethod
    def _draw(count: int, below: int, generator: torch.Generator) -> list[int]:
        numbers: list[int] = torch.randint(below, (count,), generator=generator, device=generator.device).tolist()
        return numbers

    def _uniform(self, interval: tuple[float, float], batch: int, generator: torch.Generator) -> Tensor:
        low, high = interval
        share = torch.rand(batch, generator=generator, dtype=self.dtype, device=generator.device)
        return low + (high - low) * share


class TVInpaintingFamily(TVDenoisingFamily):
    """TV inpainting of random crops, y = mask * image + noise; the start is y. See `TVDenoisingFamily`.

    Args:
        kept: The share of the pixels that is kept, at most 1: a number, or (low, high) to draw one per instance.
        mask: `(H, W)` of 0 and 1 for all instances, as in the paper; None draws one per instance, for all channels.
    """

    name = "tv-inpainting"

    def __init__(self, *arguments: Any, kept: Range = 0.8, mask: Tensor | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept = check_range("kept", kept)
        if self.kept[1] > 1:
            raise InputError("kept", kept, "shares of the pixels, at most 1")
        if mask is not None and mask.shape != self.size:
            raise InputError("mask", f"shape {shape_of(mask)}", f"shape {self.size}, the size of the crops")
        self.mask = mask

    def measure(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Callable[..., TVModel]]:
        if self.mask is None:
            kept = self._uniform(self.kept, len(images), generator)
            mask = random_masks(len(images), *self.size, kept, generator).to(images)
        else:
            mask = self.mask.to(images)
        return mask * images, partial(TVInpainting, mask=mask)


class TVDeblurringFamily(TVDenoisingFamily):
    """TV deblurring of random crops, y = blurred image + noise; the start is y, clipped. See `TVDenoisingFamily`.

    The kernel is a Gaussian of deviation `blur` pixels. All instances of a sample share one kernel.

    Args:
        blur: The deviation of the kernel in pixels: a positive number, or (low, high) to draw one per sample.
        border: How images continue past their borders: "circular" or "replicate".
    """

    name = "tv-deblurring"

    def __init__(self, *arguments: Any, blur: Range = 1.5, border: str = "circular", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.blur, self.border = check_range("blur", blur), check_choice("border", border, BORDERS)

    def measure(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Callable[..., TVModel]]:
        kernel = gaussian_kernel(float(self._uniform(self.blur, 1, generator)))
        blurred = Blur(kernel, *self.size, self.border)(images)
        return blurred, partial(TVDeblurring, kernel=kernel, border=self.border)


class TomographyFamily(TVDenoisingFamily):
    """TV tomography of random crops, y = `angles` projections + noise; the start is flat. See `TVDenoisingFamily`.

    `noise` has the units of `ParallelBeam`: line integrals, for pixels of side 1, divided by the root of `angles`.

    Args:
        angles: The number of projections of a sinogram.
    """

    name = "tv-tomography"

    def __init__(self, *arguments: Any, angles: int = 30, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.beams = ParallelBeam(*self.size, check_count("angles", angles))

    def measure(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Callable[..., TVModel]]:
        return self.beams(images), partial(TVTomography, size=self.size, beams=self.beams)


def as_float(image: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the image in this dtype, divided by 255 if it holds bytes."""
    return image.to(dtype) / 255 if image.dtype == torch.uint8 else image.to(dtype)


def _check_images(images: Tensor | Sequence[Tensor]) -> list[Tensor]:
    found = list(images)
    if not found:
        raise InputError("images", "none", "at least one image")
    for image in found:
        if not isinstance(image, Tensor) or image.ndim != 3 or image.numel() == 0:
            given = f"shape {shape_of(image)}" if isinstance(image, Tensor) else type(image).__name__
            raise InputError("images", f"an image of {given}", "tensors (C, H, W), or all in one (n, C, H, W)")
        if image.dtype != torch.uint8 and not image.dtype.is_floating_point:
            raise InputError("images", image.dtype, "bytes (uint8), or floating-point numbers in [0, 1]")
    channels = {int(image.shape[0]) for image in found}
    if len(channels) > 1:
        raise InputError("images", f"images of {sorted(channels)} channels", "one number of channels")
    return found


def check_range(argument: str, value: Range, *, zero: bool = False) -> tuple[float, float]:
    """Return (low, high), which are equal for one number."""
    if isinstance(value, (int, float)):
        number = check_positive(argument, value, zero=zero)
        return number, number
    low, high = check_interval(argument, value)
    check_positive(argument, low, zero=zero)
    return low, high
