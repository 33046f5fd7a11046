"""Reading a metrics.json: every entry is checked, so that tables and the page meet nothing that they do not know."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmd.core.files import read_json
from lmd.errors import FileError
from lmd.reproduction.report.rows import CORE

MOST = 2**53
"""The largest whole number that is told from its neighbours everywhere."""


def read_metrics(path: Path) -> dict[str, Any]:
    """A metrics.json, checked to be one: every key is there afterwards and has its type."""
    given = read_json(path)
    if not isinstance(given, dict):
        raise _refused(path, "which is no object")
    metrics = {"title": given.get("experiment"), "paper": "", "seconds": 0, "facts": {}, "figures": [], **given}
    if missing := [key for key in _ENTRIES if key not in metrics]:
        raise _refused(path, f"without {', '.join(missing)}")
    for key, (holds, accepted) in _ENTRIES.items():
        if not holds(metrics[key]):
            raise _refused(path, f"whose {key} is not {accepted}")
    return metrics


def _refused(path: Path, reason: str) -> FileError:
    return FileError("file", f"{path}, {reason}", "a metrics.json that `lmd reproduce` or `lmd bench` wrote")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    """Whether `value` is a number that floating point holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= MOST


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool)) or _is_number(value)


def _is_fact(value: object) -> bool:
    return _is_plain(value) or (isinstance(value, list) and all(map(_is_plain, value)))


def _is_figure(value: object) -> bool:
    """A file and a caption; `frames`, their names, where the file shows several pictures one under the other."""
    if not isinstance(value, dict) or not all(_is_text(value.get(key)) for key in ("file", "caption")):
        return False
    frames = value.get("frames", [])
    return isinstance(frames, list) and len(frames) != 1 and all(map(_is_text, frames))


def _is_row(value: object) -> bool:
    if not isinstance(value, dict) or not all(key in value for key in CORE) or not all(map(_is_plain, value.values())):
        return False
    iteration, number = value["iteration"], value["value"]
    placed = _is_text(iteration) or (isinstance(iteration, int) and not isinstance(iteration, bool) and iteration >= 0)
    named = _is_text(value["method"]) and _is_text(value["metric"])
    return placed and named and (number is None or _is_number(number))


def _list_of(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _object_of(holds: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


_ENTRIES: dict[str, tuple[Callable[[object], bool], str]] = {
    "experiment": (_is_text, "text"),
    "title": (_is_text, "text"),
    "paper": (_is_text, "text"),
    "preset": (_is_text, "text"),
    "seed": (_is_number, "a number"),
    "seconds": (_is_number, "a number"),
    "versions": (_object_of(_is_plain), "an object of plain values"),
    "facts": (_object_of(_is_fact), "an object of plain values and lists of them"),
    "figures": (
        _list_of(_is_figure),
        "a list of a file and a caption each, and of two or more frames where it has any",
    ),
    "rows": (_list_of(_is_row), f"a list of plain objects with {', '.join(CORE)}"),
}
"""What each entry has to be, as a check and in words."""
