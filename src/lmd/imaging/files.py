"""Picture files: `lmd solve` reads them, calls the functions for arrays, and writes and summarises the answers."""

from __future__ import annotations

import glob
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmd import zoo
from lmd.core.checks import check_choice, check_count, check_positive
from lmd.core.files import writable_folder
from lmd.core.memory import check_memory
from lmd.errors import CapabilityError, FileError, InputError, LmdError
from lmd.imaging.arrays import Axes, as_batch
from lmd.imaging.functions import AUTO, Info, deblur, denoise, inpaint
from lmd.imaging.image_files import (
    FORMATS,
    check_mask_size,
    check_out,
    losses,
    read_header,
    read_mask,
    read_picture,
    write_picture,
)
from lmd.imaging.models import Choice, DenoisingModel
from lmd.imaging.picture import Header, Picture, spoken
from lmd.operators import gaussian_kernel, motion_kernel
from lmd.solvers import Status
from lmd.solvers.base import Solver
from lmd.zoo.defaults import CLASSICAL, find, name_for

MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6  # smaller weights change no pixel, larger ones leave one colour, in float32
MIN_TOLERANCE = 1.2e-7  # the precision of float32
DEFAULT_TOLERANCE, DEFAULT_ITERATIONS = 1e-3, 2000  # where neither is given nor part of the solver
NUM_PLANES = {"denoise": 20, "inpaint": 45, "deblur": 60}  # float32 numbers for each pixel of a channel, as measured
NUM_PLANES_OF_MODELS = 50  # the same for denoising with other misfits and orders; all are doubled for volumes
MAX_TOGETHER = 1 << 22  # channels of more numbers are solved one after the other, unless coupled: it saves memory
SAMPLE = {2: 512, 3: 96}  # pixels along each axis of the sample on which a weight for such channels is chosen
MAX_KERNEL = 1000  # pixels; the largest width or length of a kernel that is named
KERNELS = "gaussian:WIDTH, motion:LENGTH, motion:LENGTH:DEGREES, or a file: an image of the kernel, or .npy"


class PictureTask(NamedTuple):
    """A task of `lmd solve`: the function for arrays, a word while it runs, help, and the name of a second argument."""

    function: Callable[..., Any]
    doing: str
    about: str
    extra: str = ""


TASKS: Mapping[str, PictureTask] = {
    "denoise": PictureTask(
        denoise,
        "denoising",
        "Remove the noise from the picture IN and write it to OUT.\n\n\b\nMinimises ||x - y||^2 + weight TV(x), y the "
        "picture with colours from 0 to 1, or what the options make of it.",
    ),
    "inpaint": PictureTask(
        inpaint,
        "inpainting",
        "Fill in the lost pixels of the picture IN and write it to OUT.\n\n\b\nMinimises ||Z(x - y)||^2 + weight "
        "TV(x), y the picture with colours from 0 to 1, Z the mask. Pixels are kept where\nthe mask is white (lighter "
        "than half) and lost where it is black.",
        "mask",
    ),
    "deblur": PictureTask(
        deblur,
        "deblurring",
        "Take the blur off the picture IN and write it to OUT.\n\n\b\nMinimises ||k * x - y||^2 + weight TV(x), y the "
        "picture with colours from 0 to 1, which x keeps to, k the kernel.",
        "kernel",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The `Info` of a picture in numbers, all channels together, and the facts of the picture.

    `value_before` and `value_after` are F of the picture and of the answer, with colours from 0 to 1; `lower_bound` is
    one on its minimum, proven by the `theorem`; `grey_levels` is that of `Info`. `seconds` are those of choosing the
    weight and solving, without reading and writing files.
    """

    task: str
    solver: str
    model: DenoisingModel
    size: tuple[int, ...]
    mode: str
    bits: int
    weight: float
    value_before: float
    value_after: float
    lower_bound: float
    theorem: str
    grey_levels: float
    iterations: int
    seconds: float
    choice: Choice | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def bound(self) -> float:
        """A bound on the value above the minimum."""
        return max(0.0, self.value_after - self.lower_bound)

    @property
    def relative_bound(self) -> float:
        """The same relative to the minimum; infinite where the minimum may be zero."""
        return self.bound / self.lower_bound if self.lower_bound > 0 else math.inf

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
        if math.isfinite(self.grey_levels):
            said += f", {self.grey_levels:.2g} of 255 grey levels from the minimiser (root mean square)"
        return f"{said}, by {self.theorem}"

    def __str__(self) -> str:
        weight, seconds = f"weight {self.weight:.3g}", f"{self.seconds:.3g}"
        if self.choice is not None:
            noise = float(self.choice.noise)
            weight += f" (automatic, for noise of {f'{100 * noise:.2g}%' if noise < 1 else f'{noise:.2g}'})"
            seconds += f", {self.choice.seconds:.3g} of them to choose the weight"
        rows = [
            ("value", f"{self.value_before:.6g} before, {self.value_after:.6g} after"),
            ("problem", f"TV {TASKS[self.task].doing}, {self.model}, {weight}"),
            ("iterations", f"{self.iterations} of {self.solver}"),
            ("seconds", seconds),
            ("certificate", self.proven),
            *[("note", note) for note in self.notes],
        ]
        return "\n".join([f"  {name:12s} {said}" for name, said in rows])

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs. JSON has no infinity: null stands for it."""
        names = ("mode", "bits", "task", "solver", "weight", "value_before", "value_after", "iterations", "seconds")
        data: dict[str, Any] = dict(zip(("width", "height", "depth"), reversed(self.size), strict=False))
        data.update({name: getattr(self, name) for name in names})
        data.update({name: getattr(self.model, name) for name in ("data", "order", "isotropic", "coupled", "huber")})
        if self.choice is not None:
            path, risk = self.choice.path.flatten().tolist(), self.choice.risk.flatten().tolist()
            noise = float(self.choice.noise)
            data["automatic"] = {"noise": noise, "weights": path, "risks": risk, "seconds": self.choice.seconds}
        bounds = {name: getattr(self, name) for name in ("bound", "relative_bound", "lower_bound")}
        finite = {name: number if math.isfinite(number) else None for name, number in bounds.items()}
        return {**data, "certificate": {**finite, "theorem": self.theorem}, "notes": list(self.notes)}


class PictureSolver:
    """A task, a solver and its settings, for pictures of any size and kind.

    The solver stops after `iterations` or at a relative gap of `tolerance`, whichever comes first; with neither given,
    after as many iterations as it was trained for or, if there is no such number, at a gap of 1e-3. Colours are coupled
    where lmd chooses the solver. A solver that takes three channels has all three, and three copies of a grey picture;
    one that takes one channel has one after the other.

    Args:
        task: "denoise", "inpaint" or "deblur".
        solver: A name (`fgp`, `pdhg`, one of the zoo), a folder, or None for the one that lmd chooses.
        iterations: The largest number of iterations.
        weight: A positive number, or "auto".
        tolerance: The relative gap to stop at, proven.
        isotropic: Whether to sum lengths of gradients instead of absolute differences.
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
        self.task, self.name, self.weight = check_choice("task", task, tuple(TASKS)), solver, _check_weight(weight)
        coupled = form.pop("coupled", None)
        self.model = DenoisingModel(isotropic=bool(isotropic), coupled=bool(coupled), **form)
        self.options: dict[str, Any] = {"isotropic": bool(isotropic)}
        is_plain = self.model == DenoisingModel(isotropic=bool(isotropic))
        if task == "denoise":
            self.options.update(form, coupled=coupled if solver is None else bool(coupled))
        elif not is_plain:
            names = ", ".join([*form, *(["coupled"] if coupled else [])])
            raise InputError(names, f"given with {task}", "none of them, which are for denoise")
        self.is_to_tolerance = tolerance is not None or iterations is None
        self.iterations = None if iterations is None else check_count("iterations", iterations)
        self.tolerance = None if tolerance is None else check_positive("tolerance", tolerance)
        if tolerance is not None and tolerance < MIN_TOLERANCE:
            raise InputError("tolerance", repr(tolerance), f"{MIN_TOLERANCE:.1g} or more, the precision of its numbers")
        self.solver: Solver[Any] | None = None
        self.channels, proves = 0, True
        if solver is not None:
            self.solver, self.channels, proves = _find_solver(task, solver)
            if not is_plain:
                self._check_model()
        if tolerance is not None and not proves:
            given = f"{solver}, which does not know how near to the minimum it is"
            raise InputError("solver", given, "one that does, such as fgp or pdhg, or no tolerance")
        is_endless = self.solver is None or (iterations is None and self.solver.horizon is None)
        if proves and tolerance is None and is_endless:
            self.tolerance, self.iterations = DEFAULT_TOLERANCE, iterations or DEFAULT_ITERATIONS

    def _check_model(self) -> None:
        """Raise if the solver that was named is not for the model that was named."""
        options = {**self.options, "tolerance": None, "solver": self.solver, "iterations": 1}
        try:
            denoise(_test_images(self.channels), 0.3, **options)
        except CapabilityError:
            given = f"{self.name} for {self.model}"
            raise InputError("solver", given, "one for such models, such as pdhg, or none") from None

    def check(self, name: str, header: Header) -> None:
        """Raise if the task is not for such pictures, or solving takes more memory than there is."""
        is_volume, pixels = len(header.size) > 2, math.prod(header.size)
        if self.task == "deblur" and is_volume:
            raise InputError("image", f"{name}, a volume", f"an image to {self.task}")
        has_usual_model = (self.model.data, self.model.order) == ("squares", 1)
        planes = NUM_PLANES[self.task] if has_usual_model else NUM_PLANES_OF_MODELS
        planes *= self._num_together(min(3, header.channels), pixels) * (2 if is_volume else 1)
        check_memory("image", f"{name} of {header}", 4 * planes * pixels + 2 * header.bytes)

    def _num_together(self, channels: int, pixels: int) -> int:
        """Return the number of channels that are solved together."""
        if self.channels:
            return min(self.channels, channels)
        is_coupled = channels == 3 and self.options.get("coupled", False) is not False
        return channels if is_coupled or channels * pixels <= MAX_TOGETHER else 1

    def solve(
        self, picture: Picture, extra: Any = None, advance: Callable[[float], None] = lambda share: None
    ) -> tuple[Picture, Summary]:
        """Return the picture with its colours solved for and all else as it was, and a summary.

        `extra` is the second argument of the task: a mask `(*size)` or a kernel `(h, w)`. `advance` is called with the
        share of the work that was done.
        """
        colours, weight, choice = picture.colours, self.weight, None
        together = self._num_together(len(colours), colours[0].size)
        if weight == AUTO and (self.solver is not None or together < len(colours)):
            info = self._choose(colours, extra)
            weight, choice = info.weight, info.choice
        answers, parts = [], []
        for place in range(0, len(colours), together):
            answer, part = self._solve_part(picture, colours[place : place + together], extra, weight)
            answers.append(answer)
            parts.append(part)
            advance(together / len(colours))
        summary = _merge(parts)
        if choice is not None:
            summary = replace(summary, seconds=summary.seconds + choice.seconds, choice=choice)
        return replace(picture, colours=np.concatenate(answers)), summary

    def _choose(self, colours: np.ndarray, extra: Any) -> Info:
        """Return the choice of a weight for all channels, on a sample of a large picture."""
        sample, mask = _sample(colours), extra
        if self.task == "inpaint" and extra is not None:
            mask = _sample(np.asarray(extra)[None])[0]
            if np.mean(mask != 0) < 0.5:  # the sample may lie in a hole
                sample, mask = colours, extra
        return self._call(sample[None], mask, AUTO, solver=None, tolerance=DEFAULT_TOLERANCE, iterations=1)[1]

    def _call(self, images: np.ndarray, extra: Any, weight: float | str, **options: Any) -> tuple[Any, Info]:
        """Call the function for arrays with images `(B, C, *size)`."""
        arguments = [images, weight] if extra is None else [images, extra, weight]
        settings = {"solver": self.solver, "tolerance": self.tolerance, "iterations": self.iterations}
        options = {**self.options, **settings, "channel_axis": Axes(0, 1), "info": True, **options}
        answer: tuple[Any, Info] = TASKS[self.task].function(*arguments, **options)
        return answer

    def _solve_part(
        self, picture: Picture, colours: np.ndarray, extra: Any, weight: float | str
    ) -> tuple[np.ndarray, Summary]:
        """Return the answer for some channels `(C, *size)` of a picture, and its summary.

        A solver of three channels gets three copies of a grey picture.
        """
        copies = max(1, self.channels // len(colours))
        images = np.broadcast_to(colours[None], (1, copies * len(colours), *picture.size))
        answer, info = self._call(images, extra, weight)
        result, proven, status = info.result, info.certificate, info.result.status[0]
        before, after, iterations = result.history.values[0], result.values, int(result.iterations.max())
        if copies > 1:  # the mean of the answers is no worse than they are
            x = info.solved.x.mean(dim=1, keepdim=True)
            answer = as_batch("image", colours[None], Axes(0, 1), x.dtype).back(x)
            with torch.no_grad():
                after = result.problem.value(result.x.mean(dim=1, keepdim=True).expand_as(result.x))
        notes = [status.message] if status.failed or status is Status.STALLED else []
        if self.is_to_tolerance and self.tolerance is not None and status is Status.FINISHED:
            notes.append(f"the tolerance of {self.tolerance:g} was not reached in {iterations} iterations")
        value, lower = float(after.sum()) / copies, float(proven.lower_bound.sum()) / copies
        curvature, levels = result.problem.strong_convexity, math.inf
        if curvature is not None:
            mean_square = 2 * max(0.0, value - lower) * copies / (float(curvature.min()) * result.x.numel())
            levels = 255 / info.range * math.sqrt(mean_square)
        coupled = self.options.get("coupled", False)
        return answer[0], Summary(
            task=self.task,
            solver=self.name or name_for(info.solved.problem, self.tolerance or DEFAULT_TOLERANCE),
            model=replace(self.model, coupled=len(colours) == 3 if coupled is None else coupled),
            size=picture.size,
            mode=picture.mode,
            bits=picture.bits,
            weight=float(info.weight),
            value_before=value if info.notes else float(before.sum()) / copies,
            value_after=value,
            lower_bound=lower,
            theorem=proven.theorem,
            grey_levels=levels,
            iterations=iterations,
            seconds=info.seconds,
            choice=info.choice,
            notes=(*notes, *info.notes),
        )


def _merge(parts: Sequence[Summary]) -> Summary:
    """Return the summary of all channels from those of equal parts of them."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        value_before=sum(part.value_before for part in parts),
        value_after=sum(part.value_after for part in parts),
        lower_bound=sum(part.lower_bound for part in parts),
        theorem=" and ".join(dict.fromkeys(part.theorem for part in parts)),
        grey_levels=math.sqrt(sum(part.grey_levels**2 for part in parts) / len(parts)),
        iterations=max(part.iterations for part in parts),
        seconds=sum(part.seconds for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _sample(colours: np.ndarray) -> np.ndarray:
    """Return two pieces side by side along each long axis of colours `(C, *size)`."""
    most = SAMPLE[colours.ndim - 1]
    for axis, length in enumerate(colours.shape[1:], 1):
        if length > most:
            starts = (int(share * (length - most // 2)) for share in (0.2, 0.8))
            pieces = [colours[(slice(None),) * axis + (slice(at, at + most // 2),)] for at in starts]
            colours = np.concatenate(pieces, axis=axis)
    return colours


def _check_weight(weight: float | str) -> float | str:
    """Return a number that single precision has a use for, or "auto"."""
    if isinstance(weight, str):
        if weight == AUTO:
            return weight
        raise InputError("weight", repr(weight), "a positive number, or auto")
    if not MIN_WEIGHT <= check_positive("weight", weight) <= MAX_WEIGHT:
        raise InputError("weight", repr(weight), f"a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")
    return float(weight)


def _find_solver(task: str, name: str) -> tuple[Solver[Any], int, bool]:
    """Return the solver of that name, the channels it takes, and whether it proves how good its answers are."""
    known = (*CLASSICAL, *zoo.names())
    is_folder = "/" in name or Path(name).is_dir()
    if name in known or is_folder:
        solver = find(name)
        if (found := _try_solver(task, solver)) is not None:
            return solver, *found
        if is_folder:
            raise InputError("solver", f"{name}, which does not {task} images", "the folder of a solver that does")
    check_choice("solver", name, tuple(each for each in known if _try_solver(task, find(each)) is not None))
    raise AssertionError("a name that is none of its own choices")


def _try_solver(task: str, solver: Solver[Any]) -> tuple[int, bool] | None:
    """Return the channels a solver takes and whether it has a dual point, from one step on a small image.

    None where it is not for images, or not for this task.
    """
    extras: dict[str, list[Any]] = {"inpaint": [np.ones((16, 16))], "deblur": [gaussian_kernel(1.5)]}
    options: Any = {"tolerance": None, "solver": solver, "iterations": 1, "info": True}
    if task == "denoise":
        options["coupled"] = False
    for channels in (1, 3):
        with suppress(LmdError):
            _, info = TASKS[task].function(_test_images(channels), *extras.get(task, []), 0.3, **options)
            return channels, info.solved.dual is not None
    return None


def _test_images(channels: int) -> Tensor:
    """Return a small image `(1, C, 16, 16)`."""
    count = 256 * max(1, channels)
    return torch.linspace(0, 1, count, dtype=torch.float32, device="cpu").reshape(1, -1, 16, 16)


class Job(NamedTuple):
    """A file to read and one to write."""

    image: Path
    out: Path


@dataclass(frozen=True)
class FileResult:
    """The summary of a file, or what went wrong with it."""

    job: Job
    summary: Summary | None = None
    error: str = ""

    def __str__(self) -> str:
        """Return a few lines for a person."""
        return self.error if self.summary is None else f"{self._facts(self.summary)}\n{self.summary}"

    @property
    def line(self) -> str:
        """One line for a person."""
        if self.summary is None:
            return self.error
        return f"{self._facts(self.summary)}, weight {self.summary.weight:.3g}, {self.summary.proven.split(', ')[0]}"

    def _facts(self, summary: Summary) -> str:
        return f"{self.job.out}: {spoken(summary.size)}, {summary.mode}, {summary.bits} bits"

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        more = {"error": self.error} if self.summary is None else self.summary.as_json()
        return {"image": str(self.job.image), "out": str(self.job.out), **more}


def solve_file(
    task: str,
    image: str | Path,
    out: str | Path,
    *,
    extra: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> FileResult:
    """Solve a task for the picture in the file `image` and write the answer to the file `out`.

    Everything that can be checked is checked before the work begins.

    Args:
        task: "denoise", "inpaint" or "deblur".
        image: The file to read.
        out: The file to write.
        extra: To inpaint, the file of a mask of the same size, of which white pixels are kept; to deblur, a kernel as
            `read_kernel` takes it.
        overwrite: Replace a file that exists.
        **settings: Those of `PictureSolver`.
    """
    return solve_one(PictureSolver(task, **settings), Job(Path(image), Path(out)), extra, overwrite)


def solve_one(
    solver: PictureSolver,
    job: Job,
    extra: str | Path | None = None,
    overwrite: bool = False,
    advance: Callable[[float], None] = lambda share: None,
    writing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> FileResult:
    """Solve a file as `solve_file` does; the answer is written in a context of `writing`."""
    wants = TASKS[solver.task].extra
    if (extra is None) == bool(wants):
        raise InputError(wants or "extra", extra, f"{'one' if wants else 'nothing'} for {solver.task}")
    header = read_header(job.image)
    mask = _mask_of(extra, job.image) if extra is not None and wants == "mask" else None
    path = check_out(job.out, header, job.image, *([] if mask is None else [mask]), overwrite=overwrite)
    if mask is not None:
        check_mask_size(mask, header.size)
    beside = read_kernel(str(extra)) if wants == "kernel" else None
    solver.check(str(job.image), header)
    before = read_picture(job.image)
    after, summary = solver.solve(before, beside if mask is None else read_mask(mask, before.size), advance)
    with writing():
        write_picture(path, after)
    return FileResult(job, replace(summary, notes=(*summary.notes, *losses(path, after))))


def solve_many(
    solver: PictureSolver,
    jobs: Sequence[Job],
    extra: str | Path | None = None,
    overwrite: bool = False,
    workers: int | None = None,
) -> Iterator[FileResult]:
    """Yield the result of each file when it is done.

    Where one fails the others go on. With one worker a file has all threads, with more they share them. When it is
    interrupted or closed, it waits for no file that is not being written: none is begun, and none half-written.

    Args:
        solver: What solves each of them.
        jobs: The files.
        extra: As in `solve_file`, or a folder of masks with the names of the pictures.
        overwrite: Replace files that exist.
        workers: The number of files processed in parallel; None is the number of threads.
    """
    threads = torch.get_num_threads()
    count = min(len(jobs), threads if workers is None else check_count("workers", workers))
    permits, is_closed = threading.Semaphore(count), threading.Event()

    @contextmanager
    def writing() -> Iterator[None]:
        with permits:
            if is_closed.is_set():
                raise LmdError("interrupted")
            yield

    def one(job: Job) -> FileResult:
        try:
            return solve_one(solver, job, extra, overwrite, writing=writing)
        except (LmdError, OSError, MemoryError) as error:
            return FileResult(job, error=f"{job.image}: {error}")
        except Exception as error:  # an unforeseen error in one picture is no reason to lose the others
            said = " ".join(str(error).split())
            return FileResult(job, error=f"{job.image}: {type(error).__name__}, {said:.120}")

    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(max(1, threads // count),))
    try:
        for future in as_completed([pool.submit(one, job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        is_closed.set()
        for _ in range(count):  # whoever is writing ends
            permits.acquire()
        permits.release(count)


def find_jobs(images: Sequence[str], out: str, overwrite: bool = False) -> list[Job]:
    """Return the files to read and to write: a file to a file or into an existing folder, else all into `out`, by name.

    `images` are files, folders, of which all pictures are taken, those in subfolders too, and patterns such as `*.png`.
    No file may be written twice or, unless `overwrite`, exist.
    """
    first = images[0]
    single = len(images) == 1 and not os.path.isdir(first) and (os.path.exists(first) or not glob.has_magic(first))
    if single and not os.path.isdir(out):  # which, unlike Path's, are false of a name that no file can have
        return [Job(Path(first), Path(out))]
    found = (Job(image, Path(out) / name) for text in images for image, name in _pictures(text, Path(out)))
    jobs = list(dict.fromkeys(found))
    named: dict[Path, Path] = {}
    for image, path in jobs:
        if named.setdefault(path, image) != image:
            raise FileError("image", f"{named[path]} and {image}, both for {path}", "pictures of different names")
    if any(os.path.realpath(image) == os.path.realpath(path) for image, path in jobs):
        raise FileError("out", f"{out}, where the pictures are", "another folder, as inputs are never overwritten")
    there = [job.out for job in jobs if job.out.exists()]
    if there and not overwrite:
        given = f"{there[0]}{f' and {len(there) - 1} more' if there[1:] else ''}, which exist already"
        raise FileError("out", given, "another folder, or --overwrite")
    for folder in {job.out.parent for job in jobs}:
        writable_folder("out", folder)
    return jobs


def _pictures(text: str, out: Path) -> list[tuple[Path, Path]]:
    """Return the files of an argument of the command line, and their names in `out`."""
    path = Path(text)
    if os.path.isdir(text):
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in FORMATS and file.is_file())
        if not files:
            raise FileError("image", f"{text}, a folder with no pictures in it", f"{', '.join(FORMATS)} in it")
        within = out.resolve() != path.resolve() and out.resolve().is_relative_to(path.resolve())
        mine = [file for file in files if not within or not file.resolve().is_relative_to(out.resolve())]
        return [(file, file.relative_to(path)) for file in mine]
    if os.path.exists(text) or not glob.has_magic(text):
        return [(path, Path(path.name))]
    found = sorted(Path(name) for name in glob.glob(text, recursive=True) if Path(name).is_file())
    if not found:
        raise FileError("image", f"{text}, which matches no file", "files, folders, or a pattern such as '*.png'")
    return [(file, Path(file.name)) for file in found]


def _mask_of(mask: str | Path, image: Path) -> Path:
    """Return the mask of a picture: the file itself or, in a folder, the one of the same name but for its ending."""
    mask = Path(mask)
    if not os.path.isdir(mask):
        return mask
    found = sorted(file for file in mask.iterdir() if file.stem == image.stem and file.suffix.lower() in FORMATS)
    if len(found) != 1:
        raise FileError("mask", f"{mask}, with {len(found)} files for {image.name}", "one of the same name for each")
    return found[0]


def read_kernel(text: str) -> Tensor:
    """Return the kernel of a blur `(h, w)`, of sum 1: `gaussian:1.5`, `motion:9`, `motion:9:45`, or a file.

    >>> read_kernel("motion:9:90").shape
    torch.Size([11, 11])
    """
    kind, *numbers = text.split(":")
    if kind in ("gaussian", "motion") and not os.path.exists(text):
        try:
            first, *rest = [float(number) for number in numbers]
            if first > MAX_KERNEL:
                raise InputError("kernel", text, f"a width or length of at most {MAX_KERNEL} pixels")
            if kind == "gaussian" and not rest:
                return gaussian_kernel(first)
            if kind == "motion" and len(rest) < 2:
                return motion_kernel(first, math.radians(rest[0] if rest else 0.0))
        except ValueError as error:  # InputError too
            if isinstance(error, InputError) and error.argument == "kernel":
                raise
            raise InputError("kernel", text, KERNELS) from error
        raise InputError("kernel", text, KERNELS)
    picture = read_picture(text, "kernel")
    if len(picture.colours) > 1 or len(picture.size) > 2:
        raise FileError("kernel", f"{text}, in colour or a volume", "a grey image of the kernel, or an array (h, w)")
    taps = torch.from_numpy(picture.colours[0].astype("float64"))
    total = float(taps.sum())
    if not math.isfinite(total) or total <= 0:
        raise FileError("kernel", f"{text}, of sum {total:g}", "a kernel of a positive sum")
    return taps / total
