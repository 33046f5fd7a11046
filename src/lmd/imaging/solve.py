"""A picture through a solver: what `lmd solve` does with it, for every task that takes pictures, of any size."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd import zoo
from lmd.core.checks import check_choice, check_count, check_positive
from lmd.core.memory import check_memory
from lmd.errors import CapabilityError, InputError, LmdError
from lmd.guarantees import certify, run
from lmd.imaging.arrays import Units, check_kept, nearest_to_zero
from lmd.imaging.forms import Form
from lmd.imaging.functions import AUTO
from lmd.imaging.noise import at_least, measure, rough_noise, with_minimum_level
from lmd.imaging.picture import Header, Picture
from lmd.imaging.tasks import DEFAULT_WEIGHT, PICTURE_TASKS, PictureTask
from lmd.imaging.weights import Choice, by_leaving_out, by_risk, choose_behind_blur, near, warn_of_end
from lmd.operators import Blur
from lmd.solvers import Result, Status
from lmd.solvers.base import Solver
from lmd.zoo.defaults import CLASSICAL, find, name_for
from lmd.zoo.solve import MAX_ITERATIONS, solve

WEIGHTS = (1e-6, 1e6)
"""What is less changes no pixel, what is more leaves one colour; and single precision holds what comes of them."""

TOLERANCE = 1e-3
"""How near to the minimum a solver goes that has no number of iterations of its own, relative to the minimum."""

LONGEST = 2000
"""Where such a solver ends if it has not got there."""

PLANES = 32
"""How many numbers there are for each pixel of the channels that are solved together, at most, while a solver runs."""

TOGETHER = 1 << 22
"""The channels of pictures of at most so many numbers are solved together, others one after the other."""

SAMPLE = {2: 512, 3: 96}
"""By the axes of space: a weight is chosen on so many pixels along each, half of them from either end."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What became of a picture, or of some of its channels: those of others are added."""

    task: str
    """Its name."""

    solver: str
    """The name of the solver."""

    weight: float
    """Of the regulariser."""

    form: Form
    """The model by its words: data, order, isotropic, coupled, huber."""

    value_before: float
    """f of the solver's start, all channels together, with colours from 0 to 1: the picture as it was."""

    value_after: float
    """f of the answer; never more than `value_before`."""

    lower_bound: float
    """What the minimum is proven to be, at least."""

    theorem: str
    """What proves it."""

    curvature: float | None
    """The strong convexity of the problem, where there is one."""

    numbers: int
    """How many the picture has."""

    iterations: int
    """Of the channel that took most."""

    seconds: float
    """Of choosing the weight and solving, without reading and writing files."""

    choice_seconds: float = 0.0
    """What choosing the weight took of them."""

    notes: tuple[str, ...] = ()
    """What else there is to know, such as a solver that diverged."""

    choice: Choice | None = field(default=None, repr=False)
    """How the weight was chosen, where it was."""

    def __add__(self, other: Summary) -> Summary:
        return replace(
            self,
            value_before=self.value_before + other.value_before,
            value_after=self.value_after + other.value_after,
            lower_bound=self.lower_bound + other.lower_bound,
            theorem=" and ".join(dict.fromkeys((self.theorem, other.theorem))),
            numbers=self.numbers + other.numbers,
            iterations=max(self.iterations, other.iterations),
            seconds=self.seconds + other.seconds,
            notes=tuple(dict.fromkeys((*self.notes, *other.notes))),
        )

    @property
    def bound(self) -> float:
        """What the value exceeds the minimum by, at most."""
        return max(0.0, self.value_after - self.lower_bound)

    @property
    def relative_bound(self) -> float:
        """The same relative to the minimum; infinite where the minimum may be zero."""
        return self.bound / self.lower_bound if self.lower_bound > 0 else math.inf

    @property
    def distance(self) -> float:
        """A bound on the root mean square of x - x*, as f(x) - f(x*) >= mu/2 ||x - x*||^2; infinite without mu."""
        return math.sqrt(2 * self.bound / (self.curvature * self.numbers)) if self.curvature else math.inf

    @property
    def proven(self) -> str:
        """What is proven, in words."""
        if not math.isfinite(self.bound) or self.bound > self.value_after > 0:  # no value is below 0 anyway
            return "nothing of use is proven by this run; fgp and pdhg prove how good their answer is"
        if math.isfinite(self.relative_bound):
            percent = 100 * self.relative_bound
            said = f"within {f'{percent:.0f}' if percent >= 10 else f'{percent:.2g}'}% of the minimum"
        else:
            said = f"at most {self.bound:.2g} above the minimum"
        if math.isfinite(self.distance):
            said += f", {255 * self.distance:.2g} of 255 grey levels from the minimiser (root mean square)"
        return f"{said}, by {self.theorem}"

    def text(self) -> str:
        """A few lines for a person."""
        weight = f"weight {self.weight:.3g}"
        if self.choice is not None:
            noise = float(self.choice.noise)
            weight += f" (automatic, for noise of {f'{100 * noise:.2g}%' if noise < 1 else f'{noise:.2g}'})"
        chosen = f", {self.choice_seconds:.3g} of them to choose the weight" if self.choice is not None else ""
        rows = {
            "value": f"{self.value_before:.6g} before, {self.value_after:.6g} after",
            "problem": f"TV {picture_task(self.task).doing}, {self.form.words}, {weight}",
            "iterations": f"{self.iterations} of {self.solver}",
            "seconds": f"{self.seconds:.3g}" + chosen,
            "certificate": self.proven,
        }
        lines = [f"  {name:12s} {said}" for name, said in rows.items()]
        return "\n".join(lines + [f"  note         {note}" for note in self.notes])

    def as_json(self) -> dict[str, Any]:
        """The same for programs. JSON has no infinity: null stands for it."""
        names = ("task", "solver", "weight", "value_before", "value_after", "iterations", "seconds")
        bounds = {name: getattr(self, name) for name in ("bound", "relative_bound", "lower_bound")}
        finite = {name: number if math.isfinite(number) else None for name, number in bounds.items()}
        words = {name: getattr(self.form, name) for name in ("data", "order", "isotropic", "coupled", "huber")}
        told = {**{name: getattr(self, name) for name in names}, **words}
        if self.choice is not None:
            path, risk = self.choice.path.flatten().tolist(), self.choice.risk.flatten().tolist()
            found = {"noise": float(self.choice.noise), "weights": path, "risks": risk}
            told["automatic"] = {**found, "seconds": self.choice_seconds}
        return {**told, "certificate": {**finite, "theorem": self.theorem}, "notes": list(self.notes)}


class PictureSolver:
    """A solver and its settings, for pictures of any size and kind.

    `solver` is a name (`fgp`, `pdhg`, one of the zoo), a folder, or None for what `lmd.solve` takes. It stops after
    `iterations` or at a relative gap of `tolerance`, whichever comes first; with neither given, after as many
    iterations as it was trained for or, if there is no such number, at a gap of 1e-3. `weight` is a number, or "auto"
    to choose it by the picture. What denoises takes the words of `lmd.imaging.forms.Form` besides.

    Colours are coupled where lmd chooses the solver. TV that is not coupled does not mix channels, so those of a large
    picture are solved for one after the other, which saves memory. A solver that takes three has all three, and of a
    grey picture three copies.

    Args:
        task: One that takes pictures, such as "denoise", "inpaint" or "deblur".
        solver: A name, a folder, or None.
        iterations: How many at most.
        weight: A positive number, or "auto".
        tolerance: The relative gap to stop at, proven.
        isotropic: Lengths of gradients in place of sums of absolute differences.
        **form: `data`, `order`, `coupled`, `huber` and `spacing`, as in `lmd.denoise`.
    """

    def __init__(
        self,
        task: str,
        solver: str | None = None,
        iterations: int | None = None,
        weight: float | str = AUTO,
        tolerance: float | None = None,
        isotropic: bool = False,
        **form: Any,
    ) -> None:
        self.task, self.model = task, picture_task(task)
        self.weight, self.isotropic = _check_weight(weight), bool(isotropic)
        self.is_coupled: bool | None = form.pop("coupled", None)
        self.form = Form(isotropic=self.isotropic, coupled=bool(self.is_coupled), **form)
        self.formed = self.form != Form(isotropic=self.isotropic)
        if self.formed and not self.model.forms:
            names = ", ".join([*form, *(["coupled"] if self.is_coupled else [])])
            raise InputError(names, f"given with {task}", "none of them, which are for denoise")
        self.iterations = None if iterations is None else check_count("iterations", iterations)
        self.tolerance = None if tolerance is None else check_positive("tolerance", tolerance)
        self.to_tolerance = tolerance is not None or iterations is None
        self.name, self.solver, self.channels, proves = solver, None, 0, True
        if solver is not None:
            self.solver, self.channels, proves = _find(task, solver)
            self._check_form()
        self.dtype = torch.float32 if self.solver is None else _dtype(self.solver)
        least = torch.finfo(self.dtype).eps
        if tolerance is not None and tolerance < least:
            raise InputError("tolerance", repr(tolerance), f"{least:.1g} or more, the precision of its numbers")
        if tolerance is not None and not proves:
            given = f"{self.name}, which does not know how near to the minimum it is"
            raise InputError("solver", given, "one that does, such as fgp or pdhg, or no tolerance")
        endless = self.solver is None or (iterations is None and self.solver.horizon is None)
        if proves and tolerance is None and endless:
            self.tolerance, self.iterations = TOLERANCE, self.iterations or LONGEST

    def _check_form(self) -> None:
        """Raise if the solver that was named is not for the model that was named."""
        if self.formed and self.solver is not None:
            image = torch.linspace(0, 1, 256, dtype=_dtype(self.solver), device="cpu").reshape(1, 1, 16, 16)
            channels = self.channels or 1
            problem = self.form.problem(image.expand(1, channels, 16, 16), image.new_full((1,), DEFAULT_WEIGHT))
            try:
                run(self.solver, problem, iterations=1)
            except CapabilityError:
                given = f"{self.name} for {self.form.words}"
                raise InputError("solver", given, "one for such models, such as pdhg, or none") from None

    def check(self, name: str, header: Header) -> None:
        """Raise if the task is not for such pictures, or solving takes more memory than there is."""
        if self.model.extra == "kernel" and len(header.size) > 2:
            raise InputError("image", f"{name}, a volume", f"an image to {self.task}")
        together = self._for(header.channels)._together(header.channels, math.prod(header.size))
        need = 4 * PLANES * together * math.prod(header.size) + 2 * header.bytes
        check_memory("image", f"{name} of {header}", need)

    def solve(
        self,
        picture: Picture,
        extra: Tensor | None = None,
        advance: Callable[[float], None] = lambda share: None,
    ) -> tuple[Picture, Summary]:
        """The picture with its colours solved for and all else as it was.

        `extra` is what the task takes beside it: a mask `(*size)` or a kernel. `advance` hears what share was done.
        """
        given = picture.colours
        if (mine := self._for(len(given))) is not self:
            return mine.solve(picture, extra, advance)
        if self.model.extra == "mask" and extra is not None:
            check_kept(given, np.broadcast_to(extra.numpy() != 0, given.shape))
        if given.dtype.kind == "f":
            given = _check_finite(given, extra if self.model.extra == "mask" else None)
        units = Units(0.0, 1.0)
        if given.dtype.kind == "f":
            centred = self.model.extra != "kernel" and self.form.centred
            units = Units.of(float(given.min()), float(given.max()), centred)
        self.form.check("image", float(given.min()))

        def images(colours: np.ndarray) -> Tensor:
            if picture.most > 1 or units == Units(0.0, 1.0):
                return torch.tensor(colours, dtype=self.dtype, device="cpu").div_(picture.most)[None]
            z = torch.from_numpy(colours.astype(np.float64))  # which has digits left when the centre is gone
            return z.sub_(units.centre).div_(units.unit).to(self.dtype)[None]

        weight, choice, begun = self.weight, None, time.perf_counter()
        if weight is None:
            choice = self._choose(images(_sample(given)), extra, units.unit, picture.most).times(units.unit)
            weight = float(choice.weight)
            warn_of_end(choice)
        choosing = time.perf_counter() - begun if choice is not None else 0.0
        together = self._together(len(given), given[0].size)
        parts = [slice(i, i + together) for i in range(0, len(given), together)]
        colours, told = np.empty_like(given), []
        for part in parts:
            x, summary = self._solve_part(images(given[part]), extra, weight / units.unit, units.unit)
            colours[part] = _as_colours(x, picture, units)
            told.append(_in_units(summary, units.unit**self.form.degree))
            advance(1 / len(parts))
        summary = functools.reduce(Summary.__add__, told)
        summary = replace(summary, seconds=summary.seconds + choosing, choice_seconds=choosing)
        return replace(picture, colours=colours), replace(summary, weight=weight, choice=choice)

    def _for(self, channels: int) -> PictureSolver:
        """The same for pictures of so many channels: colours are coupled, unless something else is asked for."""
        if self.is_coupled is not None or channels != 3 or self.solver is not None or not self.model.forms:
            return self
        mine = copy.copy(self)
        mine.is_coupled, mine.form, mine.formed = True, replace(self.form, coupled=True), True
        return mine

    def _together(self, channels: int, pixels: int) -> int:
        """How many channels are solved for together."""
        return self.channels or (channels if channels * pixels <= TOGETHER or self.form.coupled else 1)

    def _choose(self, images: Tensor, extra: Tensor | None, unit: float, most: float) -> Choice:
        """The weight for images `(1, C, *size)`."""
        if self.formed:
            return self.form.choose(images, None, unit, unit * most)
        make = self.model.problem
        if self.model.extra == "mask" and extra is not None:
            mask = torch.from_numpy(_sample(extra[None].numpy())).to(images)[None]
            noise = at_least(rough_noise(images, mask), images)
            return by_leaving_out(lambda y, w, z: make(y, z, w, self.isotropic), images, mask, noise, near(noise))

        def model(y: Tensor, w: Tensor) -> Any:
            return make(y, extra, w, self.isotropic)

        if extra is None:
            found = with_minimum_level(measure(images), images)
            return by_risk(model, images, found, near(found.level))
        taps = extra

        def blur(x: Tensor) -> Tensor:
            return Blur(taps.to(x), int(x.shape[-2]), int(x.shape[-1]), "replicate")(x)

        return choose_behind_blur(model, images, blur, taps.shape)

    def _problem(self, images: Tensor, extra: Tensor | None, weight: float, unit: float) -> Any:
        if self.formed:
            return self.form.problem(images, images.new_full((len(images),), weight), unit)
        return self.model.problem(images, extra, weight, self.isotropic)

    def _solve_part(self, images: Tensor, extra: Tensor | None, weight: float, unit: float) -> tuple[Tensor, Summary]:
        """The answer `(C, *size)` for images `(1, C, *size)` of the channels the solver takes, or of one, if grey."""
        copies = self.channels // images.shape[1] if self.channels else 1
        shape = (1, copies * images.shape[1], *images.shape[2:])
        problem = self._problem(images.expand(shape), extra, weight, unit)
        if self.tolerance is None and self.solver is not None:
            result = run(self.solver, problem, iterations=self.iterations, record=False)
        else:
            tolerance, most = self.tolerance or TOLERANCE, self.iterations or MAX_ITERATIONS
            result = solve(problem, tolerance, solver=self.solver, iterations=most)
        x, summary = _no_worse_than_start(result, self._told(result, weight))
        if copies == 1:
            return problem.image(x)[0], summary
        # Copies of one channel have the sum of its values, and the mean of their answers is no worse than they are.
        x = x.mean(dim=1, keepdim=True)
        value = float(self._problem(images, extra, weight, unit).value(x))
        before, lower = summary.value_before / copies, summary.lower_bound / copies
        return x[0], replace(summary, value_before=before, value_after=value, lower_bound=lower, numbers=x.numel())

    def _told(self, result: Result, weight: float) -> Summary:
        proven, status = result.certificate or certify(result), result.status[0]
        curvature = result.problem.strong_convexity
        notes = (status.message,) if status.failed or status is Status.STALLED else ()
        if self.to_tolerance and self.tolerance is not None and status is Status.FINISHED:
            notes = (f"the tolerance of {self.tolerance:g} was not reached in {int(result.iterations)} iterations",)
        return Summary(
            task=self.task,
            solver=self.name or name_for(result.problem, self.tolerance or TOLERANCE),
            weight=weight,
            form=self.form,
            value_before=float(result.history.values[0]),
            value_after=float(result.values),
            lower_bound=float(proven.lower_bound),
            theorem=proven.theorem,
            curvature=None if curvature is None else float(curvature),
            numbers=result.x.numel(),
            iterations=int(result.iterations),
            seconds=result.seconds,
            notes=notes,
        )


def _no_worse_than_start(result: Result, summary: Summary) -> tuple[Tensor, Summary]:
    """The answer, or the start where few iterations ended above it; what is proven of the minimum holds for both."""
    exact = result.problem.double()
    if exact is None or summary.value_after <= summary.value_before:
        return result.x, summary
    value = float(exact.value(result.start.double()))
    if value >= summary.value_after:
        return result.x, summary
    note = f"the start is kept: after {summary.iterations} iterations the value was {summary.value_after:.6g}, above it"
    told = replace(summary, value_before=value, value_after=value, notes=(*summary.notes, note))
    return result.start, told


def picture_task(name: str) -> PictureTask:
    """What is known of the task of that name, one that takes pictures."""
    return PICTURE_TASKS[check_choice("task", name, tuple(PICTURE_TASKS))]


def _check_weight(weight: float | str) -> float | None:
    """The number, or None for one that is to be chosen."""
    if isinstance(weight, str):
        if weight == AUTO:
            return None
        raise InputError("weight", repr(weight), "a positive number, or auto")
    number = check_positive("weight", weight)
    if not WEIGHTS[0] <= number <= WEIGHTS[1]:
        raise InputError("weight", repr(weight), f"a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    return number


def _check_finite(colours: np.ndarray, mask: Tensor | None) -> np.ndarray:
    """The colours, with numbers near the others for those that are lost, which may have been anything."""
    if mask is not None:
        fill = nearest_to_zero(colours[:, mask.numpy() != 0])
        colours = np.where(mask.numpy(), colours, fill).astype(colours.dtype)
    bad = int((~np.isfinite(colours)).sum())
    if bad:
        given = f"{bad} of {colours.size} numbers that are not finite"
        raise InputError("image", given, "finite numbers; `lmd solve inpaint` with a mask fills pixels in")
    return colours


def _sample(colours: np.ndarray) -> np.ndarray:
    """Colours `(C, *size)`, of long axes two pieces side by side."""
    most = SAMPLE[colours.ndim - 1]
    for axis, length in enumerate(colours.shape[1:], 1):
        if length > most:
            starts = (int(share * (length - most // 2)) for share in (0.2, 0.8))
            pieces = [colours[(slice(None),) * axis + (slice(at, at + most // 2),)] for at in starts]
            colours = np.concatenate(pieces, axis=axis)
    return colours


def _as_colours(x: Tensor, picture: Picture, units: Units) -> np.ndarray:
    """An answer `(C, *size)` in the numbers of the picture; x is used up."""
    if picture.most > 1:
        return x.mul_(picture.most).round_().clamp_(0, picture.most).numpy()
    return x.double().mul_(units.unit).add_(units.centre).numpy()


def _in_units(summary: Summary, unit: float) -> Summary:
    """The same with values in multiples of `unit`."""
    names = ("value_before", "value_after", "lower_bound")
    return replace(summary, **{name: getattr(summary, name) * unit for name in names})


def _dtype(solver: Solver[Any]) -> torch.dtype:
    return next((p.dtype for p in solver.parameters() if p.dtype.is_floating_point), torch.float32)


def _find(task: str, name: str) -> tuple[Solver[Any], int, bool]:
    """The solver of that name, how many channels it takes, and whether it proves how good its answers are."""
    if name in CLASSICAL or name in zoo.names() or not _is_name(name):
        solver = find(name)
        if (found := _try_out(task, solver)) is not None:
            return solver, *found
        if not _is_name(name):
            raise InputError("solver", f"{name}, which does not {task} images", "the folder of a solver that does")
    able = [known for known in (*CLASSICAL, *zoo.names()) if _is_able(task, known)]
    check_choice("solver", name, tuple(able))
    raise AssertionError("a name that is none of its own choices")


def _is_name(name: str) -> bool:
    return "/" not in name and not Path(name).is_dir()


def _is_able(task: str, name: str) -> bool:
    return (name in CLASSICAL or name in zoo.names()) and _try_out(task, find(name)) is not None


def _try_out(task: str, solver: Solver[Any]) -> tuple[int, bool] | None:
    """How many channels a solver takes and whether it keeps a dual point, from one step on a small image.

    None where it is not for images, or not for this task.
    """
    for channels in (1, 3):
        numbers = torch.linspace(0, 1, 256 * channels, dtype=_dtype(solver), device="cpu")
        images = numbers.reshape(1, channels, 16, 16)
        problem = picture_task(task).problem(images, None, DEFAULT_WEIGHT, False)
        try:
            result = run(solver, problem, images, 1)
        except LmdError:
            continue
        return channels, result.dual is not None
    return None
