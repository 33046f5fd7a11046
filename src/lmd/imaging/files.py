"""Solve tasks for picture files, for `lmd solve`: read, call the functions for arrays, write and summarise."""

from __future__ import annotations

import glob
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd import zoo
from lmd.core.checks import check_choice, check_count, check_memory
from lmd.core.extras import require
from lmd.core.files import atomic_path, writable_folder
from lmd.errors import FileError, InputError, LmdError
from lmd.imaging.arrays import Axes
from lmd.imaging.functions import AUTO, Info, deblur, denoise, inpaint
from lmd.imaging.image_files import (
    FORMATS,
    Header,
    Picture,
    check_mask_size,
    check_out,
    losses,
    open_picture,
    read_mask,
    read_picture,
    spoken,
    write_picture,
)
from lmd.imaging.models import Choice, DenoisingModel
from lmd.operators import gaussian_kernel, motion_kernel
from lmd.solvers import Status
from lmd.tv.plans import METHOD
from lmd.zoo.solve import CLASSICAL, find

DEFAULT_TOLERANCE = 1e-3  # for solvers that were not trained for a fixed number of iterations
NUM_PLANES = {"denoise": 20, "inpaint": 45, "deblur": 60}  # measured memory: float32 numbers per pixel and channel
NUM_PLANES_OF_MODELS = 50  # memory for denoising with other misfits and orders; volumes need twice as much
MAX_KERNEL = 1000  # pixels; the largest width or length in `gaussian:WIDTH` and `motion:LENGTH`
KERNELS = (
    f"gaussian:WIDTH, motion:LENGTH or motion:LENGTH:DEGREES of at most {MAX_KERNEL} pixels, or a file: an image of "
    "the kernel, or .npy"
)


class PictureTask(NamedTuple):
    """A task of `lmd solve`: the function for arrays, the label of the progress bar, the name of a second argument."""

    function: Callable[..., Any]
    doing: str
    extra: str = ""


TASKS: Mapping[str, PictureTask] = {
    "denoise": PictureTask(denoise, "denoising"),
    "inpaint": PictureTask(inpaint, "inpainting", "mask"),
    "deblur": PictureTask(deblur, "deblurring", "kernel"),
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The size and format of a picture, and the numbers of its `Info`.

    `value_before` and `value_after` are F at the picture and at the answer, with colours from 0 to 1. `lower_bound` is
    a lower bound on min F, proven by the `theorem`. For `grey_levels` see `Info`. `seconds` is the time of choosing
    the weight and solving, without reading and writing files.
    """

    size: tuple[int, ...]
    mode: str
    bits: int
    task: str
    solver: str
    weight: float
    value_before: float
    value_after: float
    iterations: int
    seconds: float
    model: DenoisingModel
    bound: float
    relative_bound: float
    lower_bound: float
    grey_levels: float
    theorem: str
    proven: str
    choice: Choice | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> str:
        """Size, channels and depth of the picture."""
        return f"{spoken(self.size)}, {self.mode}, {self.bits} bits"

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
            ("certificate", f"{self.proven}, by {self.theorem}"),
            *[("note", note) for note in self.notes],
        ]
        return "\n".join([f"  {name:12s} {said}" for name, said in rows])

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values, with None for infinity."""
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
    """A task and its settings, for pictures of any size and kind.

    A named solver that was trained for a fixed number of iterations runs for that number. All others stop at a proven
    relative gap of 1e-3. Colours are coupled if lmd chooses the solver.

    Args:
        task: "denoise", "inpaint" or "deblur".
        solver: A name (`fgp`, `pdhg`, a solver of the zoo) or a folder; None lets lmd choose the solver.
        weight: A positive number, or "auto".
        tolerance: The proven relative gap to stop at.
        **options: Other options of the function for arrays, such as `iterations` and `isotropic`.
    """

    def __init__(
        self,
        task: str,
        solver: str | None = None,
        weight: float | str = AUTO,
        tolerance: float | None = None,
        **options: Any,
    ) -> None:
        self.task, self.name, self.weight = check_choice("task", task, tuple(TASKS)), solver, weight
        if solver is not None and "/" not in solver and not Path(solver).is_dir():
            check_choice("solver", solver, (*CLASSICAL, *zoo.names()))
        self.solver = None if solver is None else find(solver)
        self.is_to_tolerance = tolerance is not None or options.get("iterations") is None
        if tolerance is None and (self.solver is None or self.solver.horizon is None):
            tolerance = DEFAULT_TOLERANCE
        self.tolerance, self.options = tolerance, options
        if task == "denoise" and solver is not None:
            options.setdefault("coupled", False)

    def check(self, name: str, header: Header) -> None:
        """Raise if the task does not accept such pictures, or if solving takes more memory than is free."""
        is_volume, pixels = len(header.size) > 2, math.prod(header.size)
        if self.task == "deblur" and is_volume:
            raise InputError("image", f"{name}, a volume", f"an image to {self.task}")
        is_usual = (self.options.get("data", "squares"), self.options.get("order", 1)) == ("squares", 1)
        planes = (NUM_PLANES[self.task] if is_usual else NUM_PLANES_OF_MODELS) * (2 if is_volume else 1)
        planes *= min(3, header.channels)
        check_memory("image", f"{name} of {spoken(header.size)}", 4 * planes * pixels + 2 * header.bytes)

    def solve(self, picture: Picture, extra: Any = None) -> tuple[Picture, Summary]:
        """Return the picture with its colours replaced by the answer, and a summary.

        `extra` is the second argument of the task: a mask `(*size)` or a kernel `(h, w)`.
        """
        arguments = [picture.colours[None], *([] if extra is None else [extra]), self.weight]
        settings: dict[str, Any] = {"solver": self.solver, "tolerance": self.tolerance, **self.options}
        try:
            answer, info = TASKS[self.task].function(*arguments, channel_axis=Axes(0, 1), info=True, **settings)
        except InputError as error:
            if self.solver is None or error.argument not in ("problem", "solver", "x0"):
                raise
            given = f"{self.name} to {self.task} ({error})"
            raise InputError("solver", given, "one that can, such as pdhg, or none") from None
        return replace(picture, colours=answer[0]), self._summary(picture, info)

    def _summary(self, picture: Picture, info: Info) -> Summary:
        result, proven = info.solved if info.value_scale else info.result, info.certificate
        form = {name: self.options[name] for name in ("data", "order", "isotropic", "huber") if name in self.options}
        status, iterations = result.status[0], int(result.iterations)
        name = "learned-fgp" if result.solver is METHOD else type(result.solver).__name__.lower()
        notes = [status.message] if status.failed or status is Status.STALLED else []
        if self.is_to_tolerance and self.tolerance is not None and status is Status.FINISHED:
            notes.append(f"the tolerance of {self.tolerance:g} was not reached in {iterations} iterations")
        return Summary(
            size=picture.size,
            mode=picture.mode,
            bits=picture.bits,
            task=self.task,
            solver=self.name or name,
            weight=float(info.weight if self.weight == AUTO else self.weight),
            value_before=info.start_value,
            value_after=float(proven.value),
            iterations=iterations,
            seconds=info.seconds,
            model=DenoisingModel(coupled=getattr(info.solved.problem, "coupled", False), **form),
            bound=info.absolute,
            relative_bound=info.relative,
            lower_bound=float(proven.lower_bound),
            grey_levels=info.grey_levels,
            theorem=proven.theorem,
            proven=info.proven,
            choice=info.choice,
            notes=tuple(notes),
        )


class Job(NamedTuple):
    """A file to read and a file to write."""

    image: Path
    out: Path


@dataclass(frozen=True)
class FileResult:
    """The summary of a file, or the error that occurred."""

    job: Job
    summary: Summary | None = None
    error: str = ""

    def __str__(self) -> str:
        """Return the result as a few lines of text."""
        return self.error if self.summary is None else f"{self.job.out}: {self.summary.facts}\n{self.summary}"

    @property
    def line(self) -> str:
        """The result as one line of text."""
        if (summary := self.summary) is None:
            return self.error
        return f"{self.job.out}: {summary.facts}, weight {summary.weight:.3g}, {summary.proven.split(', ')[0]}"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
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

    All arguments and files are checked before solving starts, as far as possible.

    Args:
        task: "denoise", "inpaint" or "deblur".
        image: The file to read.
        out: The file to write.
        extra: For "inpaint", the file of a mask of the same size, whose white pixels are kept; for "deblur", a kernel
            as in `read_kernel`.
        overwrite: Whether to replace an existing file.
        **settings: The other arguments of `PictureSolver`.
    """
    return solve_one(PictureSolver(task, **settings), Job(Path(image), Path(out)), extra, overwrite)


def solve_one(
    solver: PictureSolver,
    job: Job,
    extra: str | Path | None = None,
    overwrite: bool = False,
    writing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> FileResult:
    """Solve a file as in `solve_file`; write the answer inside the context manager `writing()`."""
    wants = TASKS[solver.task].extra
    if (extra is None) == bool(wants):
        raise InputError(wants or "extra", extra, f"{'one' if wants else 'nothing'} for {solver.task}")
    with open_picture(job.image) as (header, read):
        mask = _mask_of(extra, job.image) if extra is not None and wants == "mask" else None
        path = check_out(job.out, header, job.image, *([] if mask is None else [mask]), overwrite=overwrite)
        if mask is not None:
            check_mask_size(mask, header.size)
        second = read_kernel(str(extra)) if wants == "kernel" else None
        solver.check(str(job.image), header)
        before = read()
    after, summary = solver.solve(before, second if mask is None else read_mask(mask, before.size))
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

    If a file fails, the others continue. Workers share the threads equally. If the generator is interrupted or closed,
    it waits only for files that are being written: no other file is started, and no file is left half-written.

    Args:
        solver: The solver for all files.
        jobs: The files.
        extra: As in `solve_file`, or a folder of masks with the names of the pictures.
        overwrite: Whether to replace existing files.
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
            return solve_one(solver, job, extra, overwrite, writing)
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
        for _ in range(count):  # wait for workers that are writing
            permits.acquire()
        permits.release(count)


def plot_choices(path: Path, summaries: Sequence[Summary]) -> None:
    """Write a figure of risk against weight: a line for each picture, and a dotted line at the chosen weight."""
    require("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for summary in summaries:
        if (choice := summary.choice) is not None:
            alpha = 1 / len(summaries) ** 0.5
            (line,) = axes.plot(choice.path.flatten(), choice.risk.flatten(), marker=".", alpha=alpha)
            axes.axvline(summary.weight, color=line.get_color(), linestyle=":", alpha=alpha)
    axes.set_xscale("log")
    axes.set_xlabel("weight (dotted: the chosen one)")
    axes.set_ylabel("expected square error per pixel,\nup to a constant")
    with atomic_path(path) as temporary:
        figure.savefig(temporary)


def find_jobs(images: Sequence[str], out: str, overwrite: bool = False) -> list[Job]:
    """Return the files to read and to write; `out` is a folder or, for a single picture, a file.

    `images` are files, patterns such as `*.png`, or folders, which are searched with their subfolders. Raise if two
    pictures have the same output, or if an output exists and `overwrite` is False.
    """
    first = images[0]
    single = len(images) == 1 and not os.path.isdir(first) and (os.path.exists(first) or not glob.has_magic(first))
    if single and not os.path.isdir(out):  # unlike Path's methods, os.path's return False for invalid names
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
    """Return the files that an argument of the command line names, each with its name in `out`."""
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
    """Return the mask file of a picture: `mask`, or if it is a folder, its file of the same name up to the ending."""
    mask = Path(mask)
    if not os.path.isdir(mask):
        return mask
    found = sorted(file for file in mask.iterdir() if file.stem == image.stem and file.suffix.lower() in FORMATS)
    if len(found) != 1:
        raise FileError("mask", f"{mask}, with {len(found)} files for {image.name}", "one of the same name for each")
    return found[0]


def read_kernel(text: str) -> Tensor:
    """Return the kernel of a blur `(h, w)`, with sum 1, from `gaussian:1.5`, `motion:9`, `motion:9:45` or a file name.

    >>> read_kernel("motion:9:90").shape
    torch.Size([11, 11])
    """
    kind, *numbers = text.split(":")
    if kind in ("gaussian", "motion") and not os.path.exists(text):
        try:
            size, *rest = [float(number) for number in numbers]
            if size <= MAX_KERNEL and kind == "gaussian" and not rest:
                return gaussian_kernel(size)
            if size <= MAX_KERNEL and kind == "motion" and len(rest) < 2:
                return motion_kernel(size, math.radians(rest[0] if rest else 0.0))
        except ValueError:  # includes InputError
            pass
        raise InputError("kernel", text, KERNELS)
    picture = read_picture(text, "kernel")
    if len(picture.colours) > 1 or len(picture.size) > 2:
        raise FileError("kernel", f"{text}, in colour or a volume", "a grey image of the kernel, or an array (h, w)")
    taps = torch.from_numpy(picture.colours[0].astype("float64"))
    total = float(taps.sum())
    if not math.isfinite(total) or total <= 0:
        raise FileError("kernel", f"{text}, of sum {total:g}", "a kernel of a positive sum")
    return taps / total
