"""The folder of a training run: its log, its checkpoints, and the solver it has learned so far.

log.jsonl                                one JSON object per line
checkpoints/updates-00000500/            where the run can go on from, the last two
solver.json, weights.safetensors         the best solver so far, for `lmd.solvers.load`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmd.core.files import FolderLock, writable_folder, writing
from lmd.errors import FileError, InputError
from lmd.solvers.saving import SOLVER_FILE
from lmd.training.checkpoints import by_age, newest_checkpoint, read_checkpoint, tidy
from lmd.training.log import cut_log

FREE_SETTINGS = ("checkpoint_every", "recompute")
"""Settings that change no number, so a run may go on with others."""


class RunFolder:
    """Where a run keeps its files."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self._lock: FolderLock | None = None

    def open(self, configuration: dict[str, Any], resume: bool) -> int:
        """Make the folder ready and keep others out; the answer is the number of checkpoints to go on from, 0 or 1.

        `configuration` is what the run is made of; one that goes on must be the one that was started.
        """
        self._lock = FolderLock("out", writable_folder("out", self.path))
        holds_run = bool(by_age(self.checkpoints)) or self.log.exists() or (self.path / SOLVER_FILE).exists()
        if holds_run and not resume:
            raise FileError("out", f"{self.path}, which holds a run", "another folder, or resume=True to go on with it")
        newest = newest_checkpoint(self.checkpoints) if holds_run else None
        if newest is not None:
            self._check_same(dict(read_checkpoint(newest).state), configuration)
        elif holds_run:
            raise FileError("resume", f"{self.path}, which has no checkpoint", "the folder of a run that was stopped")
        with writing(self.path):
            tidy(self.checkpoints, newest)
            for leftover in self.path.glob(".*.part*"):
                leftover.unlink()
        if newest is None:
            return 0
        state = read_checkpoint(newest).state
        cut_log(self.log, state["log_bytes"], state.get("log_sha256"))
        return 1

    def close(self) -> None:
        """Let other runs into the folder."""
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
    """Each entry that differs between two JSON values: its dotted name, what it was and what it is now."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield name, before, now
