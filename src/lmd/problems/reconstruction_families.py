"""Families of reconstructions of photographs: random crops, blurred or projected, with noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmd.core.checks import check_choice, check_count
from lmd.operators.blur import BORDERS, Blur, gaussian_kernel
from lmd.operators.projections import ParallelBeam
from lmd.problems.reconstruction import TVDeblurring, TVTomography
from lmd.problems.tv import TVProblem
from lmd.problems.tv_families import Range, TVFamily, add_noise, check_range


class TVDeblurringFamily(TVFamily):
    """TV deblurring of random crops, y = blurred image + noise; the start is y, clipped. See `TVFamily`.

    The kernel is a Gaussian of deviation `blur` pixels, one for each sample: with a range, batches differ.

    Args:
        blur: The deviation of the kernel in pixels: a positive number, or (low, high) to draw one per sample from.
        border: How images go on past their borders: "circular" or "replicate".
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
