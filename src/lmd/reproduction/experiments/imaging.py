"""Figures 8 to 11 and Table 1: TV denoising and inpainting of photographs."""

from __future__ import annotations

import abc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd import zoo
from lmd.cli.common import Table
from lmd.core.extras import require
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.image_families import add_noise, as_float, random_masks
from lmd.problems.tv import TVModel
from lmd.reproduction import recipes
from lmd.reproduction.datasets import image_data, read_images
from lmd.reproduction.datasets.images import CROP
from lmd.reproduction.experiments.base import (
    HORIZON,
    MULTIPLIERS,
    Experiment,
    Session,
    best_multiplier,
    draw_comparison,
    measure,
    reached,
)
from lmd.reproduction.figures import figure, label_lines, plot_curve
from lmd.reproduction.tables import Row, cell, distinct, select
from lmd.reproduction.tasks.common import WEIGHT
from lmd.reproduction.tasks.denoise import SPLIT_BREGMAN, make
from lmd.reproduction.tasks.inverse import KEPT
from lmd.reproduction.tasks.task import minimiser, minimum
from lmd.solvers import FGP, PDHG, Adam, GradientDescent, MirrorDescent, Nesterov, Solver, run

ITERATIONS = 20
BASE_STEP = 0.01
ADAM_STEP = 0.05
TAU = 0.2  # the primal step of PDHG that its multipliers multiply; its own default is 0.18 here
TEST_SEED = 4_000_000
COUNTS = {"quick": 2, "standard": 24, "paper": 100}  # how many test images
SIDES = {"quick": 48, "standard": CROP, "paper": CROP}  # their size
LABELS = {"loss": "mean loss", "relative_gap": "mean relative gap", "psnr": "mean PSNR to the minimiser, dB"}


class PhotographExperiment(Experiment):
    """A learned pair against GD, Adam and Nesterov at five step-sizes, and the classical methods of the problem."""

    imaging = True
    methods: ClassVar[tuple[str, ...]]
    tuned: ClassVar[tuple[str, ...]]  # methods of which only the best step is drawn
    figures: ClassVar[tuple[str, str]]
    damaged: ClassVar[str]  # what has been done to the images, in words

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        shown = {"lmd-adaptive": "adaptive LMD", "pdhg": "PDHG", "adam": "Adam"}
        at = ", ".join(f"{label} {reached(rows, name, 'psnr', HORIZON)} dB" for name, label in shown.items())
        return f"Ten iterations of TV {cls.name} towards the true minimiser: {at}"

    @abc.abstractmethod
    def problem(self, session: Session, images: Tensor) -> TVModel:
        """Return the paper's problem for these images `(B, C, H, W)`, and record facts about it."""

    def record_peers(self, session: Session, problem: TVModel) -> tuple[str, ...]:
        """Record the rows of solvers of other packages, and return their names."""
        return ()

    def run(self, session: Session) -> None:
        images = images_for(session)
        problem = self.problem(session, images)
        session.facts.update(base_step=BASE_STEP, adam_step=ADAM_STEP, pdhg_tau=TAU)
        learned = learned_solver(session, self.name)
        record_trials(session, problem, trials_for(problem, learned, self.methods))
        peers = self.record_peers(session, problem)
        caption = (
            f"TV {self.name}, {session.facts['data']}, {self.damaged}: mean loss, relative gap, and PSNR to the true "
            f"minimiser, per iteration and time. {' and '.join(self.tuned).upper()} with the step that is best at "
            "iteration 10. The grey line ends the trained iterations."
        )
        draw_trials(session, self.figures[0], (*self.methods, *peers), self.tuned, caption)
        draw_pictures(session, self.figures[1], images, problem, learned, self.damaged)


def middles(images: Tensor, side: int) -> Tensor:
    """Return the middle `(n, C, side, side)` of each image, or the whole image if it is smaller."""
    top, left = (max(0, size - side) // 2 for size in images.shape[2:])
    return images[:, :, top : top + side, left : left + side]


def images_to_test(brought: Path | None, count: int | None, side: int, data: str = "auto") -> tuple[str, Tensor]:
    """Return the name of the source of the test images, and their centre crops in [0, 1].

    If one of the user's images is smaller than `side`, all are cropped to its size.
    """
    if brought is None:
        own = image_data(data)
        name, images = own.name, middles(own.test_images[:count], side)
    else:
        found = read_images(brought)
        smallest = min([side, *(min(image.shape[1:]) for image in found.images)])
        name, images = found.name, found.crops(smallest)[:count]
    return name, as_float(images, torch.float32)


def images_for(session: Session) -> Tensor:
    """Return test images `(n, 3, side, side)` in [0, 1]: the user's, else (not at quick size) STL-10, else bundled."""
    data = "photographs" if session.preset == "quick" else "auto"
    name, images = images_to_test(session.images, COUNTS[session.preset], SIDES[session.preset], data)
    session.facts["data"] = f"{len(images)} test images of {images.shape[2]} x {images.shape[3]} from {name}"
    return images


def generator_for(session: Session, purpose: int = 0) -> torch.Generator:
    """Return the generator of noise and masks."""
    return torch.Generator().manual_seed(TEST_SEED + 100 * session.seed + purpose)


def learned_solver(session: Session, task: str) -> MirrorDescent:
    """Return the learned pair of a task, and record its origin as a fact.

    The shipped pair, if there is one, also serves at quick size, as it is trained on the same photographs. At `paper`
    size the pair is the published one.
    """
    name = f"{task}-{'published' if session.preset == 'paper' else 'pair'}-10"
    ships = session.preset == "quick" and name in zoo.names() and not session.retrain
    return session.learned(name, preset=recipes.SHIPPED_PRESET if ships else session.preset)


@dataclass(frozen=True)
class SteppedSolver:
    """A solver and its step-size multiplier, which is None for a solver with learned steps."""

    name: str
    solver: Solver[Any]
    multiplier: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its rows."""
        return {} if self.multiplier is None else {"multiplier": self.multiplier}


def trials_for(problem: TVModel, learned: MirrorDescent, names: Sequence[str]) -> list[SteppedSolver]:
    """Return the methods with these names at every multiplier of the base steps of the published code.

    gd, nesterov, lmd: multiples of 0.01; adam: of 0.05; lmd-adaptive: its learned steps. fgp: multiples of the
    standard step, only if the data term is strongly convex. pdhg: multiples of tau = 0.2.
    """
    found = []
    for m in MULTIPLIERS:
        found += [
            SteppedSolver("gd", GradientDescent(m * BASE_STEP), m),
            SteppedSolver("adam", Adam(m * ADAM_STEP), m),
            SteppedSolver("nesterov", Nesterov(m * BASE_STEP), m),
            SteppedSolver("lmd", learned.with_steps(m * BASE_STEP), m),
            SteppedSolver("pdhg", PDHG(TAU * m), m),
        ]
    found.append(SteppedSolver("lmd-adaptive", learned))
    if problem.f.strong_convexity is not None:
        found += [SteppedSolver("fgp", FGP(m), m) for m in (0.5, 1.0, 1.3)]
    return sorted((trial for trial in found if trial.name in names), key=lambda trial: names.index(trial.name))


def record_trials(session: Session, problem: TVModel, trials: Sequence[SteppedSolver]) -> None:
    """Run the trials for 20 iterations and add their rows: loss, relative gap, PSNR to the minimiser, seconds."""
    best, least = minimiser(problem), minimum(problem).double()
    session.facts["mean minimum"] = float(least.mean())
    for trial in trials:
        repeats = min(3, session.repeats)
        result, quality = measure(
            trial.solver, problem, problem.start(), ITERATIONS, repeats, watch=lambda x: psnr(x, best).mean()
        )
        session.record_run(trial.name, result, ITERATIONS, **trial.settings)
        gaps = ((result.history.values.double() - least) / least).mean(dim=1).tolist()
        session.record_curves(trial.name, ITERATIONS, {"relative_gap": gaps, "psnr": quality}, **trial.settings)


def psnr(x: Tensor, reference: Tensor) -> Tensor:
    """10 log10(1 / mean (x - reference)^2) of each image in [0, 1]: two batches `(B, C, H, W)` to `(B,)`."""
    return -10 * (x.double() - reference.double()).square().flatten(1).mean(dim=1).log10()


def ssim(x: Tensor, reference: Tensor) -> Tensor:
    """scikit-image's SSIM of each image, for values in [0, 1]: two batches `(B, C, H, W)` to `(B,)`."""
    require("skimage")
    from skimage.metrics import structural_similarity

    pairs = zip(reference.numpy(), x.numpy(), strict=True)
    measured: Any = structural_similarity  # scikit-image has no types
    found = [measured(one, other, data_range=1, channel_axis=0) for one, other in pairs]
    return torch.tensor(found, dtype=reference.dtype)


def draw_trials(session: Session, name: str, methods: Sequence[str], tuned: Sequence[str], caption: str) -> None:
    """Loss, relative gap and PSNR of the methods; of `tuned` ones only the best step is drawn."""

    def finish(axes: Any, metric: str) -> None:
        measured = [row for row in session.rows if row["metric"] == metric and row["value"] is not None]
        start = next(row["value"] for row in measured if row["iteration"] == 0)
        values = [row["value"] for row in measured]
        if metric == "psnr":
            axes.set_ylim(max(min(values), start - 3), max(values) + 1)
        else:
            axes.set_yscale("log")
            axes.set_ylim(0.9 * min(value for value in values if value > 0), 1.5 * start)

    draw_comparison(session, name, LABELS, methods, caption, finish=finish, what="images", tuned=tuned)


def snapshots(solver: Solver[Any], problem: TVModel, iterations: Sequence[int]) -> list[Tensor]:
    """The iterates `(B, C, H, W)` after these numbers of iterations."""
    return [run(solver, problem, iterations=k, record=False).x for k in iterations]


def draw_pictures(
    session: Session, name: str, images: Tensor, problems: TVModel, learned: MirrorDescent, damaged: str
) -> None:
    """Draw pictures of one instance: truth, start, forward map over start, LMD, Adam, PDHG, minimiser.

    The instance is the one with the median minimum.
    """
    middle = int(minimum(problems).argsort()[len(images) // 2])
    truth, problem = images[middle : middle + 1], problems.select(slice(middle, middle + 1))
    adam = Adam((best_multiplier(session.rows, "adam") or 1.0) * ADAM_STEP)
    pdhg = PDHG(TAU * (best_multiplier(session.rows, "pdhg") or 1.0))
    start, best = problem.start(), minimiser(problem)
    _film(session, f"{name}-film", problem, best, learned, pdhg)
    lmd_early, lmd_late = snapshots(learned, problem, (3, 10))
    adam_early, adam_late = snapshots(adam, problem, (3, 10))
    (pdhg_late,) = snapshots(pdhg, problem, (10,))
    pictures = [
        ("ground truth", truth),
        (damaged, start),
        ("forward map over input", forward_ratio(learned, start, getattr(problem, "mask", None))),
        ("adaptive LMD, 3 iterations", lmd_early),
        ("adaptive LMD, 10 iterations", lmd_late),
        ("true minimiser", best),
        ("Adam, 3 iterations", adam_early),
        ("Adam, 10 iterations", adam_late),
        ("PDHG, 10 iterations", pdhg_late),
    ]
    with figure(9.4, 10.2) as drawing:
        for axes, (title, picture) in zip(drawing.subplots(3, 3).flat, pictures, strict=True):
            axes.set_axis_off()
            if picture.ndim == 2:
                _draw_ratio(drawing, axes, picture)
            else:
                axes.imshow(picture[0].permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
                value = f"loss {float(problem.value(picture)):.4g}"
                title += f"\n{value}" if picture is best else f"\n{value}, {float(psnr(picture, best)):.1f} dB"
            axes.set_title(title, fontsize=11.5)
        session.save_figure(
            name,
            drawing,
            "The test image with the median minimum: loss, and PSNR to the true minimiser. Adam and PDHG with the step "
            "that is best at iteration 10. The ratio shows where the learned geometry departs from the identity.",
        )


def _film(session: Session, name: str, problem: TVModel, best: Tensor, learned: Solver[Any], pdhg: Solver[Any]) -> None:
    """Save frames of both solvers side by side, after 0 to 10 iterations."""
    counts = range(HORIZON + 1)
    films = [[problem.start(), *snapshots(solver, problem, counts[1:])] for solver in (learned, pdhg)]
    frames = {}
    for k, pair in zip(counts, zip(*films, strict=True), strict=True):
        left, right = (float(psnr(x, best)) for x in pair)
        frames[f"after {k} iterations: adaptive LMD {left:.1f} dB, PDHG {right:.1f} dB"] = torch.cat(pair, dim=-1)[0]
    caption = "Move the slider: adaptive LMD on the left, PDHG on the right, from the same start."
    session.save_frames(name, frames, caption)


def forward_ratio(learned: MirrorDescent, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """to_dual(y) / y in units of the mirror's scale, pixel by pixel `(H, W)`, the mean over the channels of one image.

    Channels with y below 0.15, where noise dominates the ratio, are left out. Lost pixels, and pixels without any
    channel left, are NaN.
    """
    with torch.no_grad():
        ratio = learned.mirror.to_dual(y) / getattr(learned.mirror, "scale", 1.0) / y
    shown = y > 0.15
    if mask is not None:
        shown = shown & (mask > 0)
    return torch.where(shown, ratio, torch.nan)[0].nanmean(dim=0)


def _draw_ratio(drawing: Any, axes: Any, ratio: Tensor) -> None:
    low, high = ratio.nanquantile(0.02).item(), ratio.nanquantile(0.98).item()
    shown = axes.imshow(ratio.numpy(), cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
    beneath = axes.inset_axes((0.0, -0.06, 1.0, 0.035))
    bar = drawing.colorbar(shown, cax=beneath, orientation="horizontal")
    bar.set_ticks([low, (low + high) / 2, high], labels=[f"{tick:.4g}" for tick in (low, (low + high) / 2, high)])


NOISE = 0.05
SCIKIT_IMAGE_ITERATIONS = (2, 3, 5, 10, 20)


class DenoiseExperiment(PhotographExperiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes, FGP, PDHG and scikit-image."""

    name = "denoise"
    title = "TV denoising of photographs, with a learned mirror pair"
    paper = "Figures 8 and 9"
    solvers = ("denoise-pair-10",)
    methods = ("gd", "adam", "nesterov", "fgp", "pdhg", "lmd", "lmd-adaptive")
    tuned = ("fgp", "pdhg")
    figures = ("figure-8-denoise", "figure-9-pictures")
    damaged = "noisy"

    def problem(self, session: Session, images: Tensor) -> TVModel:
        session.facts.update(objective=f"||x - y||^2 + {WEIGHT} TV(x), anisotropic", noise=f"{NOISE:.0%}")
        return make(images, NOISE, generator_for(session))

    def record_peers(self, session: Session, problem: TVModel) -> tuple[str, ...]:
        record_scikit_image(session, problem)
        return (SPLIT_BREGMAN.name,)


def record_scikit_image(session: Session, problem: TVModel) -> None:
    """Record the rows of scikit-image's split Bregman method, which treats the border a little differently.

    Its limit is about 0.1% above the minimum.
    """
    best, least, call = minimiser(problem), minimum(problem).double(), SPLIT_BREGMAN.prepare(problem)
    for k in (0, *SCIKIT_IMAGE_ITERATIONS):
        x, times = problem.start(), [0.0]
        for repeat in range(max(3, session.repeats) if k else 0):
            begun = time.perf_counter()
            answer = call(k)
            times[repeat:] = [time.perf_counter() - begun]
            x = SPLIT_BREGMAN.finish(problem, answer)
        values = problem.value(x).double()
        found = {"loss": values, "relative_gap": (values - least) / least, "psnr": psnr(x, best)}
        for metric, measured in found.items():
            session.record(SPLIT_BREGMAN.name, k, metric, float(measured.mean()))
        session.record(SPLIT_BREGMAN.name, k, "seconds", statistics.median(times))


INPAINTING_NOISE = 0.05


class InpaintExperiment(PhotographExperiment):
    """The learned pair against GD, Adam and Nesterov at five step-sizes and PDHG; one mask for all images."""

    name = "inpaint"
    title = "TV inpainting of photographs, with a learned mirror pair"
    paper = "Figures 10 and 11"
    solvers = ("inpaint-pair-10",)
    methods = ("gd", "adam", "nesterov", "pdhg", "lmd", "lmd-adaptive")
    tuned = ("pdhg",)
    figures = ("figure-10-inpaint", "figure-11-pictures")
    damaged = "pixels lost, noisy"

    def problem(self, session: Session, images: Tensor) -> TVInpainting:
        session.facts.update(
            objective=f"||Z(x - y)||^2 + {WEIGHT} TV(x), anisotropic",
            noise=f"{INPAINTING_NOISE:.0%}",
            kept=f"{KEPT:.0%} of the pixels, the same in all images",
        )
        return inpainting_problem(session, images)


def inpainting_problem(session: Session, images: Tensor) -> TVInpainting:
    """The paper's problem for these images `(B, C, H, W)`: one mask for all, noise for each."""
    mask = random_masks(1, images.shape[2], images.shape[3], KEPT, generator_for(session, purpose=1))[0, 0]
    return TVInpainting(add_noise(mask * images, INPAINTING_NOISE, generator_for(session)), mask, WEIGHT)


NOISE_PERCENT = (1, 2, 5, 10, 15, 20)
NOISE_LEVEL_METHODS = ("gd", "adam", "fgp", "pdhg", "lmd", "lmd-adaptive")
QUALITY_METRICS = {"psnr": psnr, "ssim": ssim}
SHOWN_ITERATIONS = (HORIZON, ITERATIONS)
DIVERGED = 10.0  # an instance has diverged if its value is not finite or more than this many times the first one
FAR = 1e6  # pixels are clamped to [-FAR, FAR] and NaN to FAR, so that averages over images are finite


class NoiseLevelsExperiment(Experiment):
    """PSNR and SSIM to the certified minimiser, best over the step-sizes as in the paper."""

    name = "denoise-noise-levels"
    title = "TV denoising from 1 to 20% noise: PSNR and SSIM to the true minimiser"
    paper = "Table 1"
    solvers = ("denoise-pair-10",)
    imaging = True

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        ours = [reached(rows, "lmd-adaptive", "psnr", HORIZON, noise=percent) for percent in (1, 5, 20)]
        return (
            f"At ten iterations adaptive LMD is at {ours[0]}, {ours[1]} and {ours[2]} dB at 1, 5 and 20% noise, where "
            "the paper has 33.3, 32.9 and 10.9"
        )

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *noise_tables(rows)]

    def run(self, session: Session) -> None:
        images = images_for(session)
        learned = learned_solver(session, "denoise")
        session.facts.update(
            objective=f"||x - y||^2 + {WEIGHT} TV(x), anisotropic", base_step=BASE_STEP, adam_step=ADAM_STEP
        )
        session.facts.update(pdhg_tau=TAU, diverged=f"not finite, or {DIVERGED:g} times the value of the start")
        for percent in NOISE_PERCENT:
            problem = make(images, percent / 100, generator_for(session, purpose=percent))
            best = minimiser(problem)
            for name in NOISE_LEVEL_METHODS:
                tried = [_Tried(problem, best, trial) for trial in trials_for(problem, learned, (name,))]
                _record_level(session, name, tried, percent)
            session.log("noise level", noise=percent)
        _draw_levels(session)


class _Tried:
    """The quality of a method with one step size at each iteration."""

    def __init__(self, problem: TVDenoising, best: Tensor, trial: SteppedSolver) -> None:
        start = problem.start()
        found = {metric: [measured(start, best)] for metric, measured in QUALITY_METRICS.items()}
        values = [problem.value(start)]

        def look(x: Tensor, value: Tensor) -> None:
            finite = torch.nan_to_num(x, nan=FAR).clamp(-FAR, FAR)
            for metric, measured in QUALITY_METRICS.items():
                found[metric].append(measured(finite, best))
            values.append(value)

        run(
            trial.solver,
            problem,
            start,
            ITERATIONS,
            divergence_factor=1e30,
            callbacks=[lambda state, value: look(state.x, value)],
        )
        self.found = {
            metric: torch.stack(rows + [rows[-1]] * (ITERATIONS + 1 - len(rows))) for metric, rows in found.items()
        }
        """By metric `(K+1, B)`; if a run ends early, with no finite image left, its last numbers are kept."""

        last = values[-1]
        self.diverged = ~torch.isfinite(last) | (last > DIVERGED * values[0])

    def mean(self, metric: str) -> Tensor:
        """Return the mean of `metric` over the images `(K+1,)`."""
        return self.found[metric].mean(dim=1)


def _record_level(session: Session, name: str, tried: Sequence[_Tried], percent: int) -> None:
    """Record the best mean over images among step sizes (and iterations), the worst image and the diverged share."""
    for metric in QUALITY_METRICS:
        means = torch.stack([one.mean(metric) for one in tried])
        session.record(name, "best", metric, float(means[:, 1:].max()), noise=percent)
        for k in SHOWN_ITERATIONS:
            session.record(name, k, metric, float(means[:, k].max()), noise=percent)
    for k in SHOWN_ITERATIONS:
        worst = min(float(one.found["psnr"][k].min()) for one in tried)
        session.record(name, k, "psnr_worst", worst, noise=percent)
    diverged = torch.stack([one.diverged for one in tried]).float().mean()
    session.record(name, ITERATIONS, "diverged_share", float(diverged), noise=percent)


def _draw_levels(session: Session) -> None:
    labels = {"psnr": "PSNR to the minimiser, dB", "ssim": "SSIM to the minimiser"}
    with figure(11.5, 7.4) as drawing:
        panels = drawing.subplots(2, 3, sharex=True, sharey="row")
        for line, metric in zip(panels, QUALITY_METRICS, strict=True):
            for axes, k in zip(line, (HORIZON, ITERATIONS, "best"), strict=True):
                for method in NOISE_LEVEL_METHODS:
                    rows = select(session.rows, method=method, metric=metric, iteration=k)
                    noise, values = [row["noise"] for row in rows], [row["value"] for row in rows]
                    plot_curve(axes, noise, values, method)
                if metric == "psnr":
                    axes.set_title("best of 20 iterations" if k == "best" else f"iteration {k}")
                axes.set_xticks(NOISE_PERCENT)
            line[0].set_ylabel(labels[metric])
        for axes in panels[1]:
            axes.set_xlabel("noise, %")
        for axes in panels[:, -1]:
            label_lines(axes, apart=0.08)
        caption = (
            f"TV denoising, {session.facts['data']}: PSNR and SSIM to the true minimiser against the noise, mean over "
            "the images, best over the step-sizes."
        )
        session.save_figure("table-1-noise-levels", drawing, caption)


def noise_tables(rows: Sequence[Row]) -> list[Table]:
    """Quality against the noise, where an experiment measured it: for each metric and iteration a line per method."""
    tables = []
    for metric in QUALITY_METRICS:
        measured = [row for row in rows if row["metric"] == metric and "noise" in row and "problem" not in row]
        levels = distinct(measured, "noise")
        for k in distinct(measured, "iteration"):
            here = select(measured, iteration=k)
            lines = tuple(
                (method, *(cell(select(here, method=method, noise=level)) for level in levels))
                for method in distinct(here, "method")
            )
            title = f"{metric.upper()} to the minimiser, {'best iteration' if k == 'best' else f'iteration {k}'}"
            tables.append(Table(title, ("method", *(f"noise {level}%" for level in levels)), lines))
    return tables
