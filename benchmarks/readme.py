"""The tables of README.md: written from docs/measurements/*.json, so that no number is in two places.

    python benchmarks/readme.py               # write the tables into README.md
    python benchmarks/readme.py --measure     # first measure times and memory anew: two minutes, on a quiet machine
    python benchmarks/readme.py --quick       # the same on little, in half a minute: prints, and writes nothing

What is timed is the public call: the problem is made and checked, solved, and certified. Each method, ours or a peer's,
is called in several ways (iterations, tolerances, solvers), the cheap ones first, until it has the smallest gap or its
seconds are over, and the fastest of those that reach a gap counts. The gap
is the true one, (f - f*) / f*. prox_tv comes with `pip install 'lmd[bench]'`; without it its rows are left out. The
table of decibels is from `lmd bench` and is not measured here.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import lmd
from lmd.core.files import read_json, write_json, write_text
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.tv import TVModel
from lmd.reproduction.datasets import image_data
from lmd.reproduction.datasets.images import TEST_PHOTOGRAPHS, bundled
from lmd.reproduction.tasks.common import WEIGHT
from lmd.solvers import FGP, PDHG, Result

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements"
MARKED = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
MISSING = "*To be measured on a quiet machine: `python benchmarks/readme.py --measure`.*\n"

TARGETS = (1e-1, 1e-2, 1e-3, 1e-4)
REPEATS = 7
ENOUGH = 0.5
"""Seconds after which a call is not repeated any more."""

PATIENCE = 5.0
"""Seconds that a call may take; dearer settings of its method are not tried any more."""

PROX_TV = ("pd", "dr", "kolmogorov", "yang", "condat", "chambolle-pock")
COUNTS = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100, 170, 300, 500, 1000)
"""Numbers of iterations that a peer is called with."""

SOLVE = """
import sys
from lmd.cli.program import main
try:
    main(["solve", "denoise", "noisy.png", "clean.png"])
finally:
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""
"""What `lmd solve denoise noisy.png clean.png` runs, and then the most memory it held, as Linux knows it."""

Call = Callable[[], Tensor]
"""What is timed; its answer is x."""


def written(readme: str, measurements: Path = MEASUREMENTS) -> str:
    """The README with every part between `<!-- measured: NAME -->` and `<!-- end -->` as NAME.json has it."""
    return MARKED.sub(lambda part: part[1] + rendered(measurements / f"{part[2]}.json") + part[3], readme)


def rendered(path: Path) -> str:
    """A measurement as Markdown: a table, or what a command printed."""
    if not path.is_file():
        return MISSING
    found = read_json(path)
    if "output" in found:
        return f"```\n{found['output']}```\n\n{found['about']}\n"
    lines = [found["columns"], ["---"] * len(found["columns"]), *found["rows"]]
    table = "\n".join(f"| {' | '.join(_cell(entry) for entry in line)} |" for line in lines)
    return f"{found['about']}\n\n{table.replace('|  |', '| |')}\n"


def _cell(entry: object) -> str:
    if isinstance(entry, float):
        return f"{entry:#.3g}" if entry < 100 else f"{entry:.0f}"
    return "-" if entry is None else str(entry)


def cases(images: Tensor) -> Iterator[tuple[str, Callable[[], TVModel]]]:
    """What is solved: a word for it, and how the problem is made."""
    generator = torch.Generator().manual_seed(0)
    noisy = images + 0.05 * torch.randn(images.shape, generator=generator)
    mask = (torch.rand(images.shape[2:], generator=generator) < 0.8).float()
    yield "denoising, one image", lambda: TVDenoising(noisy[:1], WEIGHT)
    yield "denoising, 20 images", lambda: TVDenoising(noisy, WEIGHT)
    yield "inpainting, one image", lambda: TVInpainting(mask * noisy[:1], mask, WEIGHT)


def our_ways(make: Callable[[], TVModel]) -> dict[str, list[Call]]:
    """Our own methods, each with its ways to call it, the cheap ones first."""
    kind = "denoise" if isinstance(make(), TVDenoising) else "inpaint"
    names = [
        name
        for name in lmd.reproduction.tasks.get(kind).solvers
        if name in lmd.zoo.names() and not {"pair", "exact"} & {*name.split("-")}
    ]
    tolerances = sorted((factor * target for target in TARGETS for factor in (1, 2, 4)), reverse=True)
    classics = {"PDHG, in PyTorch": PDHG(settle=8)}
    if kind == "denoise":
        classics["FGP, in PyTorch"] = FGP(restart=True)
    learned = sorted((lmd.zoo.load(name) for name in names), key=lambda solver: solver.horizon or 0)
    return {
        "`lmd.solve`": [_solve(make, t) for t in tolerances],
        "lmd, solvers of the zoo": [_call(solver, make, record=False) for solver in learned],
        **{f"lmd, {name}": [_solve(make, t, solver) for t in tolerances] for name, solver in classics.items()},
    }


def _call(solver: Any, make: Callable[[], TVModel], **options: Any) -> Call:
    def call() -> Tensor:
        result: Result = lmd.run(solver, make(), **options)
        assert result.certificate is not None
        return result.x

    return call


def _solve(make: Callable[[], TVModel], tolerance: float, solver: Any = None) -> Call:
    def call() -> Tensor:
        result = lmd.solve(make(), tolerance, solver=solver)
        assert result.certificate is not None
        return result.x

    return call


def peer_ways(problem: TVModel) -> dict[str, list[Call]]:
    """prox_tv with each of its methods: ||x - y||^2 / 2 + w TV(x) of one channel, so that w is half of our weight."""
    if not isinstance(problem, TVDenoising) or importlib.util.find_spec("prox_tv") is None:
        return {}
    import prox_tv

    channels = problem.noisy.double().flatten(0, 1).numpy()

    def way(method: str, count: int) -> Call:
        options = {"max_iters": count, "method": method, "n_threads": torch.get_num_threads()}

        def call() -> Tensor:
            answers = [prox_tv.tv1_2d(channel, WEIGHT / 2, **options) for channel in channels]
            return torch.from_numpy(np.stack(answers)).reshape(problem.noisy.shape)

        return call

    return {f"prox_tv, `{method}`": [way(method, count) for count in COUNTS] for method in PROX_TV}


def fastest(calls: list[Call], problem: TVModel, least: Tensor, patience: float = PATIENCE) -> list[float | None]:
    """Milliseconds to each of the targets, by the fastest call that reaches it; None where none does."""
    found: dict[float, list[float]] = {target: [] for target in TARGETS}
    for call in calls:
        begun = time.perf_counter()
        x = call().double()  # and it is warm now
        taken = time.perf_counter() - begun
        gap = float(((problem.value(x) - least) / least).max())
        reached = [target for target in TARGETS if gap <= target]
        if reached:
            spent = milliseconds(call)
            for target in reached:
                found[target].append(spent)
        if len(reached) == len(TARGETS) or taken > patience:
            break  # the ways that are left are dearer
    return [min(times) if times else None for times in found.values()]


def milliseconds(call: Call) -> float:
    """The median of several calls, of fewer where they take long."""
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < ENOUGH:
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return 1e3 * median(times)


def measure_times(count: int = 20, patience: float = PATIENCE) -> dict[str, Any]:
    images = image_data("photographs").test_images[:count].float() / 255
    rows: list[list[Any]] = []
    for words, make in cases(images):
        exact: Any = make()
        exact = type(exact)(*(part.double() for part in _data(exact)), WEIGHT)
        least = lmd.solve(exact, 1e-7).values
        for method, calls in {**our_ways(make), **peer_ways(make())}.items():
            rows.append([f"{words}: {method}", *fastest(calls, exact, least, patience)])
            print(*rows[-1], sep="  ", flush=True)
    about = (
        f"Milliseconds of the whole call, with its checks and certificate, to a relative gap (f - f\\*) / f\\*, on "
        f"{torch.get_num_threads()} threads of {_processor()}: photographs of 96 x 96 pixels in colour, 5% noise, "
        f"weight 0.3. Each entry is the fastest setting of a method that gets there; a dash: none does in a call of at "
        f"most {patience:g} s."
    )
    return {
        "about": about,
        "columns": ["", *(f"{target:.0e}".replace("e-0", "e-") for target in TARGETS)],
        "rows": rows,
    }


def _data(problem: TVModel) -> tuple[Tensor, ...]:
    return (problem.noisy, problem.mask) if isinstance(problem, TVInpainting) else (problem.noisy,)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", path.read_text()) if path.is_file() else []
    return names[0] if names else "this machine"


def measure_picture(size: tuple[int, int] = (4000, 3000)) -> dict[str, Any]:
    """`lmd solve denoise` on twelve megapixels and one core: what it prints, and the memory it takes."""
    with tempfile.TemporaryDirectory() as folder:
        with Image.open(bundled(*TEST_PHOTOGRAPHS[0])) as photograph:
            large = np.asarray(photograph.convert("RGB").resize(size, Image.Resampling.BICUBIC), dtype=float)
        noisy = large + 255 * 0.08 * np.random.default_rng(0).standard_normal(large.shape)
        Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8)).save(Path(folder, "noisy.png"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SOLVE]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    gigabytes = int(done.stderr.split()[-2]) * 1024 / 1e9
    lines = [
        line if len(line) <= 115 else f"{line[:110].rpartition(', ')[0]}, ..." for line in done.stdout.splitlines()
    ]
    more = "It stops at a proven relative gap of 1e-3; `--tolerance 1e-5` goes on."
    return {"output": "\n".join(lines) + "\n", "about": f"(On one core, in {gigabytes:.1f} GB of memory. {more})"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure times and memory anew")
    parser.add_argument("--quick", action="store_true", help="the same on little; writes nothing")
    chosen = parser.parse_args()
    if chosen.quick:
        print(measure_picture((400, 300)), measure_times(2, patience=0.3), sep="\n")
        return
    if chosen.measure:
        write_json(MEASUREMENTS / "picture.json", measure_picture())
        write_json(MEASUREMENTS / "times.json", measure_times())
    readme = ROOT / "README.md"
    write_text(readme, written(readme.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
