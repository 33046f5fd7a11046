"""Families of total variation problems on photographs: random crops, noise, weights, masks, blurs and projections."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from lmd.core.checks import check_choice, check_count, check_interval, check_positive, shape_of
from lmd.errors import InputError
from lmd.operators.blur import BORDERS, Blur, gaussian_kernel
from lmd.operators.projections import ParallelBeam
from lmd.problems.base import Family
from lmd.problems.tv import TVDeblurring, TVDenoising, TVInpainting, TVProblem, TVTomography

Range = float | tuple[float, float]
"""One number for all instances, or (low, high) to draw one per instance from, uniformly."""


def add_noise(images: Tensor, noise: float | Tensor, generator: torch.Generator) -> Tensor:
    """Images `(B, C, H, W)` plus Gaussian noise of this deviation, one number or one per image `(B,)`.

    Args:
        images: `(B, C, H, W)`.
        noise: The standard deviation: a number, or one per image `(B,)`.
        generator: The generator of the noise.

    Returns:
        Images of the same shape, not clipped.
    """
    normal = torch.randn(images.shape, generator=generator, dtype=images.dtype, device=generator.device)
    level = noise.reshape(-1, 1, 1, 1) if isinstance(noise, Tensor) else noise
    return images + level * normal.to(images.device)


def random_masks(batch: int, height: int, width: int, kept: float | Tensor, generator: torch.Generator) -> Tensor:
    """Masks `(B, 1, H, W)` of 0 and 1 that keep this share of the pixels, exactly to rounding, at least one.

    Args:
        batch: B.
        height, width: Of the masks, in pixels.
        kept: The share of the pixels that is kept: a number, or one per mask `(B,)`.
        generator: What the masks are drawn from.
    """
    places = torch.rand(batch, height * width, generator=generator, dtype=torch.float32, device=generator.device)
    share = kept.reshape(-1, 1) if isinstance(kept, Tensor) else kept
    count = (places.new_ones(batch, 1) * share * height * width).round().clamp(min=1)
    rank = places.argsort(dim=1).argsort(dim=1)
    return (rank < count).to(places.dtype).reshape(batch, 1, height, width)


class TVFamily(Family):
    """Noisy random crops of images: what `TVDenoisingFamily` and `TVInpaintingFamily` share.

    `images` are `(n, C, H, W)`, or a list of `(C, H, W)` of any sizes, with values in [0, 1] or bytes. A sample takes
    an image for each instance, a `crop` x `crop` piece of it (None: the whole, if all have one size), mirrors it left
    to right and top to bottom with probability 1/2 each, and adds noise.

    Args:
        images: `(n, C, H, W)`, or a list of `(C, H, W)`: numbers in [0, 1], or bytes.
        noise: The standard deviation of the noise, of images in [0, 1]: a number, or (low, high) to draw one per
            instance from.
        crop: The side of the pieces in pixels; None is the whole image.
        weight: Of the regulariser: a positive number, or (low, high) to draw one per instance from.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
        halved: Whether to halve the objective, which keeps the minimiser.
        dtype: The dtype of the problems and the starting points.
    """

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
        self.crop = None if crop is None else check_count("crop", crop)
        sizes = {tuple(image.shape[1:]) for image in self.images}
        if crop is None and len(sizes) > 1:
            raise InputError("crop", None, "a size, as the images have several")
        if crop is not None and (least := min(min(size) for size in sizes)) < crop:
            raise InputError("crop", crop, f"at most {least}, the shortest side of the images")
        self.noise, self.weight = check_range("noise", noise, zero=True), check_range("weight", weight)
        self.isotropic, self.halved, self.dtype = isotropic, halved, dtype

    def harder(self) -> dict[str, Family]:
        return {f"{factor} times the noise": self.with_noise(factor * self.noise[1]) for factor in (2, 4)}

    def with_noise(self, noise: float) -> TVFamily:
        other = copy.copy(self)
        other.noise = (noise, noise)
        return other

    def sample_images(self, batch: int, generator: torch.Generator) -> Tensor:
        """Crops `(B, C, h, w)` in [0, 1], without noise."""
        chosen = self._draw(check_count("batch", batch), len(self.images), generator)
        return torch.stack([self._piece(self.images[i], generator) for i in chosen]).to(generator.device)

    def _piece(self, image: Tensor, generator: torch.Generator) -> Tensor:
        height, width = image.shape[1:]
        size = (height, width) if self.crop is None else (self.crop, self.crop)
        (top,) = self._draw(1, height - size[0] + 1, generator)
        (left,) = self._draw(1, width - size[1] + 1, generator)
        piece = image[:, top : top + size[0], left : left + size[1]]
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


class TVDenoisingFamily(TVFamily):
    """TV denoising of random crops; the start is the noisy image. See `TVFamily` for the arguments.

    >>> family = TVDenoisingFamily(torch.rand(5, 3, 64, 64), noise=(0.0, 0.2), crop=32)
    >>> problem, x0 = family.sample(4, torch.Generator().manual_seed(0))
    >>> x0.shape, bool((x0 == problem.noisy).all())
    (torch.Size([4, 3, 32, 32]), True)
    """

    name = "tv-denoising"

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(images, self._uniform(self.noise, batch, generator), generator)
        weight = self._uniform(self.weight, batch, generator)
        return TVDenoising(noisy, weight, self.isotropic, self.halved), noisy


class TVInpaintingFamily(TVFamily):
    """TV inpainting of random crops, y = mask * image + noise; the start is y. See `TVFamily` for the arguments.

    Each instance has a mask of its own, one for all channels, that keeps the share `kept` of its pixels, or all have
    `mask` `(H, W)`, as in the paper.

    Args:
        kept: The share of the pixels that is kept, at most 1: a number, or (low, high) to draw one per instance from.
        mask: `(H, W)` of 0 and 1 for all instances; None draws one for each.
    """

    name = "tv-inpainting"

    def __init__(
        self,
        images: Tensor | Sequence[Tensor],
        noise: Range = 0.05,
        crop: int | None = None,
        weight: Range = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        dtype: torch.dtype = torch.float32,
        kept: Range = 0.8,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(images, noise, crop, weight, isotropic, halved, dtype)
        self.kept = check_range("kept", kept)
        if self.kept[1] > 1:
            raise InputError("kept", kept, "shares of the pixels, at most 1")
        size = tuple(self.images[0].shape[1:]) if crop is None else (crop, crop)
        if mask is not None and mask.shape != size:
            raise InputError("mask", f"shape {shape_of(mask)}", f"shape {size}, the size of the crops")
        self.mask = mask

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        if self.mask is None:
            kept = self._uniform(self.kept, batch, generator)
            mask = random_masks(batch, images.shape[2], images.shape[3], kept, generator).to(images)
        else:
            mask = self.mask.to(images)
        noisy = add_noise(mask * images, self._uniform(self.noise, batch, generator), generator)
        weight = self._uniform(self.weight, batch, generator)
        return TVInpainting(noisy, mask, weight, self.isotropic, self.halved), noisy


def as_float(image: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes divided by 255; other numbers as they are."""
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
    """(low, high), both the same for one number."""
    if isinstance(value, (int, float)):
        number = check_positive(argument, value, zero=zero)
        return number, number
    low, high = check_interval(argument, value)
    check_positive(argument, low, zero=zero)
    return low, high


class TVDeblurringFamily(TVFamily):
    """TV deblurring of random crops, y = blurred image + noise; the start is y, clipped. See `TVFamily`.

    The kernel is a Gaussian of deviation `blur` pixels, one for each sample: with a range, batches differ.

    Args:
        blur: The deviation of the kernel in pixels: a positive number, or (low, high) to draw one per sample from.
        border: How images continue past their borders: "circular" or "replicate".
    """

    name = "tv-deblurring"

    def __init__(
        self,
        images: Tensor | Sequence[Tensor],
        noise: Range = 0.05,
        crop: int | None = None,
        weight: Range = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        dtype: torch.dtype = torch.float32,
        blur: Range = 1.5,
        border: str = "circular",
    ) -> None:
        super().__init__(images, noise, crop, weight, isotropic, halved, dtype)
        self.blur, self.border = check_range("blur", blur), check_choice("border", border, BORDERS)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        kernel = gaussian_kernel(float(self._uniform(self.blur, 1, generator)))
        blurred = Blur(kernel, images.shape[2], images.shape[3], self.border)(images)
        noisy = add_noise(blurred, self._uniform(self.noise, batch, generator), generator)
        weight = self._uniform(self.weight, batch, generator)
        problem = TVDeblurring(noisy, kernel, weight, self.border, self.isotropic, self.halved)
        return problem, problem.start()


class TomographyFamily(TVFamily):
    """TV tomography of random crops, y = `angles` projections + noise; the start is flat. See `TVFamily`.

    `noise` is in the units of `ParallelBeam`: line integrals, a pixel being 1 long, over the root of `angles`.

    Args:
        noise: The standard deviation of the noise, of sinograms: a number, or (low, high) to draw one per instance
            from.
        angles: How many projections a sinogram has.
    """

    name = "tv-tomography"

    def __init__(
        self,
        images: Tensor | Sequence[Tensor],
        noise: Range = 0.05,
        crop: int | None = None,
        weight: Range = 0.3,
        isotropic: bool = False,
        halved: bool = False,
        dtype: torch.dtype = torch.float32,
        angles: int = 30,
    ) -> None:
        super().__init__(images, noise, crop, weight, isotropic, halved, dtype)
        height, width = self.images[0].shape[1:] if crop is None else (crop, crop)
        self.beams = ParallelBeam(height, width, check_count("angles", angles))

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(self.beams(images), self._uniform(self.noise, batch, generator), generator)
        weight = self._uniform(self.weight, batch, generator)
        size = (images.shape[2], images.shape[3])
        problem = TVTomography(noisy, size, weight, self.isotropic, self.halved, beams=self.beams)
        return problem, problem.start()
