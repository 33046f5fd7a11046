"""Certified optima, in closed form or by a method for the class of the problem, with proven lower bounds."""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.core.checks import check_count
from lmd.core.files import cache_folder, read_tensors, write_tensors
from lmd.errors import CapabilityError, FileError, LmdError
from lmd.problems import LinearClassifier
from lmd.problems.base import Problem, offers
from lmd.problems.composite import Composite
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.pdhg import RelaxedPDHG
from lmd.terms import Box, Squares

MAX_CACHE_BYTES = 2**30
GOAL, TOLERANCE = 1e-8, 1e-6  # relative gaps: to reach, and to accept from a cache or after `PATIENCE`
INTERVAL, PATIENCE, MAX_ITERATIONS = 50, 5_000, 200_000  # iterations between gaps, until `TOLERANCE` suffices, in total
ROUNDING = 1e-15  # a gap below this share of f(0) counts as 0, because minima of 0 have no relative gap
SMOOTHEST_NEEDS = ("differences", "mask", "weight", "scale")
PULLS = (1.0, 1 / 4, 1 / 16)  # values of `pull` to try; on photographs, values below about 1.5 are exact
SMOOTHEST_GOAL, SMOOTHEST_TOLERANCE = 1e-6, 1e-5  # relative gaps for `_smoothest`; the second also limits f(x)

# for SVMs and linear classifiers
NEWTON_TOLERANCE = 1e-10  # the gap, relative to the value, at which a search ends
SVM_MAX_ITERATIONS = 100  # 15 to 30 are usual
CLASSIFIER_MAX_ITERATIONS = 60  # 3 to 20 are usual
SVM_NEEDS = ("rows", "subset", "C", "dual_value")
CLASSIFIER_NEEDS = ("features", "labels", "subset", "classes", "ridge")

Pair = tuple[Tensor, Tensor]  # a point x and a dual point, for a batch of one


@dataclass(frozen=True)
class Optimum:
    """Certified optima of a batch, in float64 on the CPU: each infimum f* lies in [`bound`, `value`].

    Args:
        x: Points `(B, ...)`.
        value: f(x) `(B,)`, which no infimum can exceed.
        bound: Proven lower bounds on f* `(B,)`.
        attained: Whether there is a minimiser `(B,)`. If not, f* is `bound`, and f(t x) falls to it as t grows.
    """

    x: Tensor
    value: Tensor
    bound: Tensor
    attained: Tensor

    @classmethod
    def of(cls, x: Tensor, value: Tensor, bound: Tensor, attained: bool = True) -> Optimum:
        """Return optima with the same `attained` for all instances."""
        return cls(x, value, bound, torch.full_like(value, attained, dtype=torch.bool))

    @property
    def gap(self) -> Tensor:
        """How far f(x) can be from f* `(B,)`."""
        return self.value - self.bound

    @property
    def infimum(self) -> Tensor:
        """f* `(B,)`, within `gap` if it is attained, and exact otherwise."""
        return torch.where(self.attained, self.value, self.bound)


class OptimumCache:
    """A folder of points and dual points; the names of the files are hashes of their problems.

    Beyond `limit` bytes, the oldest files are removed. Points from the folder are proven again before they are used.

    Args:
        folder: The folder. If None, it is `optima` in the folder named by LMD_CACHE or in the platform's cache folder.
        limit: The maximum size of the folder in bytes.
    """

    def __init__(self, folder: str | Path | None = None, limit: int = MAX_CACHE_BYTES) -> None:
        self.folder = cache_folder() / "optima" if folder is None else Path(folder)
        self.limit = check_count("limit", limit)

    def read(self, problem: Any) -> Pair | None:
        """Return the stored point and dual point of a problem, if their shapes are right; otherwise None."""
        try:
            found = read_tensors(self._path(problem))
        except FileError:
            return None
        x, dual = found.get("x"), found.get("dual")
        start = problem.start()
        if x is None or dual is None or x.shape != start.shape or dual.shape != problem.operator(start).shape:
            return None
        return (x, dual) if x.dtype == dual.dtype == torch.float64 else None

    def write(self, problem: Any, x: Tensor, dual: Tensor) -> None:
        """Write an optimum atomically. Errors of the disk are ignored, because a missing file only costs time."""
        with suppress(OSError, FileError):
            write_tensors(self._path(problem), {"x": x, "dual": dual})
            total = 0
            for path in sorted(self.folder.glob("*.safetensors"), key=lambda path: -path.stat().st_mtime_ns):
                total += path.stat().st_size
                if total > self.limit:
                    path.unlink(missing_ok=True)

    def _path(self, problem: Any) -> Path:
        digest = hashlib.sha256()
        _add(digest, problem)
        return self.folder / f"{digest.hexdigest()}.safetensors"


def _add(digest: Any, item: Any) -> None:
    """Add an item to a hash, without private attributes and cached properties, which follow from the rest."""
    if isinstance(item, Tensor):
        digest.update(f"{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().numpy().data)
    elif isinstance(item, (tuple, list)):
        digest.update(f"{len(item)}".encode())
        for entry in item:
            _add(digest, entry)
    elif hasattr(item, "__dict__"):
        digest.update(type(item).__qualname__.encode())
        for name, value in sorted(vars(item).items()):
            if not name.startswith("_") and not isinstance(getattr(type(item), name, None), cached_property):
                digest.update(name.encode())
                _add(digest, value)
    else:
        digest.update(repr(item).encode())


def optimum(problem: Problem, cache: OptimumCache | None = None) -> Optimum:
    """Return the certified optimum of each instance, in closed form or by an algorithm for its class of problems.

    Args:
        problem: A problem with a minimiser in closed form, a composite problem, an SVM or a linear classifier.
        cache: A cache for optima of composite problems, or None.

    >>> import lmd
    >>> problem = lmd.problems.TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> found = optimum(problem)
    >>> found.x.flatten().round(decimals=4), bool(found.gap <= 1e-8 * found.value)
    (tensor([0.2500, 0.7500], dtype=torch.float64), True)
    """
    exact: Problem = to_double(problem, "cpu")
    if offers(problem, ("minimiser",)):
        x = exact.minimiser()
        return Optimum.of(x, value := exact.value(x), value)
    chosen, places = _distinct(exact)
    found = [_solve(exact.select(i), cache) for i in chosen]
    return Optimum(*(torch.cat([getattr(one, name) for one in found])[places] for name in vars(found[0])))


def minimum(problem: Problem, cache: OptimumCache | None = None) -> Tensor:
    """Return the certified infima `(B,)`, in the dtype and on the device of the problem.

    Args:
        problem: A problem that `optimum` can solve.
        cache: A cache for optima of composite problems, or None.
    """
    return optimum(problem, cache).infimum.to(_data(problem))


def minimiser(problem: Problem, cache: OptimumCache | None = None) -> Tensor:
    """Return the certified minimisers `(B, ...)`, in the dtype and on the device of the problem.

    Args:
        problem: A problem that `optimum` can solve.
        cache: A cache for optima of composite problems, or None.
    """
    found = optimum(problem, cache)
    if not bool(found.attained.all()):
        given = f"{type(problem).__name__}, of which instance {int(found.attained.int().argmin())} has no minimiser"
        raise CapabilityError("problem", given, "functions that attain their infimum, such as those with a ridge")
    return found.x.to(_data(problem))


def smoothest_minimiser(problem: Any, cache: OptimumCache | None = None) -> Tensor:
    """Return the minimiser `(B, ...)` with the smallest ||Kx||^2, in the dtype and on the device of the problem.

    TV inpainting has many minimisers. Kept pixels are the same in all of them, but a lost pixel may have any value
    between the middle two of its four neighbours. The minimisers form a convex set. Because some pixel is kept,
    ||Kx||^2 has exactly one minimiser in this set. If no pixel is lost, the problem has only one minimiser.

    The duality gap of the problem proves the kept pixels, and the duality gap of `smoothest_problem` proves the lost
    pixels. The value of the answer exceeds the minimum by a relative error of at most 1e-5.

    The arguments are those of `optimum`.
    """
    lost = offers(problem, SMOOTHEST_NEEDS) and problem.mask is not None and not bool((problem.mask > 0).all())
    if not lost:
        return minimiser(problem, cache)
    found, exact = optimum(problem, cache), to_double(problem, "cpu")
    answers = [_smoothest(exact.select(i), found.x[[i]], found.bound[i]) for i in range(len(found.x))]
    return torch.cat(answers).to(problem.noisy)


def _smoothest(problem: Any, x: Tensor, bound: Tensor) -> Tensor:
    for pull in PULLS:
        answer, _ = _solve_composite(smoothest_problem(problem, x, pull), SMOOTHEST_GOAL, SMOOTHEST_TOLERANCE)
        if bool(problem.value(answer) <= bound * (1 + SMOOTHEST_TOLERANCE)):
            return answer
    raise LmdError(f"{type(problem).__name__}: no certified smoothest minimiser, all that were found are too rough")


def smoothest_problem(problem: Any, x: Tensor, pull: float = PULLS[0]) -> Composite:
    r"""Return the problem min g(Kz) + e/2 ||Kz||^2 over z with the kept pixels of x, in the box of all minimisers.

    x `(B, ...)` is a minimiser of the problem and g its regulariser, `scale` weight TV. In the anisotropic form, g is
    polyhedral. So for every small enough e, and not only for e -> 0, the solution is the smoothest minimiser of g
    ([Friedlander and Tseng 2007](https://doi.org/10.1137/060675320)). e is `pull` `scale` weight / range of x.
    """
    K, kept = problem.differences, problem.mask.expand_as(x) > 0
    e = pull * problem.scale * float(problem.weight.mean()) / (float(x.max() - x.min()) or 1.0)
    low, high = (torch.where(kept, x, problem.f.nearest(torch.full_like(x, end))) for end in (-torch.inf, torch.inf))
    return Composite(Box(low, high), (problem.g, K), (Squares(torch.zeros_like(K(x)), e / 2), K), start=x)


def _data(problem: Problem) -> Tensor:
    return next(x for x in vars(problem).values() if isinstance(x, Tensor) and x.dtype.is_floating_point)


def _distinct(problem: Problem) -> tuple[list[int], list[int]]:
    """Return one instance to solve for each value of `subset`, and for each instance the index of its solution."""
    subset = getattr(problem, "subset", None)
    sets = list(range(problem.batch_size or 1)) if subset is None else subset.tolist()
    chosen = list(dict.fromkeys(sets))
    return [sets.index(k) for k in chosen], [chosen.index(k) for k in sets]


def _solve(problem: Any, cache: OptimumCache | None) -> Optimum:
    """Return the optimum of a batch of one in float64, computed by an algorithm for its class of problems."""
    if offers(problem, SVM_NEEDS):
        return solve_svm(problem)
    if offers(problem, CLASSIFIER_NEEDS):
        return solve_classifier(problem)
    if not offers(problem, (*RelaxedPDHG().needs, "gap")):
        accepted = "one with a minimiser in closed form, or a composite problem, an SVM or a linear classifier"
        raise CapabilityError("problem", f"{type(problem).__name__}, which no reference method is for", accepted)
    found = None if cache is None else cache.read(problem)
    if found is None or not is_proven(problem, *found, TOLERANCE):
        found = _solve_composite(problem, GOAL, TOLERANCE)
        if cache is not None:
            cache.write(problem, *found)
    value = problem.value(found[0])
    return Optimum.of(found[0], value, value - problem.gap(*found))


@torch.no_grad()
def _solve_composite(problem: Any, goal: float, tolerance: float) -> Pair:
    """Return a point and a dual point that prove a relative gap of `goal`, or of `tolerance` after `PATIENCE` steps."""
    solver = RelaxedPDHG()
    state = solver.init(problem, problem.start())
    for done in range(INTERVAL, MAX_ITERATIONS + 1, INTERVAL):
        state = solver.advance(problem, state, INTERVAL)
        if is_proven(problem, state.x, state.dual, goal if done < PATIENCE else tolerance):
            return state.x, state.dual
    gap = float(problem.relative_gap(state.x, state.dual))
    raise LmdError(f"{type(problem).__name__}: no certified minimiser, the relative duality gap stays at {gap:.1e}")


def is_proven(problem: Composite, x: Tensor, dual: Tensor, tolerance: float) -> bool:
    """Return whether the duality gap is within a relative tolerance, or is only rounding; False for a NaN."""
    if float(problem.relative_gap(x, dual)) <= tolerance:
        return True
    size = float(problem.value(torch.zeros_like(x)))  # infinite if 0 violates a constraint
    return math.isfinite(size) and float(problem.gap(x, dual)) <= ROUNDING * size


def solve_svm(problem: Any) -> Optimum:
    """Return the optimum of a batch of one, computed by the interior-point method and proven by its dual point."""
    solver = InteriorPoint(precision=NEWTON_TOLERANCE)
    state = solver.advance(problem, solver.init(problem, torch.zeros_like(problem.rows[:1, 0])), SVM_MAX_ITERATIONS)
    found = Optimum.of(state.x, problem.value(state.x), problem.dual_value(state.dual))
    if not bool(found.gap <= TOLERANCE * found.value):
        gap = f"the duality gap stays at {float(found.gap):.1e}"
        raise LmdError(f"SVM: no certified optimum, {gap}; scale the features or C")
    return found


def solve_classifier(problem: Any) -> Optimum:
    r"""Return inf_W mean_i [log \sum_k exp(W phi_i)_k - (W phi_i)_{y_i}] + ridge/2 ||W||^2 of a batch of one.

    Newton's method starts at W = 0 and halves steps until f falls. The infimum is certified in one of three ways:

    - With a ridge, f(W) - inf f <= ||gradient||^2 / (2 ridge).
    - Without a ridge, by the dual. Let Y be the labels as indicators, and P `(m, classes)` probabilities with
      mean_i (P_i - Y_i) phi_i' = 0. Then inf f is at least the mean entropy of the P_i. The probabilities at W, changed
      to first order by the Newton step, are such a P. (The gradient alone bounds nothing without a ridge.)
    - If W gives the label of each sample the highest score, f(tW) falls to 0 as t grows. So inf f = 0 is not attained.
    """
    features, ridge = problem.features[int(problem.subset)], problem.ridge
    _, sizes, directions = torch.linalg.svd(features, full_matrices=False)
    basis = directions[sizes > 1e-12 * sizes[0]].T  # coordinates in which features have full rank
    reduced = LinearClassifier(features @ basis, problem.labels[int(problem.subset)], problem.classes, ridge)
    x = features.new_zeros(1, *reduced.point_shape)
    for _ in range(CLASSIFIER_MAX_ITERATIONS):
        value, gradient = reduced.value_and_subgradient(x)
        step, is_separated = _newton_step(reduced, x, gradient), ridge == 0 and _separates(reduced, x)
        gap = value if is_separated else _gap(reduced, x, value, gradient, step)
        if is_separated or gap <= NEWTON_TOLERANCE * value:
            W = x.reshape(-1, basis.shape[1]) @ basis.T
            return Optimum.of(W.reshape(1, -1), value, value - gap, attained=not is_separated)
        slope, length = (gradient * step).sum(), 1.0
        while length > 1e-10 and not bool(reduced.value(x + length * step) <= value + 1e-4 * length * slope):
            length /= 2
        x = x + length * step
    raise LmdError(
        f"linear classifier: no certified infimum, the value {float(value):.6g} falls for ever towards something above "
        "0; give the problem a ridge, such as 1e-4"
    )


def _scores(problem: LinearClassifier, x: Tensor) -> Tensor:
    """Return W phi_i `(m, classes)`."""
    return problem.features[0] @ x.reshape(problem.classes, -1).T


def _separates(problem: LinearClassifier, x: Tensor) -> bool:
    """Return whether the label of each sample has the highest score, by more than rounding."""
    scores, own = _scores(problem, x), problem.labels[0].long()[:, None]
    margin = scores.gather(1, own) - scores.scatter(1, own, -torch.inf).amax(dim=1, keepdim=True)
    return bool(margin.min() > 1e-9 * scores.abs().max())


def _newton_step(problem: LinearClassifier, x: Tensor, gradient: Tensor) -> Tensor:
    """Return the shortest Newton step; others differ by a row that is added to every class and does not change f."""
    features, classes, (count, width) = problem.features[0], problem.classes, problem.features[0].shape
    weighted = _scores(problem, x).softmax(dim=1)[:, :, None] * features[:, None, :]
    mixed = weighted.flatten(1)
    hessian = -mixed.T @ mixed / count
    blocks = hessian.view(classes, width, classes, width)
    # The same row for every class is in the kernel of the Hessian. This makes it invertible without changing the step.
    blocks += (features.T @ features / (count * classes))[None, :, None, :]
    for k in range(classes):
        blocks[k, :, k] += weighted[:, k].T @ features / count
    hessian.diagonal().add_(problem.ridge)
    return -torch.cholesky_solve(gradient.T, _cholesky(hessian)).T


def _gap(problem: LinearClassifier, x: Tensor, value: Tensor, gradient: Tensor, step: Tensor) -> Tensor:
    """Return a bound on f(W) - inf f. It is at most the value itself, because f is never negative."""
    if problem.ridge > 0:
        return torch.minimum(value, gradient.square().sum() / (2 * problem.ridge))
    probability, change = _scores(problem, x).softmax(dim=1), _scores(problem, step)
    change = change - (probability * change).sum(dim=1, keepdim=True)
    if float(change.min()) < -1:
        return value
    moved = probability * (1 + change)
    entropy = -torch.special.xlogy(moved, moved).sum(dim=1).mean()
    return torch.minimum(value, (value - entropy).clamp(min=0))


def _cholesky(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor. If rounding has made the matrix indefinite, a multiple of I is added first."""
    jitter = 0.0
    while True:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not int(failed):
            return factor
        jitter = 100 * jitter or 1e-15 * float(matrix.diagonal().mean())
        matrix = matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
