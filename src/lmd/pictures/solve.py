"""Picture files through a solver: what `lmd solve` does, for every task that takes pictures, of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd import tasks, zoo
from lmd.checks import check_choice, check_count, check_positive
from lmd.data.image_files import (
    Header,
    Picture,
    check_mask_size,
    check_out,
    losses,
    read_header,
    read_mask,
    read_picture,
    write_picture,
)
from lmd.data.memory import check_memory
from lmd.data.progress import LateBar
from lmd.errors import InputError, LmdError
from lmd.guarantees import certify, run
from lmd.solvers import Certificate, Result, Status
from lmd.solvers.base import Solver
from lmd.tasks import PictureTask
from lmd.tasks.unrolled import WEIGHT
from lmd.zoo.defaults import CLASSICAL, chosen_name, find
from lmd.zoo.solve import solve

WEIGHTS = (1e-6, 1e6)
"""What is less changes no pixel, what is more leaves one colour; and single precision holds what comes of them."""

TOLERANCE = 3e-3
"""How near to the minimum a solver goes that has no number of iterations of its own, relative to the minimum."""

MOST_ITERATIONS = 2000
"""Where such a solver ends if it has not got there."""

ENDLESS = 100_000
"""Where one ends that is given a tolerance and no number of iterations."""

PLANES = 32
"""How many numbers there are for each pixel of the channels that are solved together, at most, while a solver runs."""


@dataclass(frozen=True)
class Proof:
    """What is proven about an answer: the minimum is at least `lower_bound`."""

    value: float
    lower_bound: float
    theorem: str

    pixels: int
    """How many numbers the image has."""

    curvature: float | None
    """The strong convexity of the problem, where there is one."""

    @property
    def bound(self) -> float:
        """What the value exceeds the minimum by, at most."""
        return max(0.0, self.value - self.lower_bound)

    @property
    def relative_bound(self) -> float:
        """The same relative to the minimum; infinite where the minimum may be zero."""
        return self.bound / self.lower_bound if self.lower_bound > 0 else math.inf

    @property
    def distance(self) -> float:
        """A bound on the root mean square of x - x*, as f(x) - f(x*) >= mu/2 ||x - x*||^2; infinite without mu."""
        return math.sqrt(2 * self.bound / (self.curvature * self.pixels)) if self.curvature else math.inf

    def __str__(self) -> str:
        if not math.isfinite(self.bound) or self.bound > self.value > 0:  # no value is below 0 anyway
            return "nothing of use is proven by this run; fgp and pdhg prove how good their answer is"
        if math.isfinite(self.relative_bound):
            percent = 100 * self.relative_bound
            said = f"within {f'{percent:.0f}' if percent >= 10 else f'{percent:.2g}'}% of the minimum"
        else:
            said = f"at most {self.bound:.2g} above the minimum"
        if math.isfinite(self.distance):
            said += f", {255 * self.distance:.2g} of 255 grey levels from the minimiser (root mean square)"
        return f"{said}, by {self.theorem}"

    def as_json(self) -> dict[str, Any]:
        """For JSON, which has no infinity: null stands for it."""
        numbers = {"bound": self.bound, "relative_bound": self.relative_bound, "lower_bound": self.lower_bound}
        finite = {name: number if math.isfinite(number) else None for name, number in numbers.items()}
        return {**finite, "theorem": self.theorem}


@dataclass(frozen=True)
class Summary:
    """What became of a picture."""

    task: str
    solver: str
    weight: float
    isotropic: bool
    value_before: float
    """f of the picture as it was, all channels together, with colours from 0 to 1."""

    value_after: float
    iterations: int
    """Of the channel that took most."""

    seconds: float
    """Of the solver, without reading and writing files."""

    proof: Proof
    notes: tuple[str, ...] = ()
    """What else there is to know, such as a solver that diverged."""

    def text(self) -> str:
        """A few lines for a person."""
        kind = "isotropic" if self.isotropic else "anisotropic"
        rows = {
            "value": f"{self.value_before:.6g} before, {self.value_after:.6g} after",
            "problem": f"TV {picture_task(self.task).doing}, {kind}, weight {self.weight:g}",
            "iterations": f"{self.iterations} of {self.solver}",
            "seconds": f"{self.seconds:.3g}",
            "certificate": str(self.proof),
        }
        lines = [f"  {name:12s} {said}" for name, said in rows.items()]
        return "\n".join(lines + [f"  note         {note}" for note in self.notes])

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        names = ("task", "solver", "weight", "isotropic", "value_before", "value_after", "iterations", "seconds")
        told = {name: getattr(self, name) for name in names}
        return {**told, "certificate": self.proof.as_json(), "notes": list(self.notes)}


def solve_file(
    task: str,
    image: str | Path,
    out: str | Path,
    *,
    mask: str | Path | None = None,
    solver: str | None = None,
    iterations: int | None = None,
    weight: float = WEIGHT,
    tolerance: float | None = None,
    isotropic: bool = False,
) -> tuple[Picture, Summary]:
    """Do the `task`, such as denoise, with the picture in the file `image` and write it to the file `out`.

    `mask`, for a task that has one, is a file of the same size: white pixels are kept, black ones are lost. The rest
    is what `PictureSolver` takes. Everything that can be checked is checked before the work begins.
    """
    masked = picture_task(task).masked
    if (mask is None) == masked:
        raise InputError("mask", mask, f"{'a file' if masked else 'nothing'} for {task}")
    header = read_header(image)
    path = check_out(out, header, image, *([] if mask is None else [mask]))
    if mask is not None:
        check_mask_size(mask, (header.height, header.width))
    chosen = PictureSolver(task, solver, iterations, weight, tolerance, isotropic)
    chosen.check_memory(str(image), header)
    before = read_picture(image)
    after, summary = chosen.solve(before, None if mask is None else read_mask(mask, before.size))
    write_picture(path, after)
    return after, replace(summary, notes=(*summary.notes, *losses(path, after)))


class PictureSolver:
    """A solver and its settings, for pictures of any size and kind.

    `solver` is a name (`fgp`, `pdhg`, one of the zoo), a folder, or None for the best there is. It stops after
    `iterations` or at a relative gap of `tolerance`, whichever comes first; with neither given, after as many
    iterations as it was trained for or, if there is no such number, at a gap of 3e-3.

    TV does not mix channels, so a solver that takes one channel has them one after the other, which saves memory. One
    that takes three has all three, and of a grey picture three copies.
    """

    def __init__(
        self,
        task: str,
        solver: str | None = None,
        iterations: int | None = None,
        weight: float = WEIGHT,
        tolerance: float | None = None,
        isotropic: bool = False,
    ) -> None:
        self.task, self.model = task, picture_task(task)
        self.weight, self.isotropic = check_positive("weight", weight), bool(isotropic)
        if not WEIGHTS[0] <= self.weight <= WEIGHTS[1]:
            raise InputError("weight", repr(weight), f"a number from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
        self.iterations = None if iterations is None else check_count("iterations", iterations)
        self.tolerance = None if tolerance is None else check_positive("tolerance", tolerance)
        self.name = self._default() if solver is None else _current(solver)
        self.solver, self.channels, proves = _find(task, self.name)
        least = torch.finfo(_dtype(self.solver)).eps
        if tolerance is not None and tolerance < least:
            raise InputError("tolerance", repr(tolerance), f"{least:.1g} or more, as the solver's numbers tell no less")
        if tolerance is not None and not proves:
            given = f"{self.name}, which does not know how near to the minimum it is"
            raise InputError("solver", given, "one that does, such as fgp or pdhg, or no tolerance")
        if proves and iterations is None and tolerance is None and self.solver.horizon is None:
            self.iterations, self.tolerance = MOST_ITERATIONS, TOLERANCE

    def check_memory(self, name: str, header: Header) -> None:
        """Raise if solving takes more memory than there is."""
        pixels = header.height * header.width
        need = 4 * PLANES * self.channels * pixels + 2 * pixels * header.channels * header.bits // 8
        check_memory("image", f"{name} of {header.width} x {header.height} pixels", need)

    def solve(self, picture: Picture, kept: np.ndarray | None = None) -> tuple[Picture, Summary]:
        """The picture with its colours solved for and all else as it was; `kept` `(H, W)` is the mask."""
        mask = None if kept is None else torch.from_numpy(kept)
        colours, accounts = np.empty_like(picture.colours), []
        parts = [slice(i, i + self.channels) for i in range(0, len(colours), self.channels)]
        with LateBar(self.model.doing, total=len(parts)) as bar:
            for part in parts:
                images = torch.tensor(picture.colours[part], dtype=_dtype(self.solver)).div_(picture.most)[None]
                x, account = self._solve_part(images, mask)
                colours[part] = x.mul_(picture.most).round_().clamp_(0, picture.most).numpy()
                accounts.append(account)
                bar.update(1)
        return replace(picture, colours=colours), self._summary(accounts, colours.size)

    def _default(self) -> str:
        """The name of the best solver there is: what the task has for pictures, or for a tolerance."""
        if self.tolerance is None:
            return self.model.solver if zoo.shipped(self.model.solver) else "pdhg"
        parts = self._problem(torch.zeros(1, 1, 2, 2, dtype=torch.float32), None).parts
        return chosen_name(parts, self.tolerance) or "pdhg"

    def _problem(self, images: Tensor, mask: Tensor | None) -> Any:
        return self.model.problem(images, mask, self.weight, self.isotropic)

    def _solve_part(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, _Account]:
        """The answer `(C, H, W)` for images `(1, C, H, W)` of the channels the solver takes, or of one, if grey."""
        problem = self._problem(images.expand(1, self.channels, -1, -1), mask)
        if self.tolerance is None:
            result = run(self.solver, problem, iterations=self.iterations, record=False)
        else:
            most = ENDLESS if self.iterations is None else self.iterations
            result = solve(problem, self.tolerance, solver=self.solver, iterations=most)
        account = _Account.of(result)
        if images.shape[1] == self.channels:
            return result.x[0], account
        # Copies of one channel have the sum of its values, and the mean of their answers is no worse than they are.
        x = result.x.mean(dim=1, keepdim=True)
        value = float(self._problem(images, mask).value(x))
        return x[0], replace(
            account,
            before=account.before / self.channels,
            after=value,
            lower_bound=account.lower_bound / self.channels,
        )

    def _summary(self, accounts: list[_Account], numbers: int) -> Summary:
        after, lower = sum(a.after for a in accounts), sum(a.lower_bound for a in accounts)
        statuses = dict.fromkeys(a.status for a in accounts)
        notes = [status.message for status in statuses if status.failed or status is Status.STALLED]
        if self.tolerance is not None and Status.FINISHED in statuses:
            most = max(a.iterations for a in accounts)
            notes.append(f"the tolerance of {self.tolerance:g} was not reached in {most} iterations")
        theorem = " and ".join(dict.fromkeys(a.theorem for a in accounts))
        return Summary(
            self.task,
            self.name,
            self.weight,
            self.isotropic,
            sum(a.before for a in accounts),
            after,
            max(a.iterations for a in accounts),
            sum(a.seconds for a in accounts),
            Proof(after, lower, theorem, numbers, accounts[0].curvature),
            tuple(notes),
        )


@dataclass(frozen=True)
class _Account:
    """What is to be remembered of a run when its tensors are gone."""

    before: float
    after: float
    lower_bound: float
    theorem: str
    iterations: int
    seconds: float
    status: Status
    curvature: float | None

    @classmethod
    def of(cls, result: Result) -> _Account:
        proven: Certificate = certify(result)
        curvature = result.problem.strong_convexity
        return cls(
            float(result.history.values[0]),
            float(result.values),
            float(proven.lower_bound),
            proven.theorem,
            int(result.iterations),
            result.seconds,
            result.status[0],
            None if curvature is None else float(curvature),
        )


def picture_task(name: str) -> PictureTask:
    """What is known of the task of that name, one that takes pictures."""
    able = {task.name: task.picture for task in tasks.every() if task.picture is not None}
    return able[check_choice("task", name, tuple(able))]


def _dtype(solver: Solver[Any]) -> torch.dtype:
    return next((p.dtype for p in solver.parameters() if p.dtype.is_floating_point), torch.float32)


def _find(task: str, name: str) -> tuple[Solver[Any], int, bool]:
    """The solver of that name, how many channels it takes, and whether it proves how good its answers are."""
    if name in CLASSICAL or zoo.shipped(name) or not _is_name(name):
        solver = find(name)
        if (found := _try_out(task, solver)) is not None:
            return solver, *found
        if not _is_name(name):
            raise InputError("solver", f"{name}, which does not {task} images", "the folder of a solver that does")
    able = [known for known in (*CLASSICAL, *zoo.names()) if _is_able(task, known)]
    check_choice("solver", name, tuple(able))
    raise AssertionError("a name that is none of its own choices")


def _current(name: str) -> str:
    return zoo.current_name(name) if _is_name(name) else name


def _is_name(name: str) -> bool:
    return "/" not in name and not Path(name).is_dir()


def _is_able(task: str, name: str) -> bool:
    return (name in CLASSICAL or zoo.shipped(name)) and _try_out(task, find(name)) is not None


def _try_out(task: str, solver: Solver[Any]) -> tuple[int, bool] | None:
    """How many channels a solver takes and whether it keeps a dual point, from one step on a small image.

    None where it is not for images, or not for this task.
    """
    for channels in (1, 3):
        images = torch.linspace(0, 1, 256 * channels, dtype=_dtype(solver)).reshape(1, channels, 16, 16)
        problem = picture_task(task).problem(images, None, WEIGHT, False)
        try:
            result = run(solver, problem, images, 1)
        except LmdError:
            continue
        return channels, result.dual is not None
    return None
