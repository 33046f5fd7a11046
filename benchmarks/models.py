"""Every total variation model: its learned solver beside tuned PDHG, and whether certificates are ever below the truth.

    python benchmarks/models.py [--only NAME] [--images 4] [--side 96]        # the table
    python benchmarks/models.py --instances 1000                              # certificates alone

The gap is the duality gap relative to the minimum, a median over held-out photographs with 5% noise (for counts their
own), weight 0.3 or the share of it that a model takes. PDHG is tuned at each number, over its step, on other images,
and has as many iterations as the learned solver at its horizon. Seconds are of `lmd.solve(problem, 1e-2)` and of the
same with PDHG, its step being the one that got to 1e-2 first on the other images.

With `--instances`, the lower bounds of points and dual points on the way, of such that were disturbed, and of their
negatives, are compared with the lowest value that was ever reached on the instance. Exit code 1 where one is above.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

import lmd
from lmd import tv, zoo
from lmd.reproduction import tasks
from lmd.reproduction.tasks.models import ABSOLUTE, COUNTS, SADDLE, SECOND, STRONG
from lmd.reproduction.tasks.task import HeldOut
from lmd.solvers import PDHG, LearnedFGP
from lmd.solvers.wrappers import Averaged
from lmd.tv import schedules

RATIOS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""tau, as multiples of PDHG's own."""

TOLERANCE, MOST = 1e-2, 3000


def learned_for(name: str) -> tuple[str, Any]:
    """The schedule or trained solver of a model, and the solver that has it."""
    if name.startswith(("volume", "spacings", "huber")):
        wanted = (21, False) if name.startswith("huber") else (28, True)
        chosen = next(each for each in schedules.denoising() if (each.iterations, each.coarse) == wanted)
        solver = LearnedFGP(*wanted)
        solver.numbers.data = chosen.values.float()
        return f"denoise-{'scales' if wanted[1] else 'steps'}-{wanted[0]}", solver
    if name in STRONG:
        return "denoise-20-fast", zoo.load("denoise-20-fast", bare=True)
    kinds = {"second": SECOND, "counts": COUNTS, "absolute": ABSOLUTE, "saddle": SADDLE}
    kind = next(kind for kind, models in kinds.items() if name in models)
    return f"models-{kind}-40", Averaged(tv.PrimalDual(schedules.primal_dual(kind, 1.0)))


def draw(make: Any, count: int, side: int, seed: int) -> Any:
    recipe = tasks.get("models").recipes[0]
    family = recipe.source.held_out(recipe.family("standard"), HeldOut("standard", side=side))
    family.makers, family.noise, family.weight = (make,), (0.05, 0.05), (0.3, 0.3)
    return family.sample(count, torch.Generator().manual_seed(seed))[0]


def gap(solver: Any, problem: Any, iterations: int) -> float:
    state = solver.init(problem, problem.start())
    state = solver.advance(problem, state, iterations)
    value, bound = problem.certified_gap(state.x, state.dual_point)
    relative = bound / (value - bound).clamp(min=1e-12 * float(value.abs().max()))
    return float(torch.where(torch.isfinite(value), relative, torch.inf).median())


def pdhg(problem: Any, ratio: float) -> PDHG:
    tau, _ = PDHG().steps(problem)
    return PDHG(tau=float(tau if not isinstance(tau, torch.Tensor) else tau.mean()) * ratio)


def needed(problem: Any, ratio: float) -> int:
    found = lmd.solve(problem, TOLERANCE, solver=pdhg(problem, ratio), iterations=MOST)
    near = all(status.name == "TOLERANCE_REACHED" for status in found.status)
    return int(found.iterations.max()) if near else MOST + 1


def seconds(call: Any) -> float:
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
    return best


def row(name: str, make: Any, count: int, side: int) -> str:
    tuning, problem = draw(make, count, side, 1), draw(make, count, side, 2)
    learned, solver = learned_for(name)
    horizon = solver.horizon or 0
    ours = gap(solver, problem, horizon)
    best = min(RATIOS, key=lambda ratio: gap(pdhg(tuning, ratio), tuning, horizon))
    theirs = gap(pdhg(problem, best), problem, horizon)
    first = min(RATIOS, key=lambda ratio: needed(tuning, ratio))
    one = problem.select(0)
    mine = seconds(lambda: lmd.solve(one, TOLERANCE))
    other = seconds(lambda: lmd.solve(one, TOLERANCE, solver=pdhg(one, first), iterations=MOST))
    return (
        f"| {name} | {learned} | {horizon} | {ours:.1e} | {theirs:.1e} | {ours / theirs:.2f} "
        f"| {1e3 * mine:.1f} | {1e3 * other:.1f} | {mine / other:.2f} |"
    )


def false_claims(make: Any, count: int, seed: int) -> int:
    """How many of so many instances have a lower bound above a value that was reached."""
    problem, generator = draw(make, count, 16, seed), torch.Generator().manual_seed(seed)
    bounds, values = [], []
    for ratio in (0.2, 2.0):
        solver = pdhg(problem, ratio)
        state = solver.init(problem, problem.start())
        for _ in range(6):
            state = solver.advance(problem, state, 25)
            noise = torch.randn(state.dual.shape, generator=generator)
            for dual in (state.dual, state.dual * (1 + noise), -state.dual):
                value, bound = problem.certified_gap(state.x, dual)
                bounds.append(value - bound)
                values.append(value)
    return int((torch.stack(bounds).amax(0) > torch.stack(values).amin(0)).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="models whose names begin with this")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--instances", type=int, default=0, help="of each model, for certificates")
    chosen = parser.parse_args()
    models = {
        name: make
        for name, make in {**STRONG, **COUNTS, **ABSOLUTE, **SADDLE, **SECOND}.items()
        if name.startswith(chosen.only)
    }
    wrong = 0
    with torch.no_grad():
        if not chosen.instances:
            print("| model | solver | iterations | gap | PDHG's | ratio | ms to 1e-2 | PDHG's | ratio |")
            print("|---|---|---|---|---|---|---|---|---|")
        for name, make in models.items():
            if chosen.instances:
                parts = [min(100, chosen.instances - done) for done in range(0, chosen.instances, 100)]
                found = sum(false_claims(make, count, seed) for seed, count in enumerate(parts))
                print(f"{name}: {found} false of {chosen.instances}", flush=True)
                wrong += found
            else:
                print(row(name, make, chosen.images, chosen.side), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
