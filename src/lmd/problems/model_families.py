"""Families of several models at once: random crops of photographs, each sample one of the models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lmd.problems.tv_families import Range, TVFamily

Maker = Callable[..., Any]
"""From clean images `(B, C, H, W)`, noise levels `(B, 1, 1, 1)`, weights `(B,)` and randomness to a problem."""


class ModelFamily(TVFamily):
    """Random crops as instances of one of several models, drawn for each sample; weights even in their logarithm.

    A maker gets images in [0, 1] and says what noise does to them. See `TVFamily` for the other arguments.
    """

    name = "tv-models"

    def __init__(
        self, images: Tensor | Sequence[Tensor], makers: Sequence[Maker], noise: Range, crop: int, weight: Range
    ) -> None:
        super().__init__(images, noise, crop, weight)
        self.makers = tuple(makers)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Any, Tensor]:
        (chosen,) = self._draw(1, len(self.makers), generator)
        images = self.sample_images(batch, generator)
        noise = self._uniform(self.noise, batch, generator).reshape(-1, 1, 1, 1)
        weight = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator).exp()
        problem = self.makers[chosen](images, noise, weight, generator)
        return problem, problem.start()


def windows(images: Tensor, depth: int) -> Tensor:
    """Volumes `(B, 1, depth, H - depth, W - depth)`: windows of grey images that move from plane to plane."""
    grey, side = images.mean(dim=1), [n - depth for n in images.shape[2:]]
    return torch.stack([grey[:, i : i + side[0], i : i + side[1]] for i in range(depth)], dim=1)[:, None]
