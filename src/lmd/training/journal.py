"""The journal of a run of `lmd.learn`, from which a run that was killed continues as it would have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmd.core.files import FolderLock, read_json, with_checksum, writable_folder, write_json
from lmd.errors import FileError, InputError
from lmd.solvers.saving import SOLVER_FILE

JOURNAL_FILE = "learn.json"


class Journal:
    """Answers by name, each computed once and written before it is used; in memory where there is no folder.

    Measurements such as milliseconds differ each time; all else in a run follows from the seed and these answers.
    """

    def __init__(self, folder: str | Path | None, settings: dict[str, Any], resume: bool) -> None:
        self.folder = None if folder is None else Path(folder)
        self.settings = settings
        self.answers: dict[str, Any] = {}
        self._lock: FolderLock | None = None
        self._is_new = False
        if resume and folder is None:
            raise InputError("resume", "True without out", "out=FOLDER, the folder of the run to go on with")
        if self.folder is None:
            return
        before = read_json(self.folder / JOURNAL_FILE) if (self.folder / JOURNAL_FILE).is_file() else None
        holds = before is not None or (self.folder / SOLVER_FILE).exists()
        if holds and not resume:
            raise FileError(
                "out", f"{self.folder}, which holds a run", "another folder, or resume=True to go on with it"
            )
        if before is not None:
            self._take(before)
        self._is_new = not self.folder.exists()
        self._lock = FolderLock("out", writable_folder("out", self.folder))

    def _take(self, before: Any) -> None:
        if not isinstance(before, dict) or not {"settings", "answers"} <= set(before):
            raise FileError("out", f"{self.folder}/{JOURNAL_FILE}, which is no run of lmd.learn", "what lmd wrote")
        for name, value in self.settings.items():
            if before["settings"].get(name) != value:
                accepted = f"{before['settings'].get(name)}, as the run in {self.folder} has it"
                raise InputError(name, value, accepted)
        self.answers = dict(before["answers"])

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the answer of that name, as JSON values: from the journal, or computed."""
        if name not in self.answers:
            self.answers[name] = compute()
            if self.folder is not None:
                said = with_checksum({"settings": self.settings, "answers": self.answers})
                write_json(self.folder / JOURNAL_FILE, said)
        return self.answers[name]

    def close(self) -> None:
        """Unlock the folder, and remove it if it is new and the run was refused."""
        if self._lock is not None and self.folder is not None:
            self._lock.release()
            self._lock = None
            if self._is_new and not self.answers:
                with suppress(OSError):
                    self.folder.rmdir()
