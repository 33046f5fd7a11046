"""The log of a training run, one JSON object per line, and its progress bar."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lmd.core.files import writing
from lmd.errors import FileError

LogLine = dict[str, Any]

TIMING = ("seconds", "updates_per_second")  # the entries that differ between two runs of the same settings
PROGRESS_DELAY = 2.0  # seconds before a bar that was not asked for appears


class Log:
    """Records in memory and, where it has a path, in that file, without a buffer."""

    def __init__(self, path: Path | None = None, records: Iterable[LogLine] = ()) -> None:
        self.records = list(records)
        self._hash = hashlib.sha256(path.read_bytes() if path is not None and path.is_file() else b"")
        self._path, self._file = path, None
        if path is not None:
            with writing(path):
                self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (it stays open for the whole run)

    def write(self, record: Mapping[str, Any]) -> LogLine:
        """Add a record; numbers that are not finite become null, as JSON has none."""
        plain = {key: None if _not_finite(value) else value for key, value in record.items()}
        self.records.append(plain)
        if self._file is not None and self._path is not None:
            line = json.dumps(plain, allow_nan=False).encode() + b"\n"
            with writing(self._path):
                if self._file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._hash.update(line)
        return plain

    def position(self) -> int:
        """Sync the file, and return how many bytes have been written."""
        if self._file is None or self._path is None:
            return 0
        with writing(self._path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def digest(self) -> str:
        """Return the SHA-256 of what has been written."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; the records stay."""
        if self._file is not None:
            self._file.close()


def read_log(path: Path, position: int, digest: str) -> list[LogLine]:
    """Return the records in the first `position` bytes of a log, which must have that SHA-256."""
    data = path.read_bytes()[:position] if path.is_file() else b""
    if len(data) < position:
        raise FileError("log", f"{path}, shorter than its checkpoint says", f"a log of at least {position} bytes")
    try:
        records = [json.loads(line) for line in data.splitlines()]
    except (ValueError, RecursionError) as error:
        raise FileError("log", f"{path}, damaged ({error})", "one JSON object per line, as lmd wrote them") from None
    if not all(isinstance(record, dict) and isinstance(record.get("updates"), int) for record in records):
        raise FileError("log", f"{path}, damaged", "one JSON object per line, as lmd wrote them")
    if hashlib.sha256(data).hexdigest() != digest:
        raise FileError("log", f"{path}, damaged: its checksum is that of something else", "the log as lmd wrote it")
    return records


def cut_log(path: Path, position: int, digest: str) -> None:
    """Remove everything after the first `position` bytes of a log, if these have that SHA-256."""
    read_log(path, position, digest)
    with writing(path), open(path, "ab") as file:
        file.truncate(position)
        os.fsync(file.fileno())


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


class ProgressBar:
    """A bar on stderr: at once if `shown` is True, never if False; if None, on a terminal and after two seconds."""

    def __init__(self, shown: bool | None, updates: int) -> None:
        self._wanted = sys.stderr.isatty() if shown is None else shown
        self._patience = PROGRESS_DELAY if shown is None else 0.0
        self._updates = updates
        self._bar: Any = None

    def start(self, done: int) -> None:
        """Start the clock, after `done` updates of earlier sessions."""
        self._first, self._begun = done, time.monotonic()

    def update(self, done: int, loss: float, inconsistency: float) -> None:
        """Show the progress after `done` updates."""
        elapsed = time.monotonic() - self._begun
        if not self._wanted or elapsed < self._patience:
            return
        if self._bar is None:
            self._bar, self._task = _bar(self._first, self._updates)
        rate = (done - self._first) / max(elapsed, 1e-9)
        text = f"loss {loss:.4g}  inconsistency {inconsistency:.3g}  {rate:.3g} updates/s"
        self._bar.update(self._task, completed=done, figures=text)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()


def _bar(done: int, updates: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    bar.start()
    return bar, bar.add_task("training", total=updates, completed=done, figures="")
