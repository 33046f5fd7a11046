"""The log of a training run: one JSON object per line, cut back to a checkpoint when a run goes on from there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lmd.core.files import writing
from lmd.errors import FileError
from lmd.training.old_names import with_new_names

LogLine = dict[str, Any]

TIMING = ("seconds", "updates_per_second")
"""The entries that differ between two runs of the same settings; all the others are the same."""


class Log:
    """Records in memory and, where it has a file, in that file; each is on disk as soon as it is written."""

    def __init__(self, path: Path | None = None, records: Iterable[LogLine] = ()) -> None:
        self.records = list(records)
        self._hash = hashlib.sha256(path.read_bytes() if path is not None and path.is_file() else b"")
        self._path, self._file = path, None
        if path is not None:
            with writing(path):
                self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (it stays open for the whole run)

    def write(self, record: Mapping[str, Any]) -> LogLine:
        """Add a record; what is not finite becomes null, as JSON has no word for it."""
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
        """How many bytes have been written, all of them safe on disk."""
        if self._file is None or self._path is None:
            return 0
        with writing(self._path):
            os.fsync(self._file.fileno())
            return self._file.tell()

    def digest(self) -> str:
        """The SHA-256 of what has been written."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; the records stay."""
        if self._file is not None:
            self._file.close()


def read_log(path: Path, position: int, digest: str | None = None) -> list[LogLine]:
    """The records in the first `position` bytes of a log, which have that SHA-256, where it is known."""
    data = path.read_bytes()[:position] if path.is_file() else b""
    if len(data) < position:
        raise FileError("log", f"{path}, shorter than its checkpoint says", f"a log of at least {position} bytes")
    try:
        records = [json.loads(line) for line in data.splitlines()]
    except (ValueError, RecursionError) as error:
        raise FileError("log", f"{path}, damaged ({error})", "one JSON object per line, as lmd wrote them") from None
    lines = [with_new_names(record) for record in records if isinstance(record, dict)]
    if len(lines) < len(records) or not all(isinstance(line.get("updates"), int) for line in lines):
        raise FileError("log", f"{path}, damaged", "one JSON object per line, as lmd wrote them")
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise FileError("log", f"{path}, damaged: its checksum is that of something else", "the log as lmd wrote it")
    return lines


def cut_log(path: Path, position: int, digest: str | None = None) -> None:
    """Forget everything after the first `position` bytes of a log, if these are as they were written."""
    read_log(path, position, digest)
    with writing(path), open(path, "ab") as file:
        file.truncate(position)
        os.fsync(file.fileno())


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
