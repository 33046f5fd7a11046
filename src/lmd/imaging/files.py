"""Picture files through a solver, one or many: which go where, several at a time, and what became of each."""

from __future__ import annotations

import glob
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.core.files import writable_folder
from lmd.errors import FileError, InputError, LmdError
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
from lmd.imaging.picture import spoken
from lmd.imaging.solve import PictureSolver, Summary
from lmd.operators import gaussian_kernel, motion_kernel

MAX_KERNEL = 1000
"""The largest width or length of a kernel that is named, in pixels."""

KERNELS = "gaussian:WIDTH, motion:LENGTH, motion:LENGTH:DEGREES, or a file: an image of the kernel, or .npy"


class Job(NamedTuple):
    """A file to read and one to write."""

    image: Path
    """The file to read."""

    out: Path
    """The file to write."""


@dataclass(frozen=True)
class Done:
    """What became of a file."""

    job: Job
    size: tuple[int, ...] = ()
    kind: str = ""
    """Such as RGB, 8 bits."""

    summary: Summary | None = None
    error: str = ""
    """What went wrong, if anything did."""

    def block(self) -> str:
        """A few lines for a person."""
        told = "" if self.summary is None else self.summary.text()
        return f"{self.job.out}: {spoken(self.size)}, {self.kind}\n{told}"

    def line(self) -> str:
        """One line for a person."""
        if self.summary is None:
            return self.error
        proven = self.summary.proven.split(", ")[0]
        return f"{self.job.out}: {spoken(self.size)}, {self.kind}, weight {self.summary.weight:.3g}, {proven}"

    def as_json(self) -> dict[str, Any]:
        """The same for programs."""
        files = {"image": str(self.job.image), "out": str(self.job.out)}
        if self.summary is None:
            return {**files, "error": self.error}
        mode, bits = self.kind.split(", ")
        *depth, height, width = self.size
        size = {"width": width, "height": height, **({"depth": depth[0]} if depth else {})}
        return {**files, **size, "mode": mode, "bits": int(bits.split()[0]), **self.summary.as_json()}


def solve_file(
    task: str,
    image: str | Path,
    out: str | Path,
    *,
    extra: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Done:
    """Do the `task`, such as denoise, with the picture in the file `image` and write it to the file `out`.

    `extra` is what the task takes beside it: to inpaint the file of a mask of the same size, of which white pixels are
    kept, to deblur a kernel as `read_kernel` takes it. The `settings` are those of `PictureSolver`. Everything that can
    be checked is checked before the work begins.

    Args:
        task: One that takes pictures, such as "denoise".
        image: The file to read.
        out: The file to write.
        extra: The file of a mask, or a kernel; None where the task takes nothing.
        overwrite: Write over what is there.
        **settings: Those of `PictureSolver`.
    """
    return solve_one(PictureSolver(task, **settings), Job(Path(image), Path(out)), extra, overwrite)


def solve_one(
    solver: PictureSolver,
    job: Job,
    extra: str | Path | None = None,
    overwrite: bool = False,
    advance: Callable[[float], None] = lambda share: None,
    writing: AbstractContextManager[object] | None = None,
) -> Done:
    """What `solve_file` does, with a solver that is there already.

    `advance` hears what share was done, and the file is written inside of `writing`, where that is given.
    """
    wants = solver.model.extra
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
    beside = beside if mask is None else torch.from_numpy(read_mask(mask, before.size))
    after, summary = solver.solve(before, beside, advance)
    with writing or nullcontext():
        write_picture(path, after)
    told = replace(summary, notes=(*summary.notes, *losses(path, after)))
    return Done(job, after.size, f"{after.mode}, {after.bits} bits", told)


class _Gate:
    """Lets threads write until it is closed, which waits for those that are writing and lets no other begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside, self._closed = 0, False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise LmdError("interrupted")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0)


def solve_many(
    solver: PictureSolver,
    jobs: Sequence[Job],
    extra: str | Path | None = None,
    overwrite: bool = False,
    workers: int | None = None,
) -> Iterator[Done]:
    """Each file as it is done, `workers` at a time, by default as many as there are threads.

    Where one fails the others go on. With one worker a file has all threads, with more they share them. When it is
    interrupted or closed, it waits for no file that is not being written: none is begun, and none half-written.

    Args:
        solver: What solves each of them.
        jobs: The files.
        extra: As in `solve_file`, or a folder of masks with the names of the pictures.
        overwrite: Write over what is there.
        workers: Files at a time; None is as many as there are threads.
    """
    threads = torch.get_num_threads()
    count = min(len(jobs), threads if workers is None else check_count("workers", workers))

    gate = _Gate()

    def one(job: Job) -> Done:
        try:
            return solve_one(solver, job, extra, overwrite, writing=gate)
        except (LmdError, OSError, MemoryError) as error:
            return Done(job, error=f"{job.image}: {error}")
        except Exception as error:  # what nobody thought of in one picture is no reason to lose the others
            said = " ".join(str(error).split())
            return Done(job, error=f"{job.image}: {type(error).__name__}, {said:.120}")

    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(max(1, threads // count),))
    try:
        for future in as_completed([pool.submit(one, job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        gate.close()


def find_jobs(images: Sequence[str], out: str, overwrite: bool = False) -> list[Job]:
    """Which files go where: a file to a file or into a folder that is there, else all into the folder `out`, by name.

    `images` are files, folders, all pictures in which are taken, their folders too, and patterns such as `*.png`. No
    file is to be written twice or, unless to `overwrite`, to exist.
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
    """The files that a word of the command line means, and what they are to be called."""
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
    """The mask of a picture: the file itself or, of a folder, the one of the same name but for its ending."""
    mask = Path(mask)
    if not os.path.isdir(mask):
        return mask
    found = sorted(file for file in mask.iterdir() if file.stem == image.stem and file.suffix.lower() in FORMATS)
    if len(found) != 1:
        raise FileError("mask", f"{mask}, with {len(found)} files for {image.name}", "one of the same name for each")
    return found[0]


def read_kernel(text: str) -> Tensor:
    """The kernel of a blur `(h, w)`, of sum 1: `gaussian:1.5`, `motion:9`, `motion:9:45`, or a file.

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
        except InputError as error:
            if error.argument == "kernel":
                raise
            raise InputError("kernel", text, KERNELS) from error
        except ValueError as error:
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
