"""Figures 1 to 3: mirror descent on the simplex, and learned mirrors for least squares in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmd.mirrors import Entropic, Mirror, Quadratic
from lmd.problems import LeastSquares, SimplexFamily
from lmd.reproduction.experiments.base import HORIZON, MULTIPLIERS, Experiment, Session, measure, plot_methods, reached
from lmd.reproduction.figures import COLOURS, figure, label_lines, log_floor
from lmd.reproduction.tables import Row, select
from lmd.reproduction.tasks.task import minimiser
from lmd.reproduction.tasks.vectors import PLANE, plane_family
from lmd.solvers import Adam, GradientDescent, MirrorDescent, Result, Solver, run

DIMENSION = 3
SIMPLEX_STEP = 0.1
SIMPLEX_ITERATIONS = 50
SIMPLEX_INSTANCES = {"quick": 50, "standard": 500, "paper": 500}
OBJECTIVES = {"kl": "KL divergence", "least-squares": "squared distance"}


class Simplex(Experiment):
    """Functions of several classes, minimised over a simplex."""

    name = "simplex"
    title = "Entropic mirror descent against gradient descent on the simplex"
    paper = "Figure 1"

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        kl, squares = (
            [reached(rows, m, "loss", SIMPLEX_ITERATIONS, objective=o) for m in ("md", "gd")] for o in OBJECTIVES
        )
        return (
            f"The geometry decides: on the KL divergence mirror descent is at {kl[0]} after {SIMPLEX_ITERATIONS} "
            f"iterations, gradient descent at {kl[1]}; on the squared distance at {squares[0]} and {squares[1]}"
        )

    def run(self, session: Session) -> None:
        facts = {"data": "targets and starts uniform on the simplex", "dimension": DIMENSION, "base_step": SIMPLEX_STEP}
        session.facts.update(facts)
        for objective in OBJECTIVES:
            generator = torch.Generator().manual_seed(session.seed)
            family = SimplexFamily(objective, DIMENSION)
            problem, x0 = family.sample(SIMPLEX_INSTANCES[session.preset], generator)
            for multiplier in MULTIPLIERS:
                steps = multiplier * SIMPLEX_STEP
                methods: dict[str, Solver[Any]] = {"gd": GradientDescent(steps), "md": MirrorDescent(Entropic(), steps)}
                for method, solver in methods.items():
                    result, _ = measure(solver, problem, x0, SIMPLEX_ITERATIONS, session.repeats)
                    session.record_run(method, result, SIMPLEX_ITERATIONS, objective=objective, multiplier=multiplier)
        draw_simplex(session)


def draw_simplex(session: Session) -> None:
    """Loss against iterations and against seconds, one column per class of functions."""
    with figure(8.0, 6.8) as drawing:
        panels = drawing.subplots(2, 2, sharey="col")
        for column, (objective, title) in enumerate(OBJECTIVES.items()):
            _draw_simplex_column(panels[:, column], select(session.rows, objective=objective))
            panels[0, column].set_title(title)
            panels[0, column].set_xlabel("iteration")
            panels[1, column].set_xlabel("milliseconds, all instances together")
        for axes in panels[:, 0]:
            axes.set_ylabel(r"mean of $f(x_k) - f(x^\star)$")
        session.save_figure(
            "figure-1-simplex",
            drawing,
            "Mean loss of projected gradient descent (gd) and entropic mirror descent (md), the best of five steps "
            "in full and the others faint, against iterations (top) and time (bottom). The entropic geometry fits the "
            "KL divergence and not the squared distance.",
        )


def _draw_simplex_column(panels: Any, rows: list[Row]) -> None:
    curves = plot_methods(panels, rows, "loss", ("gd", "md"), first=0)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylim(bottom=log_floor(curves, 1e-35))
        label_lines(axes)


BASE_STEP = 0.1
ITERATIONS = 50
INSTANCES = {"quick": 200, "standard": 1000, "paper": 1000}
LEARNED = {"lmd-quadratic": "least-squares-quadratic-10", "lmd-one-layer": "least-squares-one-layer-10"}


class LeastSquaresExperiment(Experiment):
    """GD, Adam, classical mirror descent with W'W, and learned mirror descent with fixed and with adaptive steps."""

    name = "least-squares"
    title = "Least squares in the plane with mirrors that have a closed-form inverse"
    paper = "Figures 2 and 3"
    solvers = tuple(LEARNED.values())

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        learned, gd = (reached(rows, method, "loss", HORIZON) for method in ("lmd-quadratic-adaptive", "gd"))
        ratio = reached(rows, "lmd-quadratic", "matrix_ratio", HORIZON)
        return (
            f"Ten learned steps reach a loss of {learned}, gradient descent {gd}: the learned matrix is that of the "
            f"problem, {ratio} off its diagonal over the diagonal where W'W has 0.8"
        )

    def run(self, session: Session) -> None:
        # The seed of the test instances is far from the seeds of training.
        generator = torch.Generator().manual_seed(10**6 + session.seed)
        sampled: tuple[Any, Tensor] = plane_family(session.preset).sample(INSTANCES[session.preset], generator)
        problem, x0 = sampled
        session.facts.update(data=PLANE.name(session.preset), base_step=BASE_STEP)
        gram = problem.W.T @ problem.W
        for multiplier in MULTIPLIERS:
            steps = multiplier * BASE_STEP
            methods: dict[str, Solver[Any]] = {
                "gd": GradientDescent(steps),
                "adam": Adam(steps),
                "md": MirrorDescent(Quadratic.from_matrix(gram), steps),
            }
            for method, solver in methods.items():
                _run(session, method, solver, problem, x0, multiplier=multiplier)
        for method, name in LEARNED.items():
            learned = session.learned(name, method)
            for multiplier in MULTIPLIERS:
                fixed = learned.with_steps(multiplier * BASE_STEP)
                _run(session, method, fixed, problem, x0, multiplier=multiplier)
            adaptive = _run(session, f"{method}-adaptive", learned, problem, x0)
            session.facts[f"{method} learned steps"] = [round(learned.steps(k).item(), 4) for k in range(HORIZON)]
            if method == "lmd-quadratic":
                _record_matrix(session, method, learned.mirror, gram)
            draw_least_squares(session, method, learned, problem, x0, adaptive)


def _run(
    session: Session, method: str, solver: Solver[Any], problem: LeastSquares, x0: Tensor, **settings: Any
) -> Result:
    result, _ = measure(solver, problem, x0, ITERATIONS, session.repeats)
    session.record_run(method, result, ITERATIONS, **settings)
    if "clipped" in result.history.diagnostics:
        share = (result.history.diagnostics["clipped"][:-1] > 0).double().mean()
        session.record(method, ITERATIONS, "clipped_share", float(share), **settings)
    return result


def _record_matrix(session: Session, method: str, mirror: Any, gram: Tensor) -> None:
    """Record the ratio of the learned matrix's off-diagonal to its diagonal (0.8 for W'W), and its eigenvalues."""
    matrix = mirror.matrix.detach()
    diagonal = matrix.diagonal().mean()
    session.record(method, HORIZON, "matrix_ratio", float((matrix[0, 1] + matrix[1, 0]) / 2 / diagonal))
    session.record("md", HORIZON, "matrix_ratio", float(gram[0, 1] / gram.diagonal().mean()))
    for index, eigenvalue in enumerate(torch.linalg.eigvalsh(matrix)):
        session.record(method, HORIZON, "matrix_eigenvalue", float(eigenvalue), index=index)


def draw_least_squares(
    session: Session, method: str, learned: MirrorDescent, problem: LeastSquares, x0: Tensor, adaptive: Result
) -> None:
    """All panels of one figure of the paper: losses, paths, potential, iterates, and the learned matrix."""
    quadratic = method == "lmd-quadratic"
    with figure(12.5, 7.6) as drawing:
        layout = drawing.subplots(2, 3)
        _draw_losses(layout[0, 0], layout[0, 1], session, method)
        _draw_paths(layout[0, 2], learned.mirror)
        _draw_potential(layout[1, 0], learned.mirror)
        _draw_iterates(layout[1, 1], learned, problem, x0)
        _draw_matrix(layout[1, 2], learned.mirror, problem.W.T @ problem.W)
        number, potential = (2, "quadratic") if quadratic else (3, "one-layer")
        session.save_figure(
            f"figure-{number}-{potential}",
            drawing,
            f"Learned mirror descent with the {potential} potential. Top: mean loss against iterations and time; paths "
            "from one start in the eigenbasis of W. Bottom: the learned potential; ten iterations of adaptive LMD "
            "beside the true solutions; the learned matrix beside W'W, both divided by their mean diagonal.",
        )


def _draw_losses(by_iteration: Any, by_time: Any, session: Session, method: str) -> None:
    methods = ("gd", "adam", "md", method, f"{method}-adaptive")
    plot_methods((by_iteration, by_time), session.rows, "loss", methods, first=0)
    for axes in (by_iteration, by_time):
        axes.set_yscale("log")
        axes.set_ylim(1e-33, 1e3)
        axes.set_ylabel("mean loss")
        axes.set_yticks([1e-32, 1e-24, 1e-16, 1e-8, 1])
    by_iteration.axvline(HORIZON, color="0.6", linewidth=1.0, zorder=0)
    by_iteration.set(xlabel="iteration", title="loss per iteration")
    by_time.set(xlabel="ms, all instances together", title="loss per time")
    by_time.set_xlim(left=0, right=_median_time(session))
    label_lines(by_iteration)


def _median_time(session: Session) -> float:
    ends = sorted(row["value"] for row in select(session.rows, metric="seconds", iteration=ITERATIONS))
    return 1.2e3 * float(ends[len(ends) // 2]) if ends else 1.0


def _draw_paths(axes: Any, mirror: Mirror) -> None:
    """Draw paths from one start for b = 0, in the eigenbasis (u, v) of W. Steps are small, so that paths are curves."""
    W = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    problem = LeastSquares(W, W.new_zeros(1, 2))
    basis = W.new_tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    start = W.new_tensor([[0.9, 1.8]]) @ basis
    grid = torch.linspace(-2.2, 2.2, 121, dtype=torch.float64)
    u, v = torch.meshgrid(grid, grid, indexing="xy")
    axes.contour(
        u.numpy(), v.numpy(), (9 * u**2 + v**2).numpy(), levels=[0.2, 1, 3, 7, 14, 25, 40], colors="0.8", linewidths=0.8
    )
    gram = problem.W.T @ problem.W
    methods: dict[str, Solver[Any]] = {
        "gd": GradientDescent(0.01),
        "md": MirrorDescent(Quadratic.from_matrix(gram), 0.05),
        "lmd": MirrorDescent(mirror, 0.01),
    }
    for name, solver in methods.items():
        points = [start]
        run(solver, problem, start, 150, callbacks=[lambda state, _, into=points: into.append(state.x)])  # type: ignore[misc]
        path = (torch.cat(points) @ basis.T).numpy()
        look = {"linewidth": 4.5, "alpha": 0.55} if name == "md" else {"linewidth": 2.0}
        axes.plot(path[:, 0], path[:, 1], color=COLOURS[name], label=name, **look)
    axes.plot(0, 0, marker="*", color=COLOURS["truth"], markersize=11, linestyle="none", label="minimiser")
    axes.set(
        xlabel="along (1, 1)", ylabel="along (1, -1)", xlim=(-0.5, 1.3), ylim=(-0.4, 2.1), title="paths of small steps"
    )
    axes.legend(loc="lower right", frameon=True, framealpha=0.9)


def _draw_potential(axes: Any, mirror: Mirror) -> None:
    grid = torch.linspace(-3, 3, 101, dtype=torch.float64)
    x, y = torch.meshgrid(grid, grid, indexing="xy")
    with torch.no_grad():
        height = mirror.potential(torch.stack([x.flatten(), y.flatten()], dim=1)).reshape(x.shape)
    surface = (x.numpy(), y.numpy(), height.numpy())
    drawn = axes.contourf(*surface, levels=24, cmap="viridis")
    axes.contour(*surface, levels=12, colors="white", linewidths=0.5, alpha=0.6)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.9)
    axes.set(xlabel="$x_1$", ylabel="$x_2$", title=r"learned potential $\Psi$", aspect="equal")
    axes.grid(False)


def _draw_iterates(axes: Any, learned: MirrorDescent, problem: LeastSquares, x0: Tensor) -> None:
    reached = run(learned, problem, x0, HORIZON).x.numpy()
    true = minimiser(problem).numpy()
    shown = slice(0, 200)
    axes.scatter(true[shown, 0], true[shown, 1], s=34, facecolors="none", edgecolors=COLOURS["truth"], label="true")
    axes.scatter(reached[shown, 0], reached[shown, 1], s=9, color=COLOURS["adaptive"], label="adaptive LMD")
    axes.set(xlabel="$x_1$", ylabel="$x_2$", title="after 10 iterations", xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
    axes.legend(loc="upper right", framealpha=0.9)


def _draw_matrix(axes: Any, mirror: Mirror, gram: Tensor) -> None:
    """Draw the Hessian of the learned potential at 0 and W'W, both divided by their mean diagonal."""
    matrix = curvature_at_zero(mirror)
    both = torch.cat([m / m.diagonal().mean() for m in (matrix, gram)], dim=1)
    both = torch.cat([both[:, :2], both.new_full((2, 1), torch.nan), both[:, 2:]], dim=1)
    axes.imshow(both.numpy(), cmap="PuOr", vmin=-1.3, vmax=1.3)
    for i in range(2):
        for j in (0, 1, 3, 4):
            axes.text(j, i, f"{float(both[i, j]):.3f}", ha="center", va="center", fontsize=10, color="white")
    axes.set_xticks([0.5, 3.5], ["learned", "$W^T W$"])
    axes.set_yticks([])
    axes.grid(False)
    axes.set_title("curvature, unit mean diagonal")


def curvature_at_zero(mirror: Mirror) -> Tensor:
    """The Hessian of the potential at 0 `(2, 2)`, which for a quadratic is its matrix."""
    zero = next(mirror.parameters()).new_zeros(1, 2)
    hessian: Tensor = torch.func.jacrev(lambda x: mirror.to_dual(x[None])[0])(zero[0])
    return hessian.detach()
