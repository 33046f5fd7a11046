"""A small network that tells noise from texture in pictures, by the energies of their blocks.

It is trained by `benchmarks/fit_noise.py` for what its answer is used for: the loss in dB of a picture that is denoised
with the weight that Stein's risk chooses for that noise.
"""

from __future__ import annotations

import functools
import math
from importlib.resources import as_file, files
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = "noise_network.safetensors"
RINGS = 7  # coefficients are sorted by their highest frequency, in eighths of the highest that there is: 1 to 7
QUANTILES = (0.02, 0.05, 0.12, 0.3, 0.5, 0.8)  # of the energies of blocks, which the network sees beside each block
REFERENCE = 3  # the network answers relative to this quantile, which is near the noise where there is some
FLOOR = 1e-4  # deviations below this share of the contrast are taken for it
MAX_RATIOS = (0.4, 0.5, 0.7, 1.0, 1.2, 1.4, 1.5)  # logarithms of the largest deviation over the reference by rings
MAX_CAUTION = 2.0  # logarithm of the largest caution or its inverse


class Features(NamedTuple):
    """What the network sees of an image; all of it is the same for an image in other units."""

    blocks: Tensor  # `(blocks, 15)`: logarithms of the deviations of brightness and colours by rings, and brightness
    whole: Tensor  # `(86,)`: quantiles of the first 14, the contrast, and whether there are colours
    reference: Tensor  # `(14,)`: the logarithms of deviations that answers are relative to


def features(brightness: Tensor, colours: Tensor | None, level: Tensor) -> Features:
    """Return the features of an image from the energies of its blocks.

    Args:
        brightness: Mean squares of coefficients `(blocks, 7)` of the sum of the channels.
        colours: The same of the differences of channels, or None where there are none.
        level: The mean coefficient of each block `(blocks,)`.
    """
    low, high = torch.quantile(level, 0.02), torch.quantile(level, 0.98)
    contrast = ((high - low) / 8).clamp(min=1e-12)
    both = torch.cat([brightness, torch.zeros_like(brightness) if colours is None else colours], dim=1)
    logs = 0.5 * (both + (FLOOR * contrast).square()).log()
    ranked = logs.sort(dim=0).values
    quantiles = ranked[[round(share * (len(logs) - 1)) for share in QUANTILES]]
    reference = quantiles[REFERENCE]
    middle = reference[2:RINGS].mean()
    seen = logs.new_ones(2 * RINGS)
    seen[RINGS:] = float(colours is not None)
    least, most = torch.aminmax(level)
    place = (level - least) / (most - least).clamp(min=1e-12) - 0.5
    blocks = torch.cat([((logs - middle) / 2).clamp(-4, 4) * seen, place[:, None]], dim=1)
    relative = ((quantiles - middle) / 2).clamp(-4, 4) * seen
    whole = torch.cat([relative.flatten(), ((middle - contrast.log()) / 4)[None], seen[-1:]])
    return Features(blocks, whole, reference)


class NoiseNetwork(nn.Module):
    """Deviations of the noise by rings, from blocks that are weighed by attention: any number of them, in any order."""

    HEADS, WIDTH, LAST = 4, 64, 64

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(2 * RINGS + 1, self.WIDTH)
        self.whole = nn.Linear(2 * RINGS * len(QUANTILES) + 2, self.WIDTH)
        self.second = nn.Linear(self.WIDTH, self.WIDTH + self.HEADS)
        self.third = nn.Linear((self.HEADS + 1) * self.WIDTH, self.LAST)
        self.last = nn.Linear(self.LAST, 2 * RINGS + 1)

    def forward(self, blocks: Tensor, whole: Tensor, shown: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logarithms of deviations over the reference `(B, 14)`, brightness first, and of the caution `(B,)`.

        Args:
            blocks: `(B, blocks, 15)`, see `Features`.
            whole: `(B, 86)`.
            shown: Which blocks there are `(B, blocks)`; all of them by default.
        """
        common = self.whole(whole)
        hidden = self.second(torch.relu(self.block(blocks) + common[:, None]))
        scores, values = hidden[..., : self.HEADS], torch.relu(hidden[..., self.HEADS :])
        if shown is not None:
            scores = scores.masked_fill(~shown[..., None], -math.inf)
        pooled = torch.einsum("bnh,bnw->bhw", torch.softmax(scores, dim=1), values).flatten(1)
        found: Tensor = self.last(torch.relu(self.third(torch.cat([pooled, torch.relu(common)], dim=1))))
        ratios = torch.minimum(found[:, :-1], found.new_tensor(2 * MAX_RATIOS))
        return ratios, found[:, -1].clamp(-MAX_CAUTION, MAX_CAUTION)


@functools.cache
def trained_networks() -> nn.ModuleList:
    """Load the shipped networks, an ensemble whose outputs are averaged."""
    with torch.device("cpu"), as_file(files("lmd.imaging") / WEIGHTS) as path:
        weights = load_file(path)
        networks = nn.ModuleList(NoiseNetwork() for _ in {name.split(".")[0] for name in weights}).float()
        networks.load_state_dict(weights)
    return networks.requires_grad_(False)


def find_noise(brightness: Tensor, colours: Tensor | None, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return deviations of the noise by rings `(2, 7)`, of brightness and of colours, and the caution; see `features`.

    The caution says how much more than by Stein's formula it should cost to follow the noise: the formula is exact on
    the average, while the weight is chosen from one picture.
    """
    seen = features(brightness.float().cpu(), None if colours is None else colours.float().cpu(), level.float().cpu())
    answers = [network(seen.blocks[None], seen.whole[None]) for network in trained_networks()]
    ratios, cautions = zip(*answers, strict=True)
    ratio, caution = torch.cat(ratios).mean(dim=0), torch.cat(cautions).mean(dim=0)
    return (seen.reference + ratio).exp().reshape(2, RINGS).to(brightness), caution.exp().to(brightness)
