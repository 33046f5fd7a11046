"""The folder of a run: its lock, journal, log and checkpoints. Killing the process leaves no half-written file.

log.jsonl                                  one JSON object per line
checkpoints/updates-00000500.safetensors   weights, optimiser and best weights; two checkpoints are kept
checkpoints/updates-00000500.json          everything else; written last, it completes the checkpoint
solver.json, weights.safetensors           the best solver so far, for `lmd.solvers.load`
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lmd.core import files
from lmd.errors import FileError, InputError
from lmd.solvers.saving import SOLVER_FILE

JOURNAL_FILE = "learn.json"


@contextmanager
def locked_folder(path: Path, resume: bool, signs: Sequence[str]) -> Iterator[bool]:
    """Lock the folder of a run within the `with` block, and yield whether it contains a run to continue.

    Args:
        path: The folder. It is created if it is missing, and removed again if nothing was written to it.
        resume: Whether to continue a run; if not, a folder that contains a run is refused.
        signs: Patterns of files. If any file matches, the folder contains a run.
    """
    is_new = not os.path.exists(path)  # unlike path.exists(), raises nothing for names that are too long
    lock = files.FolderLock("out", files.writable_folder("out", path))
    try:
        has_run = any(list(path.glob(sign)) for sign in signs)
        if has_run and not resume:
            raise FileError("out", f"{path}, which holds a run", "another folder, or resume=True to go on with it")
        yield has_run
    finally:
        if is_new:
            with suppress(OSError):  # if it is not empty
                path.rmdir()
        lock.release()


def check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an InputError for the first JSON value that differs between the run in a folder and its continuation."""
    for name, old, new in _differences(before, json.loads(json.dumps(now))):
        accepted = f"{old}, as the run in {folder} has it; a new run needs a folder of its own"
        raise InputError(name.removeprefix("settings."), new, accepted)


def check_resume(out: object, resume: bool) -> None:
    """Raise an InputError if a run is to be continued without a folder."""
    if resume and out is None:
        raise InputError("resume", "True without out", "out=FOLDER, the folder of the run to go on with")


def _differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, old value, new value) of each entry that differs between two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield name, before, now


@contextmanager
def open_journal(folder: Path | None, settings: dict[str, Any], resume: bool) -> Iterator[Any]:
    """Lock the folder of a run of `learn` within the `with` block; yield the measurements of an earlier run, or None.

    Measurements, such as milliseconds, differ each time. Everything else in a run follows from them and the seed.
    """
    check_resume(folder, resume)
    if folder is None:
        yield None
        return
    with locked_folder(folder, resume, (JOURNAL_FILE, SOLVER_FILE)) as has_run:
        before = None
        if has_run and (folder / JOURNAL_FILE).is_file():
            before = files.read_json(folder / JOURNAL_FILE, checked=True)
            check_same(folder, {name: before["settings"].get(name) for name in settings}, settings)
        yield None if before is None else before["measured"]


def write_journal(folder: Path, settings: dict[str, Any], measured: Any) -> None:
    """Write the measurements of a run of `learn`; call this before they are used."""
    files.write_json(folder / JOURNAL_FILE, files.with_checksum({"settings": settings, "measured": measured}))


N_CHECKPOINTS = 2
LOG_FILE, CHECKPOINTS = "log.jsonl", "checkpoints"
RUN_FILES = (SOLVER_FILE, LOG_FILE, f"{CHECKPOINTS}/*.json")

FREE_SETTINGS = ("checkpoint_every", "recompute")
"""Settings that do not affect results; a continued run may change them."""

LogLine = dict[str, Any]

Groups = Mapping[str, Mapping[str, Tensor]]
"""Tensors by the name of their group, such as `weights`, and by their own name."""


class Log:
    """Records in memory and, if `path` is given, in that file. Both begin with the given `records`."""

    def __init__(self, path: Path | None = None, records: Iterable[LogLine] = ()) -> None:
        self.records, self._path = list(records), path
        if path is not None:
            files.write_text(path, "".join(map(_line, self.records)))

    def write(self, record: Mapping[str, Any]) -> LogLine:
        """Add a record and return it; numbers that are not finite become null, because JSON cannot express them."""
        bad = {key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
        plain = {key: None if key in bad else value for key, value in record.items()}
        self.records.append(plain)
        if self._path is not None:
            with files.writing(self._path), open(self._path, "a", encoding="utf-8") as file:
                file.write(_line(plain))
        return plain


def _line(record: LogLine) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


class Checkpoint(NamedTuple):
    """Everything that a run needs to continue as if it had never stopped."""

    path: Path  # the JSON file
    state: dict[str, Any]
    groups: dict[str, dict[str, Tensor]]


def write_checkpoint(folder: Path, updates: int, state: Mapping[str, Any], groups: Groups) -> None:
    """Write a checkpoint, then remove all but the last two.

    Args:
        folder: The folder of the run.
        updates: The number of updates so far.
        state: JSON values such as the settings, the best validation and the log.
        groups: The tensors by group and name.
    """
    path = folder / CHECKPOINTS / f"updates-{updates:08d}.json"
    tensors = path.with_suffix(".safetensors")
    try:
        files.write_tensors(tensors, flatten(groups, "/"))
        files.write_json(path, files.with_checksum({**state, "sha256": files.sha256(tensors)}))
    except FileError:
        with suppress(OSError):
            tensors.unlink(missing_ok=True)
        raise
    with files.writing(path):
        _remove(_newest_first(folder)[N_CHECKPOINTS:])


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint with this JSON file; raise a FileError if it is incomplete or damaged."""
    state = files.read_json(path, checked=True)
    tensors = path.with_suffix(".safetensors")
    groups = unflatten(files.read_tensors(tensors), "/")
    if files.sha256(tensors) != state.get("sha256"):
        raise FileError("checkpoint", f"{path}, whose tensors have changed", "a checkpoint as it was written")
    return Checkpoint(path, state, groups)


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run, or None if it has none; raise a FileError if all are damaged."""
    paths = _newest_first(folder)
    for path in paths:
        with suppress(FileError):
            return read_checkpoint(path)
    if paths:
        raise FileError("resume", f"{folder}, where every checkpoint is damaged", "a folder with a whole checkpoint")
    return None


@contextmanager
def open_run(folder: Path, resume: bool, configuration: dict[str, Any]) -> Iterator[bool]:
    """Lock and prepare the folder of a run; yield whether it contains a run to continue, with this configuration."""
    with locked_folder(folder, resume, RUN_FILES) as has_run:
        newest = newest_checkpoint(folder) if has_run else None
        if newest is not None:
            _check_configuration(folder, newest.state, configuration)
        elif has_run:
            raise FileError("resume", f"{folder}, which has no checkpoint", "the folder of a run that was stopped")
        with files.writing(folder):  # removes half-written files of a killed process, and damaged checkpoints
            for path in [*folder.glob(".*.part*"), *folder.glob(f"{CHECKPOINTS}/.*.part*")]:
                path.unlink()
            _remove([path for path in _newest_first(folder) if newest is None or path > newest.path])
            for path in folder.glob(f"{CHECKPOINTS}/*.safetensors"):
                if not path.with_suffix(".json").exists():
                    path.unlink()
        yield has_run


def _check_configuration(folder: Path, state: dict[str, Any], configuration: dict[str, Any]) -> None:
    settings = configuration["settings"]
    free = FREE_SETTINGS + (("updates",) if settings["schedule"] == "constant" else ())
    before = {key: state.get(key) for key in configuration}
    before["settings"] = {**state["settings"], **{key: settings[key] for key in free}}
    check_same(folder, before, configuration)
    if settings["updates"] < state["updates"]:
        accepted = f"{state['updates']} or more, which the run in {folder} has done"
        raise InputError("updates", settings["updates"], accepted)


def flatten(groups: Mapping[Any, Mapping[str, Tensor]], mark: str) -> dict[str, Tensor]:
    """Return the tensors of all groups in one dictionary, with the keys group + mark + name."""
    return {f"{group}{mark}{name}": x for group, named in groups.items() for name, x in named.items()}


def unflatten(tensors: Mapping[str, Tensor], mark: str) -> dict[str, dict[str, Tensor]]:
    """Return the groups of tensors: the inverse of `flatten`."""
    groups: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        group, _, name = key.partition(mark)
        groups.setdefault(group, {})[name] = tensor
    return groups


def _newest_first(folder: Path) -> list[Path]:
    return sorted((folder / CHECKPOINTS).glob("updates-*.json"), reverse=True)


def _remove(paths: Iterable[Path]) -> None:
    """Remove checkpoints. Each JSON file is removed first, so that a half-removed checkpoint is never read."""
    for path in paths:
        path.unlink()
        path.with_suffix(".safetensors").unlink(missing_ok=True)
