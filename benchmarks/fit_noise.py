"""Fit the network that tells noise from texture (`src/lmd/imaging/noise_network.safetensors`).

    python benchmarks/fit_noise.py draw FOLDER train --shard 0     # 0 to 14; val: 0, 1 and 12; each can be resumed
    python benchmarks/fit_noise.py fit FOLDER --seed 1 --out 1.safetensors    # and 2, 3
    python benchmarks/fit_noise.py join 1.safetensors 2.safetensors 3.safetensors --out three.safetensors
    python benchmarks/fit_noise.py tune FOLDER --start three.safetensors --seed 1 --out noise_network.safetensors

`draw` takes photographs of bsds500/train or val in LMD_DATA, half of those in stl10_248.npz there, and drawings, adds
noise of a random kind, and writes what the loss needs: energies of blocks, the dB of the answer for each weight of a
grid, and the parts of Stein's risk, which is linear in the variances of the noise by rings. `fit` minimises the loss in
dB of the weight that has the least risk for the noise that the network tells, and how far that is from the true noise,
on shards 0 to 11; `tune` goes on with all of them. Test photographs are not used.

Shards 0 to 11 of the weights that ship were drawn when risks were taken on windows of small images, not on the whole of
them: a new run gives networks like these, not the same numbers.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.ndimage import gaussian_filter, zoom
from torch import Tensor, nn

from lmd.imaging.models import ROUGH_EFFORT, DenoisingModel, cut
from lmd.imaging.noise import (
    RINGS,
    NoiseNetwork,
    block_energies,
    blocks_with_noise,
    cut_blocks,
    features,
    join_blocks,
    mix_channels,
    ring_counts,
    rings,
)
from lmd.zoo.solve import solve

Random = np.random.Generator
BEST = 10 * math.log10(12 * 255**2)
"""dB of rounding to bytes: better answers count as that."""

WEIGHTS = 2.0 ** torch.arange(-12, 1.6, 0.75)
SIZE = (8, 8)
SHARD = 2000
"""Samples in a shard."""

DRAWINGS, FILES = (8, 9), (10, 11)
"""Shards of drawings alone, and of noisy files, enlarged or not; of others one sample in six is a drawing."""

ORIGINS = range(12, 100)
"""Shards of photographs of other origins, half of them of STL-10, resized, blurred, or with grain: those of BSDS were
all saved as JPEG with subsampled colours, and have no grain in these."""

GROUPS = ("", "drawing, ", "other, ")
"""Names of photographs of BSDS, drawings, and photographs of other origins in the report."""

SEEN = 640
"""Blocks of a sample that `fit` looks at."""

TUNED = 256
"""Blocks of a sample, drawn anew for each update, that `tune` looks at."""

MARGIN = 0.3
"""Losses in dB above this count twice, by their squares."""

CLEAN = 8.0
"""Losses of clean pictures count so many times: there, noise that is not there costs most."""

MORE = 3.0
"""`tune` sees samples of other origins so many times as often as others."""

KINDS = {
    "white": 3,
    "low": 3,
    "dark": 1,
    "grey": 1,
    "grey low": 1,
    "poisson": 2,
    "jpeg": 3,
    "enlarged": 1.5,
    "correlated": 2,
    "borders": 1,
    "clean": 3,
    "grey clean": 1.5,
}
"""How often each kind of noise is drawn, relative to the others."""

ORIGIN_KINDS = KINDS | {"low": 5, "clean": 6, "grey low": 1.5}
"""The same for photographs of other origins: there, low noise is what is hard to tell."""


def as_bytes(x: np.ndarray) -> np.ndarray:
    return (255 * x).round().clip(0, 255).astype(np.uint8)


def saved(image: np.ndarray, quality: int, subsampling: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return np.asarray(Image.open(file))


def log_uniform(random: Random, low: float, high: float) -> float:
    return float(np.exp(random.uniform(math.log(low), math.log(high))))


def crop(image: np.ndarray, random: Random) -> np.ndarray:
    """A random part of a photograph, at full size or made smaller, some saved as JPEG once more."""
    share = random.choice([1.0, 1.0, 1.0, 0.7, 0.5])
    if share < 1:
        size = (int(image.shape[1] * share), int(image.shape[0] * share))
        image = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))
    if random.random() < 0.3:
        image = saved(image, int(random.integers(70, 98)), int(random.choice([0, 2])))
    side = int(random.choice([64, 96, 128, 128, 128, 128, 128, 160, 224, 320]))
    height, width = (min(side, length) for length in image.shape[:2])
    top, left = (int(random.integers(0, n - m + 1)) for n, m in zip(image.shape, (height, width), strict=False))
    part = image[top : top + height, left : left + width]
    return (part[:, ::-1] if random.random() < 0.5 else part) / 255


def grain(image: np.ndarray, random: Random) -> np.ndarray:
    """Grain that belongs to a picture: of brightness and colours, shared by neighbours, more in some tones."""
    shared = random.random() < 0.8
    grey, colours = random.normal(size=(*image.shape[:2], 1)), random.normal(size=image.shape)
    if shared:
        wide = random.uniform(0.25, 1.0), random.uniform(0.3, 1.6)
        grey, colours = (
            gaussian_filter(each, (w, w, 0), mode="wrap") for each, w in zip((grey, colours), wide, strict=True)
        )
    share = random.uniform(0.2, 0.9)
    both = math.sqrt(share) * grey / grey.std() + math.sqrt(1 - share) * colours / colours.std()
    tones = gaussian_filter(image, (1, 1, 0)).clip(0, 1)
    gain = [np.ones_like(tones), np.sqrt(tones + 0.02), np.sqrt(tones * (1 - tones) + 0.02)][int(random.integers(3))]
    level = log_uniform(random, 0.0015, 0.01) if shared else log_uniform(random, 0.0010, 0.004)
    return image + level * gain / np.sqrt(np.mean(gain**2)) * both


def other_origin(image: np.ndarray, random: Random) -> np.ndarray:
    """A photograph that was resized by any factor, is blurred, or has grain."""
    height, width = image.shape[:2]
    small = min(height, width) < 200
    share = random.choice([1.0, random.uniform(0.8, 1) if small else random.uniform(0.4, 0.9), random.uniform(1.1, 2)])
    if share != 1:
        ways = Image.Resampling
        way = [ways.BILINEAR, ways.BICUBIC, ways.LANCZOS, ways.BOX, ways.HAMMING][int(random.integers(5))]
        way = ways.BICUBIC if share > 1 and way in (ways.BOX, ways.HAMMING) else way
        image = np.asarray(Image.fromarray(image).resize((int(width * share), int(height * share)), way))
    found = image / 255
    if random.random() < 0.2:
        found = gaussian_filter(found, (*([random.uniform(0.4, 1.5)] * 2), 0))
    if random.random() < 0.5:
        found = grain(found, random)
    return as_bytes(found)


def field(random: Random) -> np.ndarray:
    """Smooth fields of colours, of any roughness, or many discs one over the other."""
    side = int(random.choice([96, 128, 128, 192]))
    if random.random() < 0.6:
        size = np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side)))
        size[0, 0] = np.inf
        fall = random.uniform(1.2, 3.5)
        waves = np.fft.fft2(random.normal(size=(side, side, 3)), axes=(0, 1)) / size[..., None] ** fall
        found = np.fft.ifft2(waves, axes=(0, 1)).real
        mix = random.uniform(0, 1)
        found = mix * found / found.std() + (1 - mix) * found[..., :1] / found[..., :1].std()
        return as_bytes(random.uniform(0.2, 0.8, 3) + random.uniform(0.03, 0.25) * found)
    rows, columns = np.indices((side, side)) / side
    found = np.zeros((side, side, 3)) + random.random(3)
    for _ in range(int(random.integers(50, 400))):
        y, x, radius = random.random(), random.random(), min(0.4, 0.02 * random.pareto(2.0) + 0.01)
        found[np.hypot(rows - y, columns - x) < radius] = random.random(3)
    return as_bytes(gaussian_filter(found, (*([random.uniform(0.3, 1.0)] * 2), 0)))


def drawing(random: Random) -> np.ndarray:
    """Flat regions, slopes, strokes, or nothing but one colour."""
    side = int(random.choice([64, 96, 128, 128, 160]))
    rows, columns = np.indices((side, side)) / side
    clean = np.zeros((side, side, 3)) + random.random(3)
    kind = random.choice(["constant", "squares", "shapes", "slope", "strokes"])
    if kind == "squares":
        count = int(random.integers(2, 9))
        clean = np.kron(random.random((count, count, 3)), np.ones((-(-side // count),) * 2 + (1,)))[:side, :side]
    if kind == "slope":
        slope = rows * random.random() + columns * random.random()
        clean = 0.4 * clean + 0.6 * slope[..., None] * random.random(3)
    if kind in ("shapes", "slope"):
        for _ in range(int(random.integers(1, 12))):
            y, x, turn = random.random(), random.random(), random.uniform(0, math.pi)
            long, wide = random.uniform(0.02, 0.32, 2)
            along = ((rows - y) * np.cos(turn) + (columns - x) * np.sin(turn)) / long
            across = ((columns - x) * np.cos(turn) - (rows - y) * np.sin(turn)) / wide
            size = np.hypot(along, across) if random.random() < 0.5 else np.maximum(abs(along), abs(across))
            clean[size < 1] = random.random(3)
    if kind == "strokes":
        for _ in range(int(random.integers(20, 200))):
            (top, left), (height, width) = random.integers(0, side - 8, 2), random.integers(1, 8, 2)
            clean[top : top + height, left : left + width] = random.choice([0.0, 0.2, 1.0])
    if random.random() < 0.3:
        clean = clean.mean(axis=-1, keepdims=True) * np.ones(3)
    return clean.clip(0, 1)


def with_noise(clean: np.ndarray, kind: str, random: Random) -> tuple[np.ndarray, np.ndarray]:
    """The picture with noise of a kind, and without."""
    in_bytes = random.random() < 0.5
    sigma = log_uniform(random, 0.003, 0.025) if "low" in kind else log_uniform(random, 0.02, 0.3)
    if kind.startswith("grey"):
        clean = clean[..., 1:2]
    if kind == "dark":
        clean = clean * random.uniform(0.2, 0.7) + random.uniform(0, 0.2)
    noise = random.normal(size=clean.shape)
    if kind.endswith("clean"):
        return clean, clean
    if kind == "poisson":
        peak, read = log_uniform(random, 30, 3000), random.uniform(0, 5)
        noisy = (random.poisson(peak * clean) + read * noise) / peak
    elif kind == "jpeg":
        quality, subsampling = int(random.integers(60, 97)), int(random.choice([0, 2]))
        return saved(as_bytes(clean + min(sigma, 0.2) * noise), quality, subsampling) / 255, clean
    elif kind == "enlarged":
        small = clean[::2, ::2]
        noisy = as_bytes(small + min(sigma, 0.2) * noise[::2, ::2])
        if random.random() < 0.8:
            noisy = saved(noisy, int(random.integers(70, 97)), int(random.choice([0, 2])))
        order = int(random.choice([1, 1, 3]))
        noisy, clean = (zoom(each.astype(float), (2, 2, 1), order=order) for each in (noisy / 255, small))
        in_bytes = True
    elif kind == "correlated":
        width = random.uniform(0.4, 1.3)
        wide = gaussian_filter(noise, (width, width, 0), mode="wrap")
        noisy = clean + min(sigma, 0.15) * wide / wide.std()
    else:
        noisy = clean + sigma * noise
    noisy = as_bytes(noisy) / 255 if in_bytes else noisy
    if kind == "borders":
        inside = np.zeros((*clean.shape[:2], 1), bool)
        rows, columns = (max(1, round(random.uniform(0.05, 0.3) * length)) for length in clean.shape[:2])
        inside[rows:-rows, columns:-columns] = True
        noisy, clean = noisy * inside, clean * inside
    return noisy, clean


def energies(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one image `(1, C, H, W)`: blocks, their levels `(blocks,)`, and energies `(C, blocks, 7)`."""
    blocks = cut_blocks(images, SIZE)
    found, levels = block_energies(blocks, SIZE)
    return blocks, levels[0], found[0]


def probes(windows: Tensor) -> Tensor:
    """Noise of deviation 1 in one ring, of brightness or of colours: `(14, windows, C, h, w)`."""
    counts = [-(-extent // 8) for extent in windows.shape[2:]]
    shape = (*windows.shape[:2], math.prod(counts), 64)
    signs = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).float() * 2 - 1
    found = []
    for channels in (slice(0, 1), slice(1, None)):
        for ring in range(1, RINGS + 1):
            one = torch.zeros_like(signs)
            one[:, channels] = signs[:, channels] * (rings(SIZE).clamp(min=1) == ring)
            joined = join_blocks(one, counts, SIZE)[..., : windows.shape[2], : windows.shape[3]]
            found.append(mix_channels(joined, back=True))
    return torch.stack(found)


def draw(picture: np.ndarray, kind: str, group: int, random: Random) -> dict[str, Tensor] | None:
    """One sample of a group of `GROUPS`; None where there is nothing to see."""
    noisy, clean = with_noise(picture, kind, random)
    y = torch.from_numpy(np.moveaxis(noisy, -1, 0).astype(np.float32))[None]
    truth = torch.from_numpy(np.moveaxis(clean, -1, 0))[None]
    blocks, level, energy = energies(y)
    shown = blocks_with_noise(blocks)[0]
    if int(shown.sum()) < 30:
        return None
    noise = energies((y.double() - truth).float())[2][:, shown].mean(dim=1)
    rms = float((y.double() - truth).square().mean().sqrt())
    model = DenoisingModel(coupled=y.shape[1] == 3).problem
    answers = [solve(model(y, weight[None]), 3e-3).x for weight in WEIGHTS]
    errors = torch.stack([(x.double() - truth).square().mean() for x in answers])
    windows, _ = cut(y)
    directions, push = probes(windows), 0.1 * max(rms, 0.004)
    moved = torch.cat([windows, windows + push * directions.sum(dim=0)])
    problem = model(moved.repeat(len(WEIGHTS), 1, 1, 1), WEIGHTS.repeat_interleave(len(moved)))
    here, there = (
        solve(problem, ROUGH_EFFORT[0], iterations=ROUGH_EFFORT[1]).x.reshape(len(WEIGHTS), 2, *windows.shape).unbind(1)
    )
    follow = torch.einsum("wnchv,knchv->wk", (there - here) / push, directions) / windows.numel()
    colours = energy[1:].mean(dim=0) if len(energy) > 1 else torch.zeros_like(energy[0])
    seen = features(energy[0][shown], colours[shown] if len(energy) > 1 else None, level[shown])
    order = torch.randperm(len(seen.blocks), generator=torch.Generator().manual_seed(0))[:SEEN]
    padded = torch.zeros(SEEN, seen.blocks.shape[1])
    padded[: len(order)] = seen.blocks[order]
    return {
        "kind": torch.tensor(list(KINDS).index(kind) + len(KINDS) * group),
        "blocks": padded.half(),
        "count": torch.tensor(len(order)),
        "whole": seen.whole,
        "reference": seen.reference,
        "noise": torch.cat([noise[0], noise[1:].mean(dim=0) if len(noise) > 1 else torch.zeros(RINGS)]).sqrt(),
        "colour": torch.tensor(float(len(energy) > 1)),
        "psnr": (-10 * errors.clamp(min=1e-12).log10()).clamp(max=BEST).float(),
        "before": torch.tensor(min(BEST, -20 * math.log10(max(rms, 1e-6)))),
        "misfit": (here - windows).square().flatten(1).mean(dim=1),
        "follow": follow,
    }


Photographs = tuple[list[np.ndarray], list[np.ndarray]]


def read_photographs(split: str) -> Photographs:
    """Those of BSDS, and those of STL-10: the first half for training, the second for validation."""
    data = Path(os.environ["LMD_DATA"])
    photos = [np.asarray(Image.open(file).convert("RGB")) for file in sorted((data / "bsds500" / split).glob("*.jpg"))]
    small = np.moveaxis(np.load(data / "stl10_248.npz")["images"], 1, -1)
    half = len(small) // 2
    return photos, list(small[:half] if split == "train" else small[half:])


def draw_clean(photos: Photographs, shard: int, random: Random) -> tuple[np.ndarray, str, int]:
    """A clean picture, the kind of noise that it gets, and its group."""
    weights = np.array(list((ORIGIN_KINDS if shard in ORIGINS else KINDS).values()))
    kind = str(random.choice(list(KINDS), p=weights / weights.sum()))
    is_drawing = (random.random() < 1 / 6 and shard not in FILES) or shard in DRAWINGS
    if shard in ORIGINS:
        source = photos[int(random.integers(2))]
        photo = field(random) if is_drawing else source[int(random.integers(len(source)))]
        return crop(other_origin(photo, random), random), kind, 2
    kind = str(random.choice(["jpeg", "enlarged", "enlarged"])) if shard in FILES else kind
    if is_drawing:
        return drawing(random), kind, 1
    return crop(photos[0][int(random.integers(len(photos[0])))], random), kind, 0


def draw_shard(folder: Path, split: str, shard: int) -> None:
    photos = read_photographs(split)
    begun = time.monotonic()
    for part in range(SHARD // 250):
        path = folder / f"{split}-{shard}-{part}.safetensors"
        if path.exists():
            continue
        rows = []
        for number in range(250):
            random = np.random.default_rng([split == "val", shard, part, number])
            rows.append(draw(*draw_clean(photos, shard, random), random))
        found = [row for row in rows if row is not None]
        save_file({key: torch.stack([row[key] for row in found]).contiguous() for key in found[0]}, path)
        print(f"{path.name}: {len(found)} samples, {time.monotonic() - begun:.0f} s", flush=True)


Samples = dict[str, Tensor]


def load(folder: Path, split: str, shards: range = range(ORIGINS.stop)) -> Samples:
    paths = [path for path in sorted(folder.glob(f"{split}-*.safetensors")) if int(path.stem.split("-")[1]) in shards]
    parts = [load_file(path) for path in paths]
    samples = {key: torch.cat([part[key] for part in parts]).float() for key in parts[0] if key != "blocks"}
    return {**samples, "blocks": torch.cat([part["blocks"] for part in parts])}


SHARES = torch.tensor(ring_counts(SIZE)) / sum(ring_counts(SIZE))


def find(network: nn.Module, samples: Samples) -> tuple[Tensor, Tensor]:
    """Deviations of the noise by rings `(samples, 14)`, and the caution `(samples,)`."""
    shown = samples.get("place", torch.arange(SEEN)) < samples["count"][:, None]
    ratios, caution = network(samples["blocks"].float(), samples["whole"], shown)
    return (samples["reference"] + ratios).exp() * seen_rings(samples), caution.exp()


def seen_rings(samples: Samples) -> Tensor:
    return torch.cat([torch.ones(len(samples["colour"]), RINGS), samples["colour"][:, None].expand(-1, RINGS)], dim=1)


def variance(noise: Tensor, samples: Samples) -> Tensor:
    """Of a pixel."""
    bright, colours = noise.square().reshape(-1, 2, RINGS).matmul(SHARES).unbind(1)
    return torch.where(samples["colour"] > 0, (bright + 2 * colours) / 3, bright)


def risks(noise: Tensor, samples: Samples) -> Tensor:
    """Stein's risk of each weight, up to a constant."""
    return samples["misfit"] + 2 * (samples["follow"] * noise.square()[:, None]).sum(dim=2)


def expected_loss(noise: Tensor, samples: Samples) -> Tensor:
    """dB lost to the best weight, where weights are chosen with probabilities that fall with their risk."""
    risk = risks(noise, samples)
    scale = 0.02 * (variance(noise, samples).detach()[:, None] + 1e-7)
    chosen = torch.softmax((risk.amin(dim=1, keepdim=True) - risk) / scale, dim=1)
    return (chosen * (samples["psnr"].amax(dim=1, keepdim=True) - samples["psnr"])).sum(dim=1)


def error(noise: Tensor, samples: Samples) -> Tensor:
    """How far the noise is from the true one; of clean pictures, whether it is more than a thousandth."""
    true, least = samples["noise"], 1e-6
    apart = (noise.square() + least).log() - (true.square() + least).log()
    weight = SHARES.sqrt().repeat(2) * torch.tensor([1.0, 2.0]).repeat_interleave(RINGS) * true.square()
    weight = weight / weight.sum(dim=1, keepdim=True).clamp(min=1e-12)
    far = (torch.nn.functional.smooth_l1_loss(apart, torch.zeros_like(apart), reduction="none") * weight).sum(dim=1)
    much = torch.relu(variance(noise, samples).clamp(min=1e-12).sqrt() / 2e-3 - 1).clamp(max=3)
    return torch.where(variance(true, samples) > 1e-6, far, much)


def loss_in_db(noise: Tensor, samples: Samples) -> Tensor:
    """Lost to the best weight by the one where a parabola through the three least risks is least."""
    risk, psnr = risks(noise, samples), samples["psnr"]
    lowest, last = risk.argmin(dim=1), risk.shape[1] - 1
    middle = lowest.clamp(1, last - 1)
    left, centre, right = (risk.gather(1, (middle + step)[:, None])[:, 0] for step in (-1, 0, 1))
    bend = left - 2 * centre + right
    vertex = torch.where(bend > 0, 0.5 * (left - right) / bend.clamp(min=1e-30), (lowest - middle).float())
    place = (middle + vertex.clamp(-1, 1)).clamp(0, last)
    below = place.floor().long().clamp(max=last - 1)
    low, high = (psnr.gather(1, (below + step)[:, None])[:, 0] for step in (0, 1))
    return psnr.amax(dim=1) - torch.lerp(low, high, place - below)


class Average(nn.Module):
    """The mean answer of networks."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *seen: Tensor) -> tuple[Tensor, Tensor]:
        answers = [network(*seen) for network in self.networks]
        ratios, cautions = (torch.stack(each).mean(dim=0) for each in zip(*answers, strict=True))
        return ratios, cautions


def report(network: nn.Module, samples: Samples) -> None:
    with torch.no_grad():
        parts = torch.arange(len(samples["blocks"])).split(256)
        found = [find(network, {key: each[at] for key, each in samples.items()}) for at in parts]
        noise, caution = (torch.cat(each) for each in zip(*found, strict=True))
    lost, known = loss_in_db(noise * caution.sqrt()[:, None], samples), loss_in_db(samples["noise"], samples)
    ratio = (variance(noise, samples) / variance(samples["noise"], samples).clamp(min=1e-8)).sqrt()
    names = [f"{group}{name}" for group in GROUPS for name in KINDS]
    rows: dict[str, Tensor] = {"all": torch.ones(len(lost), dtype=torch.bool)}
    rows |= {name: samples["kind"] == number for number, name in enumerate(names)}
    print("| kind | samples | mean loss, dB | 97% | largest | above 0.5 | above 1 | known: above 0.5 | level 5%, 95% |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, at in rows.items():
        if not bool(at.any()):
            continue
        each, share = lost[at], ratio[at]
        print(
            f"| {name} | {len(each)} | {each.mean():.2f} | {each.quantile(0.97):.2f} | {each.max():.2f} "
            f"| {(each > 0.5).float().mean():.1%} | {(each > 1).float().mean():.1%} "
            f"| {(known[at] > 0.5).float().mean():.1%} | {share.quantile(0.05):.2f}, {share.quantile(0.95):.2f} |"
        )


def training_loss(network: nn.Module, samples: Samples) -> Tensor:
    noise, caution = find(network, samples)
    lost = expected_loss(noise * caution.sqrt()[:, None], samples)
    much = torch.relu(lost - MARGIN).square().clamp(max=20)
    weight = torch.where(samples["before"] >= BEST, CLEAN, 1.0)
    return (weight * (lost + 0.5 * much) + 1.5 * error(noise, samples)).mean()


def descend(networks: nn.ModuleList, train: Samples, updates: int, rate: float, num_blocks: int) -> None:
    """Train each network by itself, on the same samples, looking at `num_blocks` of each."""
    often = torch.where(train["kind"] >= 2 * len(KINDS), MORE, 1.0)
    optimiser = torch.optim.AdamW(networks.parameters(), rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=updates)
    begun, total = time.monotonic(), 0.0
    for update in range(1, updates + 1):
        at = torch.multinomial(often, 64, replacement=True)
        samples = {key: each[at] for key, each in train.items()}
        if num_blocks < SEEN:
            blocks = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(SEEN - 1)[: num_blocks - 1]])
            samples |= {"blocks": samples["blocks"][:, blocks], "place": blocks}
        optimiser.zero_grad()
        for network in networks:
            loss = training_loss(network, samples)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            total += float(loss.detach()) / len(networks)
        optimiser.step()
        schedule.step()
        if update % 250 == 0:
            print(f"{update}: {total / 250:.3f}, {time.monotonic() - begun:.0f} s", flush=True)
            total = 0.0


def fit(folder: Path, out: Path, updates: int, seed: int) -> None:
    torch.manual_seed(seed)
    network = NoiseNetwork()
    nn.init.zeros_(network.last.weight)
    nn.init.constant_(network.last.bias.data[:-1], -0.3)
    network.last.bias.data[-1] = 0.0
    descend(nn.ModuleList([network]), load(folder, "train", range(ORIGINS.start)), updates, 3e-3, SEEN)
    save_file(network.state_dict(), out)
    report(network, load(folder, "val"))


def tune(folder: Path, start: Path, out: Path, updates: int, seed: int) -> None:
    """Go on training the networks of a file."""
    torch.manual_seed(seed)
    weights = load_file(start)
    networks = nn.ModuleList(NoiseNetwork() for _ in {name.split(".")[0] for name in weights})
    networks.load_state_dict(weights)
    report(Average(networks), load(folder, "val"))
    descend(networks, load(folder, "train"), updates, 2e-3, TUNED)
    save_file(networks.state_dict(), out)
    report(Average(networks), load(folder, "val"))


def join(members: list[Path], out: Path) -> None:
    """Write networks whose answers are averaged into one file."""
    weights = [load_file(member) for member in members]
    save_file({f"{number}.{name}": each for number, one in enumerate(weights) for name, each in one.items()}, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing_command = commands.add_parser("draw", help="draw samples")
    drawing_command.add_argument("folder", type=Path)
    drawing_command.add_argument("split", choices=("train", "val"))
    drawing_command.add_argument("--shard", type=int, default=0)
    fitting = commands.add_parser("fit", help="train the network")
    fitting.add_argument("folder", type=Path)
    fitting.add_argument("--out", type=Path, required=True)
    fitting.add_argument("--updates", type=int, default=12_000)
    fitting.add_argument("--seed", type=int, default=0)
    tuning = commands.add_parser("tune", help="go on training the networks of a file")
    tuning.add_argument("folder", type=Path)
    tuning.add_argument("--start", type=Path, required=True)
    tuning.add_argument("--out", type=Path, required=True)
    tuning.add_argument("--updates", type=int, default=3000)
    tuning.add_argument("--seed", type=int, default=0)
    joining = commands.add_parser("join", help="put networks into one file")
    joining.add_argument("members", type=Path, nargs="+")
    joining.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "draw":
        torch.set_num_threads(1)
        given.folder.mkdir(parents=True, exist_ok=True)
        draw_shard(given.folder, given.split, given.shard)
    elif given.command == "fit":
        fit(given.folder, given.out, given.updates, given.seed)
    elif given.command == "tune":
        tune(given.folder, given.start, given.out, given.updates, given.seed)
    else:
        join(given.members, given.out)


if __name__ == "__main__":
    main()
