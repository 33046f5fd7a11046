"""The practitioner's set: what `lmd.denoise(image)` gets out of pictures as people have them, beside the best weight.

    python benchmarks/pictures.py [--images FOLDER] [--count 24] [--side 128] [--cases white,jpeg] [--json FILE]
    python benchmarks/pictures.py --grain [--images FOLDER] [--count 24] [--side 128]

Each photograph (of FOLDER, else of bsds500/test in LMD_DATA, else of scikit-image) goes through every case: white
noise, Poisson noise with read-out, noisy pictures saved as JPEG, correlated noise, RGBA, black borders, clean pictures,
and two that photographs are only the seed of: piecewise constant signals, and a video that fades in from black. A row
has the mean PSNR that came in, of the call without options, and of the best weight of a grid from 1e-4 to 100 of the
range, then the largest loss to the best weight and the largest loss to what came in, over the photographs. A row passes
if the first is at most 0.5 dB for white and Poisson noise and 1 dB for all else, and the second at most 0.2 dB, for
every photograph. PSNR counts up to 58.9 dB, the noise that rounding to bytes makes. The exit code is 1 where a row
fails.

`--grain` shows what no choice of the weight can do: white grain that belongs to a picture looks like white noise. It
counts the photographs for which a weight would pass both ways: within 0.5 dB if it is noise, 0.2 dB if it is grain.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter, zoom

import lmd

BEST = 10 * math.log10(12 * 255**2)
COARSE, FINE = 2.0 ** np.arange(-13.5, 7), 2.0 ** np.array([-0.75, -0.5, -0.25, 0.25, 0.5, 0.75])

Random = np.random.Generator


class Picture(NamedTuple):
    """What `lmd.denoise` is given, what it should come back as, and the range of both."""

    noisy: np.ndarray
    clean: np.ndarray
    white: float = 255.0
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    colours: int | None = None
    """Only so many channels count."""


class Case(NamedTuple):
    make: Callable[[np.ndarray, Random], Picture]
    loss: float = 1.0
    """How far from the best weight, in dB."""


def as_bytes(x: np.ndarray) -> np.ndarray:
    return (255 * x).round().clip(0, 255).astype(np.uint8)


def white(noise: float, kind: type = np.float32, grey: bool = False) -> Case:
    """White noise, on bytes rounded and cut off as cameras do."""

    def make(clean: np.ndarray, random: Random) -> Picture:
        clean = clean[..., 1] if grey else clean
        noisy = clean + noise * random.normal(size=clean.shape)
        return Picture(as_bytes(noisy), 255 * clean) if kind is np.uint8 else Picture(noisy.astype(kind), clean, 1.0)

    return Case(make, 0.5)


def poisson(peak: float, read: float, kind: type = np.float32) -> Case:
    """Counts of up to `peak` photons, and read-out noise."""

    def make(clean: np.ndarray, random: Random) -> Picture:
        counts = random.poisson(peak * clean) + read * random.normal(size=clean.shape)
        if kind is np.uint8:
            return Picture(as_bytes(counts / peak), 255 * clean)
        return Picture(counts.astype(kind), peak * clean, peak)

    return Case(make, 0.5)


def jpeg(quality: int, subsampling: int, noise: float = 0.1, enlarged: bool = False) -> Case:
    """A noisy picture that was saved; `subsampling` 0 is 4:4:4, 2 is 4:2:0."""

    def make(clean: np.ndarray, random: Random) -> Picture:
        file = io.BytesIO()
        small = clean[::2, ::2] if enlarged else clean
        noisy = Image.fromarray(as_bytes(small + noise * random.normal(size=small.shape)))
        noisy.save(file, "JPEG", quality=quality, subsampling=subsampling)
        found = np.asarray(Image.open(file))
        if enlarged:
            found, small = (zoom(each.astype(float), (2, 2, 1), order=1) for each in (found, 255 * small))
            return Picture(found.round().clip(0, 255).astype(np.uint8), small)
        return Picture(found, 255 * clean)

    return Case(make)


def correlated(noise: float, width: float) -> Case:
    def make(clean: np.ndarray, random: Random) -> Picture:
        wide = gaussian_filter(random.normal(size=clean.shape), (width, width, 0), mode="wrap")
        return Picture((clean + noise * wide / wide.std()).astype(np.float32), clean, 1.0)

    return Case(make)


def rgba(shaped: bool) -> Case:
    """A noisy picture with an alpha channel: of 255 everywhere, or of a disc."""

    def make(clean: np.ndarray, random: Random) -> Picture:
        rows, columns = np.indices(clean.shape[:2])
        disc = np.hypot(rows - len(rows) / 2, columns - columns.shape[1] / 2) < 0.45 * len(rows)
        alpha = np.where(disc, 255, 0 if shaped else 255).astype(np.uint8)
        noisy = as_bytes(clean + 0.1 * random.normal(size=clean.shape))
        return Picture(np.dstack([noisy, alpha]), np.dstack([255 * clean, alpha]), colours=3)

    return Case(make)


def borders(clean: np.ndarray, random: Random) -> Picture:
    """Two thirds of the picture are black, without noise."""
    inside = np.zeros((*clean.shape[:2], 1), bool)
    rows, columns = (round(0.21 * length) for length in clean.shape[:2])
    inside[rows:-rows, columns:-columns] = True
    noisy = as_bytes(clean + 0.08 * random.normal(size=clean.shape))
    return Picture(noisy * inside, 255 * clean * inside)


def signal(clean: np.ndarray, random: Random) -> Picture:
    """Steps of a signal of 2000 samples."""
    ends = np.sort(random.integers(0, 2000, size=12))
    levels = random.random(13)[np.searchsorted(ends, np.arange(2000))]
    return Picture(levels + 0.1 * random.normal(size=2000), levels, 1.0)


def patches(clean: np.ndarray, random: Random) -> Picture:
    """Flat squares, as in phantoms."""
    flat = np.kron(random.random((5, 5)), np.ones((26, 26)))
    return Picture(flat + 0.1 * random.normal(size=flat.shape), flat, 1.0)


def clean_bytes(clean: np.ndarray, random: Random) -> Picture:
    return Picture(as_bytes(clean), 255 * clean)


def clean_floats(clean: np.ndarray, random: Random) -> Picture:
    return Picture(clean.astype(np.float64), clean, 1.0)


def fade_in(clean: np.ndarray, random: Random) -> Picture:
    """Two black frames, then one by one the picture, with noise."""
    shares = np.array([0, 0, 0.2, 0.5, 0.8, 1.0])[:, None, None, None]
    noise = 0.08 * random.normal(size=(6, *clean.shape)) * (shares > 0)
    return Picture(as_bytes(shares * clean + noise), 255 * shares * clean)


CASES = {
    "white 0.5%": white(0.005),
    "white 1%, bytes": white(0.01, np.uint8),
    "white 2%": white(0.02),
    "white 5%, bytes": white(0.05, np.uint8),
    "white 5%, grey": white(0.05, grey=True),
    "white 10%": white(0.1, np.float64),
    "white 15%, bytes": white(0.15, np.uint8),
    "white 25%": white(0.25),
    "Poisson 1000": poisson(1000, 5),
    "Poisson 60": poisson(60, 2),
    "Poisson 100, bytes": poisson(100, 3, np.uint8),
    "JPEG 75, 4:2:0": jpeg(75, 2),
    "JPEG 75, 4:4:4": jpeg(75, 0),
    "JPEG 90, 4:2:0": jpeg(90, 2),
    "JPEG 90, 4:4:4": jpeg(90, 0),
    "JPEG 90, enlarged": jpeg(90, 2, enlarged=True),
    "correlated 8%, 0.6": correlated(0.08, 0.6),
    "correlated 8%, 1.0": correlated(0.08, 1.0),
    "RGBA, opaque": rgba(shaped=False),
    "RGBA, a disc": rgba(shaped=True),
    "black borders": Case(borders),
    "clean, bytes": Case(clean_bytes),
    "clean, floats": Case(clean_floats),
    "signal, steps": Case(signal),
    "flat patches": Case(patches),
    "fade-in": Case(fade_in),
}


def psnr(x: np.ndarray, picture: Picture) -> float:
    error = (np.asarray(x, np.float64) - picture.clean)[..., : picture.colours] / picture.white
    return min(BEST, -10 * math.log10(max(1e-12, float(np.mean(error**2)))))


def default_of(picture: Picture, name: str) -> np.ndarray:
    call = lmd.denoise_video if name == "fade-in" else lmd.denoise
    found: np.ndarray = call(picture.noisy)
    return found


def best_of(picture: Picture, name: str) -> float:
    """The PSNR of the best weight; of a video each frame has its own."""
    if name == "fade-in":
        frames = zip(picture.noisy, picture.clean, strict=True)
        errors = [10 ** (-best_of(Picture(noisy, clean), "") / 10) for noisy, clean in frames]
        return -10 * math.log10(sum(errors) / len(errors))
    unit = picture.white / 255 if picture.noisy.dtype == np.uint8 else picture.white

    def score(weight: float) -> float:
        return psnr(lmd.denoise(picture.noisy, weight * unit, tolerance=3e-3), picture)

    found = {float(weight): score(weight) for weight in COARSE}
    top = max(found, key=found.__getitem__)
    return max(*found.values(), *(score(top * share) for share in FINE))


def photographs(folder: str | None, count: int, side: int) -> list[np.ndarray]:
    """Crops of the middle, of colours from 0 to 1."""
    data = Path(os.environ.get("LMD_DATA", "")) / "bsds500" / "test"
    path = Path(folder) if folder else data if data.is_dir() else None
    if path is None:
        from skimage import data as images

        names = ("astronaut", "coffee", "chelsea", "rocket", "retina", "colorwheel", "immunohistochemistry")
        found = [getattr(images, name)()[..., :3] for name in names]
        found = [each[a:, b:] for a in (0, 130) for b in (0, 140) for each in found][:count]
    else:
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
        files = [files[round(at)] for at in np.linspace(0, len(files) - 1, min(count, len(files)))]
        found = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    cut = []
    for image in found:
        top, left = ((length - min(side, length)) // 2 for length in image.shape[:2])
        cut.append(image[top : top + side, left : left + side] / 255)
    return cut


def measure(name: str, case: Case, images: list[np.ndarray], verbose: bool = False) -> dict[str, Any]:
    rows = []
    for number, clean in enumerate(images):
        picture = case.make(clean, np.random.default_rng(number))
        rows.append((psnr(picture.noisy, picture), psnr(default_of(picture, name), picture), best_of(picture, name)))
        if verbose:
            print(f"    {number}: in {rows[-1][0]:.2f} out {rows[-1][1]:.2f} best {rows[-1][2]:.2f}", flush=True)
    before, default, best = np.array(rows).T
    lost, harm = best - default, before - default
    return {
        "case": name,
        "in": float(before.mean()),
        "default": float(default.mean()),
        "best": float(best.mean()),
        "loss": float(lost.max()),
        "mean_loss": float(lost.mean()),
        "harm": float(harm.max()),
        "too_far": int((lost > case.loss).sum()),
        "harmed": int((harm > 0.2).sum()),
        "passes": bool((lost <= case.loss).all() and (harm <= 0.2).all()),
    }


def passes_both_ways(clean: np.ndarray, level: float, random: Random) -> bool:
    """Whether one weight is good enough if white noise was added, and if all of the picture is meant."""
    noisy = (clean + level * random.normal(size=clean.shape)).astype(np.float32)
    answers = [noisy, *(lmd.denoise(noisy, weight, tolerance=3e-3) for weight in 2.0 ** np.arange(-12, -4.9, 0.25))]
    if_noise, if_grain = (
        np.array([psnr(x, Picture(noisy, truth, 1.0)) for x in answers]) for truth in (clean, noisy.astype(float))
    )
    return bool(((if_noise >= if_noise.max() - 0.5) & (if_grain >= BEST - 0.2)).any())


def count_grain(images: list[np.ndarray]) -> None:
    for level in (0.002, 0.003, 0.005, 0.01):
        good = sum(passes_both_ways(clean, level, np.random.default_rng(n)) for n, clean in enumerate(images))
        print(f"white, {level:.1%}: a weight passes both ways for {good} of {len(images)} photographs", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", help="a folder of photographs")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--cases", default="", help="parts of names, with commas between")
    parser.add_argument("--json", help="also write the rows to this file")
    parser.add_argument("--grain", action="store_true", help="only what can not be told apart")
    parser.add_argument("--verbose", action="store_true", help="each photograph")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    images = photographs(given.images, given.count, given.side)
    if given.grain:
        count_grain(images)
        return 0
    parts = [part.strip().lower() for part in given.cases.split(",")]
    print(f"{len(images)} photographs of {given.side} x {given.side}, dB; 'far' and 'harmed' count photographs\n")
    print("| case | in | default | best weight | mean loss | largest loss | below what came in | far | harmed | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for name, case in CASES.items():
        if not any(part in name.lower() for part in parts):
            continue
        row = measure(name, case, images, given.verbose)
        rows.append(row)
        numbers = " | ".join(f"{row[key]:.2f}" for key in ("in", "default", "best", "mean_loss", "loss", "harm"))
        verdict = "pass" if row["passes"] else "FAIL"
        print(f"| {name} | {numbers} | {row['too_far']} | {row['harmed']} | {verdict} |", flush=True)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1))
    failed = sum(not row["passes"] for row in rows)
    print(f"\n{len(rows) - failed} of {len(rows)} cases pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
