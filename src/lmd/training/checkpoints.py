"""The folder of a training run and its checkpoints, which exist whole or not at all, whenever the process is killed.

log.jsonl                                one JSON object per line
checkpoints/updates-00000500/            where the run can continue, the last two
solver.json, weights.safetensors         the best solver so far, for `lmd.solvers.load`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.files import (
    FolderLock,
    read_json,
    read_tensors,
    sha256,
    with_checksum,
    writable_folder,
    write_json,
    write_tensors,
    writing,
)
from lmd.errors import FileError, InputError
from lmd.solvers.saving import SOLVER_FILE
from lmd.training.log import cut_log

N_CHECKPOINTS = 2
STATE_FILE = "state.json"
TENSOR_FILES = ("weights", "optimiser", "best")
NAMES = "updates-*"

FREE_SETTINGS = ("checkpoint_every", "recompute")
"""Settings that change no number, so that a run may continue with others."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to continue as if it had never stopped."""

    state: Mapping[str, Any]  # the updates done, the settings, the best validation and the like, as JSON values
    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]

    best: Mapping[str, Tensor]  # the weights with the best validation; empty where there is none


def write_checkpoint(folder: Path, updates: int, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into `folder` under its number of updates, then remove all but the last two.

    It is written under a hidden name, synced and renamed. Where it cannot be written, nothing of it stays.
    """
    temporary, final = folder / f".updates-{updates:08d}.part", folder / f"updates-{updates:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with writing(final):
            temporary.mkdir(parents=True)
            for name in TENSOR_FILES:
                write_tensors(temporary / f"{name}.safetensors", getattr(checkpoint, name))
            hashes = {name: sha256(temporary / f"{name}.safetensors") for name in TENSOR_FILES}
            write_json(temporary / STATE_FILE, with_checksum({**checkpoint.state, "sha256": hashes}))
            _sync_folder(temporary)
            if final.exists():
                _remove_all([final])
            os.rename(temporary, final)
            _sync_folder(folder)
            _remove_all(by_age(folder)[N_CHECKPOINTS:])
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at `path`; one that is not whole is an error."""
    state = read_json(path / STATE_FILE)
    tensors = {name: read_tensors(path / f"{name}.safetensors") for name in TENSOR_FILES}
    if not _is_state(state):
        raise FileError("checkpoint", f"{path / STATE_FILE}, which lacks what a run goes on from", "one that lmd wrote")
    for name in TENSOR_FILES:
        if sha256(path / f"{name}.safetensors") != state["sha256"].get(name):
            raise FileError("checkpoint", f"{path}, whose {name} have changed", "a checkpoint as it was written")
    return Checkpoint(state, **tensors)


def _is_state(state: object) -> bool:
    """Return whether a run can continue from the content of a state.json."""
    if not isinstance(state, dict):
        return False
    counts = all(isinstance(state.get(key), int) and state[key] >= 0 for key in ("updates", "skipped", "log_bytes"))
    counts = counts and isinstance(state.get("log_sha256"), str)
    objects = all(isinstance(state.get(key), dict) for key in ("sha256", "settings"))
    best = state.get("best", False)
    validated = best is None or (isinstance(best, dict) and best.keys() == {"updates", "value", "inconsistency"})
    numbers = [state.get("seconds"), *(best or {}).values()] if validated else [None]
    return counts and objects and all(isinstance(number, (int, float)) for number in numbers)


def newest_checkpoint(folder: Path) -> tuple[Path, Checkpoint] | None:
    """Return the newest whole checkpoint of a folder and its path, or None where the folder has none at all."""
    paths = by_age(folder)
    for path in paths:
        with suppress(FileError):
            return path, read_checkpoint(path)
    if paths:
        raise FileError("resume", f"{folder}, where every checkpoint is damaged", "a folder with a whole checkpoint")
    return None


def tidy(folder: Path, newest: Path | None) -> None:
    """Remove what a killed process left half-written or not yet removed, and all newer than `newest`."""
    for path in folder.glob(f".{NAMES}"):
        shutil.rmtree(path)
    if newest is not None:
        _remove_all([path for path in by_age(folder) if path.name > newest.name])
    _remove_all(by_age(folder)[N_CHECKPOINTS:])


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors: `"3.exp_avg"` belongs to its parameter 3."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state that `optimiser_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def by_age(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted(folder.glob(NAMES), reverse=True)


def _remove_all(paths: Iterable[Path]) -> None:
    """Remove checkpoints, each renamed first, so that half of one is never taken for the whole."""
    for path in paths:
        hidden = path.with_name(f".{path.name}.old")
        os.rename(path, hidden)
        shutil.rmtree(hidden)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self._lock: FolderLock | None = None

    def open(self, configuration: dict[str, Any], resume: bool) -> int:
        """Lock and prepare the folder; return the number of checkpoints to continue from, 0 or 1.

        `configuration` has to be that of the run which is continued.
        """
        self._lock = FolderLock("out", writable_folder("out", self.path))
        holds_run = bool(by_age(self.checkpoints)) or self.log.exists() or (self.path / SOLVER_FILE).exists()
        if holds_run and not resume:
            raise FileError("out", f"{self.path}, which holds a run", "another folder, or resume=True to go on with it")
        newest = newest_checkpoint(self.checkpoints) if holds_run else None
        if newest is not None:
            self._check_same(dict(newest[1].state), configuration)
        elif holds_run:
            raise FileError("resume", f"{self.path}, which has no checkpoint", "the folder of a run that was stopped")
        with writing(self.path):
            tidy(self.checkpoints, None if newest is None else newest[0])
            for leftover in self.path.glob(".*.part*"):
                leftover.unlink()
        if newest is None:
            return 0
        state = newest[1].state
        cut_log(self.log, state["log_bytes"], state["log_sha256"])
        return 1

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_same(self, state: dict[str, Any], configuration: dict[str, Any]) -> None:
        settings = configuration["settings"]
        free = FREE_SETTINGS + (("updates",) if settings["schedule"] == "constant" else ())
        before = {key: state.get(key) for key in configuration}
        before["settings"] = {**state["settings"], **{key: settings[key] for key in free}}
        for name, old, new in differences(before, json.loads(json.dumps(configuration))):
            accepted = f"{old}, as the run in {self.path} has it; a new run needs a folder of its own"
            raise InputError(name.removeprefix("settings."), new, accepted)
        if settings["updates"] < state["updates"]:
            accepted = f"{state['updates']} or more, which the run in {self.path} has done"
            raise InputError("updates", settings["updates"], accepted)


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each entry that differs between two JSON values: its dotted name, the old and the new value."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield name, before, now
