"""A folder of photographs through `lmd solve denoise` and through scikit-image, files read and written by both.

    python benchmarks/folder.py --images FOLDER --count 50 --noise 5

Each runs in a process of its own, from start to end: imports, reading, solving, writing; modules are compiled to
bytecode before, as those of installed packages are. scikit-image reads, calls
`denoise_tv_chambolle` at its defaults (weight 0.1, isotropic) and writes, file by file; `lmd solve` is called at its
own defaults (automatic weight) and once more on scikit-image's very problem. Gaps are relative to certified minima,
those of scikit-image from its answers before they are rounded, on the first five files.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

THEIRS = """
import sys
from pathlib import Path
from skimage.io import imread, imsave
from skimage.restoration import denoise_tv_chambolle
from skimage.util import img_as_ubyte
for file in sorted(Path(sys.argv[1]).iterdir()):
    found = denoise_tv_chambolle(imread(file), channel_axis=-1)
    imsave(Path(sys.argv[2], file.name), img_as_ubyte(found), check_contrast=False)
"""
OURS = "from lmd.cli import program; program()"


def timed(call: list[str]) -> tuple[float, float, str]:
    """Seconds, seconds of the processor, and what was printed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", "import lmd.imaging, skimage.restoration"], check=True, env=kept)
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", *call], check=True, capture_output=True, text=True, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begun, used, done.stdout


def prepare(images: Path, count: int, noise: float, folder: Path) -> None:
    """Copies of the first files or, with noise in percent, noisy ones as PNG."""
    from lmd.imaging.image_files import Picture, read_picture, write_picture

    generator = np.random.default_rng(0)
    for file in sorted(images.iterdir())[:count]:
        if noise == 0:
            (folder / file.name).write_bytes(file.read_bytes())
            continue
        colours = read_picture(file).colours
        noisy = (colours + 2.55 * noise * generator.normal(size=colours.shape)).clip(0, 255).round()
        write_picture(folder / f"{file.stem}.png", Picture(noisy.astype(np.uint8)))


def gap_of_scikit_image(file: Path) -> float:
    """Of its answer for one file, relative to the minimum of its problem: ours with twice its weight."""
    import torch
    from skimage.restoration import denoise_tv_chambolle

    import lmd
    from lmd.imaging.image_files import read_picture

    y = torch.tensor(read_picture(file).colours, dtype=torch.float64)[None] / 255
    x = torch.from_numpy(denoise_tv_chambolle(y[0].numpy(), channel_axis=0))[None]
    problem = lmd.problems.TVDenoising(y, 0.2, isotropic=True)
    lower = lmd.solve(problem, 1e-5).certificate.lower_bound
    return float((problem.value(x) - lower) / lower)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--noise", type=float, default=0)
    parser.add_argument("--gaps", action="store_true", help="also those of scikit-image")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "in")
        for name in ("in", "theirs"):
            Path(place, name).mkdir()
        prepare(given.images, given.count, given.noise, folder)
        same = ("--isotropic", "--weight", "0.2", "--tolerance", "1e-2")
        calls = {"lmd solve": (), "lmd solve, scikit-image's problem": same}
        for place_of, (name, settings) in enumerate(calls.items()):
            out = str(Path(place, f"ours{place_of}"))
            seconds, used, said = timed([OURS, "solve", "denoise", str(folder), out, "--json", *settings])
            gaps = [json.loads(line)["certificate"]["relative_bound"] for line in said.splitlines()]
            worst = f"proven gaps: mean {np.mean(gaps):.1e}, worst {max(gaps):.1e}"
            print(f"{name}: {seconds:.2f} s, {used:.2f} s of processor; {worst}", flush=True)
        seconds, used, _ = timed([THEIRS, str(folder), str(Path(place, "theirs"))])
        print(f"scikit-image: {seconds:.2f} s, {used:.2f} s of processor", flush=True)
        if given.gaps:
            gaps = [gap_of_scikit_image(file) for file in sorted(folder.iterdir())[:5]]
            print(f"scikit-image: gaps: mean {np.mean(gaps):.1e}, worst {max(gaps):.1e}")


if __name__ == "__main__":
    main()
