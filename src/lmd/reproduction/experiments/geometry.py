"""Compare learned Hessians with those of the objectives, and learned steps with Newton's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmd.cli.common import Table
from lmd.mirrors import Quadratic
from lmd.mirrors.separable import Separable, frequencies
from lmd.problems import TVDenoising
from lmd.problems.base import Family, Problem
from lmd.problems.image_families import add_noise
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.exact import learned_solver_of
from lmd.reproduction.experiments.imaging import generator_for, images_for
from lmd.reproduction.figures import figure
from lmd.reproduction.tables import Row, method_tables, select
from lmd.reproduction.tasks.common import WEIGHT
from lmd.reproduction.tasks.task import HeldOut, minimiser, optimum
from lmd.reproduction.tasks.vectors import CLASSIFIER_DIGITS as CLASSIFIERS
from lmd.solvers import LearnedMirrorDescent
from lmd.terms.base import inner, size_of
from lmd.training import train

NOISE = 0.05
SMOOTHNESS = 2.0  # of ||x - y||^2
IMAGES = {"quick": 1, "standard": 6, "paper": 12}
PROBES = {"quick": 2, "standard": 16, "paper": 64}
DIRECTIONS = 5
BINS = 12
RIDGE = 1e-4  # with it a linear classifier of separable data has a minimiser, near which its Hessian is taken
ROWS = 150
LOGISTIC_RIDGE = 0.01
RADIUS = 0.3  # the deviation of each weight of a start from the minimiser
LOGISTIC_UPDATES = {"quick": 30, "standard": 300, "paper": 1000}
LOGISTIC: dict[str, Any] = {
    "batch": 32,
    "learning_rate": 1e-2,
    "schedule": "cosine",
    "objective": "gap",
    "value_weights": "last",
    "clip_gradient": 1.0,
}
"""How the metric of logistic regression is trained: the loss is the gap after three iterations, without Hessians."""


class GeometryExperiment(Experiment):
    """Least squares, linear classifiers and denoising: Hessians, principal directions, spectra, angles to Newton."""

    name = "geometry"
    title = "What the learned geometry looks like"
    paper = "the second open question of its conclusion"
    solvers = ("least-squares-quadratic-10", "linear-classifier-exact-10", "denoise-exact-10", "denoise-pair-10")
    imaging = True

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        parts = (select(rows, problem=name, metric="cosine") for name in ("logistic", "linear-classifier", "denoise"))
        return [
            *super().tables(rows),
            *(table for part in parts for table in method_tables(part, "cosine", (), range(10))),
        ]

    def run(self, session: Session) -> None:
        _least_squares(session)
        _logistic(session)
        curves = _classifier(session)
        solver, pair = (learned_solver_of(session, name) for name in ("denoise-exact-10", "denoise-pair-10"))
        images = images_for(session)[: IMAGES[session.preset]]
        problem = TVDenoising(add_noise(images, NOISE, generator_for(session)), WEIGHT)
        spectra = _spectra(session, solver, problem)
        angles = _angles(session, solver, pair, problem)
        _draw(session, curves, spectra, angles, problem)


class Logistic(Problem):
    r"""f(x) = mean_i log(1 + exp(-a_i'x)) + ridge/2 ||x||^2; `rows` `(B, m, n)` are the a_i, features times label."""

    batched = ("rows",)

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def _margins(self, x: Tensor) -> Tensor:
        return torch.einsum("bmn,bn->bm", self.rows, x)

    def value(self, x: Tensor) -> Tensor:
        losses = torch.nn.functional.softplus(-self._margins(x)).mean(dim=1)
        return losses + 0.5 * LOGISTIC_RIDGE * x.square().sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        pulls = -(-self._margins(x)).sigmoid() / self.rows.shape[1]
        return torch.einsum("bmn,bm->bn", self.rows, pulls) + LOGISTIC_RIDGE * x

    def hessian(self, x: Tensor) -> Tensor:
        """Return the Hessian at x `(B, n, n)`."""
        chances = self._margins(x).sigmoid()
        weighted = self.rows * (chances * (1 - chances) / self.rows.shape[1])[..., None]
        ridge = LOGISTIC_RIDGE * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        return weighted.mT @ self.rows + ridge

    @torch.no_grad()
    def minimiser(self) -> Tensor:
        """Return the minimiser `(B, n)`, by ten steps of Newton's method from 0."""
        x = self.rows.new_zeros(len(self.rows), self.rows.shape[2])
        for _ in range(10):
            x = x - torch.linalg.solve(self.hessian(x), self.subgradient(x))
        return x


class LogisticFamily(Family):
    """Logistic regression on `ROWS` random rows of scikit-learn's breast cancer data, from starts near minimisers."""

    name = "logistic"

    def __init__(self) -> None:
        from sklearn.datasets import load_breast_cancer

        rows, labels = (torch.from_numpy(part).double() for part in load_breast_cancer(return_X_y=True))
        self.rows = (rows - rows.mean(dim=0)) / rows.std(dim=0) * (2 * labels - 1)[:, None]

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Logistic, Tensor]:
        places = torch.rand(batch, len(self.rows), generator=generator, dtype=torch.float64).argsort(dim=1)
        problem = Logistic(self.rows[places[:, :ROWS]])
        problem.reference = x = problem.minimiser()
        return problem, x + RADIUS * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def _logistic(session: Session) -> None:
    """Train a metric; record cosines between its principal directions and those of the mean Hessian at minimisers."""
    family, start = LogisticFamily(), 0.1 * torch.eye(30, dtype=torch.float64)
    mirror = Quadratic.from_matrix(start)
    solver = LearnedMirrorDescent(mirror, 3, 1.0, (0.5, 2.0), "last").double()
    updates = LOGISTIC_UPDATES[session.preset]
    train(solver, family, updates=updates, seed=session.seed, progress=session.progress, **LOGISTIC)
    problem, _ = family.sample(200, torch.Generator().manual_seed(session.seed + 1))
    _record_cosines(session, "logistic", mirror.matrix.detach(), problem.hessian(problem.minimiser()).mean(dim=0))


def _record_cosines(session: Session, name: str, learned: Tensor, truth: Tensor) -> None:
    """Record the cosines of the angles between the spaces of the principal directions of two matrices `(n, n)`."""
    bases = [torch.linalg.eigh(matrix).eigenvectors[:, -DIRECTIONS:] for matrix in (learned, truth)]
    for k, cosine in enumerate(torch.linalg.svdvals(bases[0].T @ bases[1]).tolist(), start=1):
        session.record("exact", k, "cosine", cosine, problem=name)


def hessian_product(problem: Problem, x: Tensor, v: Tensor, width: float) -> Tensor:
    """The Hessian of the smoothed objective at x times v, same shape: the derivative of the gradient along v."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        gradient, _ = problem.smoothed_gradient(point, width)
        (product,) = torch.autograd.grad(gradient, point, v)
    return product


def newton_step(problem: Problem, x: Tensor, width: float, iterations: int = 200) -> Tensor:
    """-H^{-1} g of the smoothed objective at x, by conjugate gradients, same shape as x."""

    def per(numbers: Tensor) -> Tensor:
        return numbers.reshape(-1, *(1,) * (x.ndim - 1))

    residual = -problem.smoothed_gradient(x, width)[0]
    step, direction, size = torch.zeros_like(x), residual, inner(residual, residual)
    for _ in range(iterations):
        image = hessian_product(problem, x, direction, width)
        length = size / inner(direction, image).clamp(min=1e-30)
        step, residual = step + per(length) * direction, residual - per(length) * image
        size, before = inner(residual, residual), size
        direction = residual + per(size / before.clamp(min=1e-30)) * direction
    return step


def _least_squares(session: Session) -> None:
    solver: Any = learned_solver_of(session, "least-squares-quadratic-10")
    matrix = solver.mirror.matrix.detach()
    ratio = float((matrix[0, 1] + matrix[1, 0]) / (matrix[0, 0] + matrix[1, 1]))
    session.record("exact", "", "off-diagonal over diagonal", ratio, problem="least-squares")
    session.record("truth", "", "off-diagonal over diagonal", 0.8, problem="least-squares")


def _classifier(session: Session) -> dict[str, Tensor]:
    """Record cosines between the mean learned Hessian and the true one near a solution; return their eigenvalues."""
    source = CLASSIFIERS
    family = source.held_out(source.train(session.preset), HeldOut(session.preset, subsets=1))
    family.ridge = RIDGE
    problem = family.sample(1, torch.Generator().manual_seed(session.seed))[0]
    features, x = problem.features[0].double(), optimum(problem).x[0].double()
    chances = (features @ x.reshape(-1, features.shape[1]).T).softmax(dim=1)
    weights = 1 - chances.square().sum(dim=1)  # the trace of diag(p) - pp' over the classes
    truth = (features * weights[:, None]).T @ features / len(features)
    solver: Any = learned_solver_of(session, "linear-classifier-exact-10")
    learned = sum(_dense(solver.mirror_of(k)) for k in range(solver.iterations)) / solver.iterations
    _record_cosines(session, "linear-classifier", learned, truth)
    return {"learned": torch.linalg.eigvalsh(learned), "truth": torch.linalg.eigvalsh(truth)}


def _dense(mirror: Separable) -> Tensor:
    """Q' diag(slopes) Q `(n, n)` of a quadratic separable mirror in a learned basis."""
    matrix: Any = mirror.transform.get_parameter("vectors")
    Q = mirror.transform(torch.eye(matrix.shape[1], dtype=matrix.dtype)).T
    return (Q.T @ (mirror.logs.exp() * Q)).detach().double()


def _spectra(session: Session, solver: Any, problem: TVDenoising) -> Sequence[tuple[list[float], ...]]:
    """Return frequencies, learned slopes and mean diagonals of the Hessian at the minimisers, for each iteration."""
    x, found = minimiser(problem), []
    radius = frequencies(*x.shape[2:], x.dtype, x.device)
    bins = (radius * BINS).long().clamp(max=BINS - 1)
    generator = generator_for(session, 1)
    for k in range(solver.iterations):
        mirror, width = solver.mirror_of(k), solver.log_widths[k].exp().item()
        total = torch.zeros_like(radius)
        for _ in range(PROBES[session.preset]):
            probe = torch.randn(x.shape, generator=generator, dtype=x.dtype)
            product = hessian_product(problem, x, probe, width) / SMOOTHNESS
            total += (mirror.transform(probe) * mirror.transform(product)).mean(dim=(0, 1))
        counts = torch.bincount(bins.flatten(), minlength=BINS)
        means = torch.bincount(bins.flatten(), total.flatten(), minlength=BINS) / counts / PROBES[session.preset]
        slopes = mirror.curve(x).slopes[..., 0].detach()
        learned = torch.bincount(bins.flatten(), slopes.flatten(), minlength=BINS) / counts
        centres = ((torch.arange(BINS) + 0.5) / BINS).tolist()
        for centre, slope, mean in zip(centres, learned.tolist(), means.tolist(), strict=True):
            session.record("exact", k, "slope", slope, problem="denoise", frequency=round(centre, 3))
            session.record("truth", k, "slope", mean, problem="denoise", frequency=round(centre, 3))
        found.append((centres, learned.tolist(), means.tolist()))
    return found


def _angles(session: Session, solver: Any, pair: Any, problem: TVDenoising) -> dict[str, list[float]]:
    """Return the cosines of each geometry's step with the Newton step, along the learned run, averaged over images."""
    state: Any = solver.init(problem, problem.start())
    found: dict[str, list[float]] = {"gradient": [], "pair": [], "exact": []}
    for k in range(solver.iterations):
        x, width, mirror = state.x, solver.log_widths[k].exp().item(), solver.mirror_of(k)
        newton = newton_step(problem, x, width)
        gradient = problem.smoothed_gradient(x, width)[0]
        with torch.no_grad():
            steps = {
                "gradient": -gradient,
                "pair": pair.mirror.descend(x, pair.steps(k) * gradient)
                - pair.mirror.to_primal(pair.mirror.to_dual(x)),
                "exact": mirror.descend(x, gradient / SMOOTHNESS) - x,
            }
            for method, step in steps.items():
                cosine = float((inner(step, newton) / (size_of(step) * size_of(newton))).mean())
                found[method].append(cosine)
                session.record(method, k, "cosine", cosine, problem="denoise")
            state = solver.step(problem, state)
    return found


def _draw(
    session: Session,
    eigenvalues: dict[str, Tensor],
    spectra: Sequence[tuple[list[float], ...]],
    angles: dict[str, list[float]],
    problem: TVDenoising,
) -> None:
    with figure(16.5, 4.2) as drawing:
        panels = drawing.subplots(1, 4)
        for name, values in eigenvalues.items():
            shown = values.flip(0) / values.max()
            panels[0].plot(range(1, len(shown) + 1), shown.tolist(), label=name)
        panels[0].set(yscale="log", title="linear classifier", xlabel="eigenvalue", ylabel="over the largest")
        panels[0].legend()
        for place, k in enumerate((0, len(spectra) // 2, len(spectra) - 1)):
            centres, learned, truth = spectra[k]
            panels[1].plot(centres, learned, color=f"C{place}", label=f"iteration {k + 1}")
            panels[1].plot(centres, truth, color=f"C{place}", linestyle="dashed")
        panels[1].set(yscale="log", title="denoising", xlabel="frequency", ylabel="slope (dashed: Hessian)")
        panels[1].legend()
        for method, cosines in angles.items():
            panels[2].plot(range(1, len(cosines) + 1), cosines, marker="o", label=method)
        panels[2].set(title="cosine with the Newton step", xlabel="iteration", ylim=(-0.1, 1))
        panels[2].legend()
        one = problem.select(slice(0, 1))
        x = minimiser(one)
        signs = torch.randint(0, 2, x.shape, generator=generator_for(session, 2)).to(x) * 2 - 1
        stiff = (signs * hessian_product(one, x, signs, 0.1)).mean(dim=(0, 1))
        panels[3].imshow(stiff.numpy(), cmap="viridis", interpolation="nearest")
        panels[3].set_axis_off()
        panels[3].set_title("where the objective is stiff")
        session.save_figure(
            "geometry",
            drawing,
            "Left: eigenvalues of the mean learned Hessian of the linear classifier and of the true one near a "
            "solution. Then: learned slopes by frequency, and the diagonal of the Hessian of the smoothed objective in "
            "the same basis; how well each geometry points along the Newton step; and the diagonal of the Hessian at "
            "a minimiser: stiff in the flat regions, soft at edges.",
        )
