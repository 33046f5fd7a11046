"""Checkpoints: folders of safetensors and JSON that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd.core.files import read_json, read_tensors, sha256, with_checksum, write_json, write_tensors, writing
from lmd.errors import FileError
from lmd.training.old_names import with_new_names

KEEP = 2
"""How many checkpoints are kept."""

STATE_FILE = "state.json"
TENSOR_FILES = ("weights", "optimiser", "best")
NAMES = ("updates-*", "step-*")
"""What checkpoints are called; the second name is the one they had before, and sorts before the first."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped."""

    state: Mapping[str, Any]
    """The updates done, the settings, the best validation and the like, as JSON values."""

    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]

    best: Mapping[str, Tensor]
    """The weights with the best validation; empty where there is none."""


def write_checkpoint(folder: Path, updates: int, checkpoint: Checkpoint) -> None:
    """Write a checkpoint into `folder` under its number of updates, then remove all but the last two.

    It is written under a hidden name, made safe on disk and renamed: the rename is the moment it exists. Where it
    cannot be written, such as on a disk that is full, nothing of it stays.
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
            _remove_all(by_age(folder)[KEEP:])
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`; one that is not whole is an error."""
    state = _with_new_names(read_json(path / STATE_FILE))
    tensors = {name: read_tensors(path / f"{name}.safetensors") for name in TENSOR_FILES}
    if not _is_state(state):
        raise FileError("checkpoint", f"{path / STATE_FILE}, which lacks what a run goes on from", "one that lmd wrote")
    for name in TENSOR_FILES:
        if sha256(path / f"{name}.safetensors") != state["sha256"].get(name):
            raise FileError("checkpoint", f"{path}, whose {name} have changed", "a checkpoint as it was written")
    return Checkpoint(state, **tensors)


def _with_new_names(state: Any) -> Any:
    """A state as it would be written today; what is no state is left as it is, for `_is_state` to refuse."""
    if not isinstance(state, dict):
        return state
    parts = {key: with_new_names(state[key]) for key in ("settings", "best") if isinstance(state.get(key), dict)}
    return {**with_new_names(state), **parts}


def _is_state(state: object) -> bool:
    """Whether what a state.json holds is what a run goes on from."""
    if not isinstance(state, dict):
        return False
    counts = all(isinstance(state.get(key), int) and state[key] >= 0 for key in ("updates", "skipped", "log_bytes"))
    objects = all(isinstance(state.get(key), dict) for key in ("sha256", "settings"))
    best = state.get("best", False)
    validated = best is None or (isinstance(best, dict) and best.keys() == {"updates", "value", "inconsistency"})
    numbers = [state.get("seconds"), *(best or {}).values()] if validated else [None]
    return counts and objects and all(isinstance(number, (int, float)) for number in numbers)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a folder that is whole, or None where the folder has none at all."""
    paths = by_age(folder)
    for path in paths:
        try:
            read_checkpoint(path)
        except FileError:
            continue
        return path
    if paths:
        raise FileError("resume", f"{folder}, where every checkpoint is damaged", "a folder with a whole checkpoint")
    return None


def tidy(folder: Path, newest: Path | None) -> None:
    """Remove what a killed process left half-written or not yet removed, and all newer than `newest`."""
    for pattern in NAMES:
        for path in folder.glob(f".{pattern}"):
            shutil.rmtree(path)
    if newest is not None:
        _remove_all([path for path in by_age(folder) if path.name > newest.name])
    _remove_all(by_age(folder)[KEEP:])


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: `"3.exp_avg"` belongs to its parameter 3."""
    state = optimiser.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the state that `optimiser_tensors` took from one like it."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def by_age(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    return sorted((path for pattern in NAMES for path in folder.glob(pattern)), reverse=True)


def _remove_all(paths: Iterable[Path]) -> None:
    """Remove checkpoints; a rename comes first, so that no half of one is ever taken for the whole."""
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
