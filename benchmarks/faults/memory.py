"""Memory that grows, and memory that is short."""

from __future__ import annotations

import contextlib
import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import Trials, case, command, forked
from faults.runs import run_command, write_picture

GROWTH = 3 * 2**20
"""Bytes that a process may grow by in a hundred thousand calls: less than one number for each."""

LIMITS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Megabytes beside what the process has already."""


def resident() -> int:
    """Bytes of memory that this process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@case("growth of memory", seconds=400)
def growth(trials: Trials) -> None:
    """Many calls of small solves, with answers kept for a while, warm starts and errors: the process stays as it is."""
    import torch

    import lmd
    from faults import work

    problem = lmd.problems.TVDenoising(work.numbers(1, 1, 6, 6), 0.1)
    picture, mask, margins = work.numbers(6, 6), work.numbers(6, 6, seed=1) > 0.3, work.svm(8, 2)
    least, x0 = lmd.problems.LeastSquaresFamily().sample(1, torch.Generator().manual_seed(0))
    kept: list[Any] = [None] * 100
    before = [lmd.solve(problem, 1e-2)]

    def warm(_: int) -> None:
        before[0] = lmd.solve(problem, 1e-2, warm=before[0])

    def keep(number: int) -> None:
        kept[number % 100] = lmd.solve(problem, 1e-2)
        if number % 7 == 0:
            assert kept[number % 100].certificate is not None

    def fail(number: int) -> None:
        for wrong in ({"tolerance": -1.0}, {"solver": "none"}, {"x0": picture}, {"iterations": number - number}):
            try:
                lmd.solve(problem, **wrong)
            except lmd.LmdError:
                continue
            raise AssertionError(wrong)

    kinds: dict[str, tuple[int, Callable[[int], object]]] = {
        "solve": (100_000, lambda _: lmd.solve(problem, 1e-2)),
        "warm starts": (100_000, warm),
        "answers that are kept": (100_000, keep),
        "errors": (100_000, fail),
        "new problems": (20_000, lambda _: lmd.solve(lmd.problems.TVDenoising(work.numbers(1, 1, 6, 6), 0.1), 1e-2)),
        "denoise": (20_000, lambda _: lmd.denoise(picture, weight=0.1)),
        "inpaint": (5_000, lambda _: lmd.inpaint(picture, mask, weight=0.1)),
        "SVM": (5_000, lambda _: lmd.solve(margins, 1e-2, x0=x0.new_zeros(1, 3).float())),
        "run": (3_000, lambda _: lmd.run(lmd.solvers.GradientDescent(0.01), least, x0, 3)),
        "weights from the data": (3_000, lambda _: lmd.denoise(picture)),
        "train": (trials.few(100, 2), lambda _: work.trained(1)),
    }
    for name, (count, call) in kinds.items():
        count = count if not trials.quick else count // 100
        for number in range(max(1, count // 10)):
            call(number)
        begun = resident()
        for number in range(count):
            call(number)
        grown = resident() - begun
        trials.check(grown < GROWTH, f"{name}: {grown / 2**20:.1f} MB in {count} calls")


def short(limit: int, run: Callable[[], object]) -> Callable[[], None]:
    """Run with so many megabytes beside what there is."""

    def attempt() -> None:
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = has + limit * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            run()
        except MemoryError:
            raise SystemExit(4) from None
        except RuntimeError as error:
            if "can't allocate memory" in str(error):  # PyTorch's own
                raise SystemExit(4) from None
            raise

    return attempt


@case("little memory", seconds=400)
def little_memory(trials: Trials) -> None:
    """Limits of memory of every size: the right answer, or an error of Python's that says so; never a crash."""
    import lmd
    from faults import work

    large, mask = work.numbers(1, 3, 700, 900), work.numbers(700, 900, seed=1) > 0.3
    volume, kernel = work.numbers(1, 1, 60, 80, 80), lmd.operators.gaussian_kernel(1.5)
    kinds: dict[str, Callable[[], Any]] = {
        "denoising": lambda: lmd.solve(lmd.problems.TVDenoising(large, 0.2), 1e-2).x,
        "isotropic": lambda: lmd.solve(lmd.problems.TVDenoising(large, 0.2, isotropic=True), 1e-2).x,
        "float64": lambda: lmd.solve(lmd.problems.TVDenoising(large.double(), 0.2), 1e-2).x,
        "volume": lambda: lmd.solve(lmd.problems.TVDenoising(volume, 0.2), 1e-2).x,
        "inpainting": lambda: lmd.solve(lmd.problems.TVInpainting(large, mask, 0.2), 1e-1).x,
        "deblurring": lambda: lmd.solve(lmd.problems.TVDeblurring(large, kernel, 0.2), 1e-1).x,
        "second order": lambda: lmd.denoise(large[0, 0], weight=0.1, order=2, tolerance=1e-1),
        "SVM": lambda: lmd.solve(work.svm(2000, 200), 1e-2, x0=work.numbers(1, 201) * 0).x,
        "train": lambda: work.trained(2),
    }
    if trials.quick:
        kinds = {name: kinds[name] for name in ("denoising", "volume")}
    for name, solve in kinds.items():
        right = solve()

        def same(solve: Callable[[], Any] = solve, right: Any = right) -> None:
            assert work.same(solve(), right), "another answer"

        for limit in LIMITS[:: trials.few(1, 4)]:
            ended = forked(short(limit, same))
            trials.check(ended.code in (0, 2, 4), f"{name}, {limit} MB: {ended}")
    picture = write_picture(Path("in.png"))
    run_command_here("solve", "denoise", picture, "warm.png")
    from PIL import Image

    Image.fromarray((large[0].movedim(0, -1) * 255).byte().numpy()).save("large.png")
    for limit in LIMITS[:: trials.few(1, 4)]:
        for end in ("png", "tif", "jpg")[: trials.few(3, 1)]:
            out = Path(f"out-{limit}.{end}")

            def limited(limit: int = limit) -> None:
                short(limit, lambda: None)()

            ended = command("solve", "denoise", "large.png", str(out), "--weight", "0.1", before=limited)
            fine = (ended.code == 0 and out.is_file()) or (ended.one_line and not out.exists())
            trials.check(fine, f"lmd solve to .{end}, {limit} MB: {ended}")
    left = [path.name for path in Path().iterdir() if path.name.startswith(".")]
    trials.check(not left, f"left {left}")


def run_command_here(*arguments: str) -> None:
    """The command line in this process, which has everything imported afterwards."""
    with contextlib.suppress(SystemExit):
        run_command(*arguments)
