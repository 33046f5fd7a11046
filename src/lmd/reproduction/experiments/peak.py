"""Peak memory of a piece of work, measured in a process of its own so that nothing before it counts."""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from lmd.errors import LmdError

T = TypeVar("T")

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
PRELOADED = ["lmd.training.train", "lmd.reproduction.datasets.images", "torch._dynamo"]
"""What a fresh process would spend its first seconds on importing; the last of them is what Adam asks for."""


def peak_memory(work: Callable[[], object]) -> dict[str, float]:
    """Megabytes: `peak`, the most this process held while `work` ran, and `work`, how much of it came with the work.

    Linux can forget the peak of everything before. Where that is not possible, imports and set-up may hide a small
    piece of work; where the platform keeps no such number at all, both are NaN.
    """
    with suppress(OSError):
        CLEAR_REFS.write_text("5")
    resident = _megabytes("VmRSS")
    before = _peak() if math.isnan(resident) else resident
    work()
    peak = _peak()
    return {"peak": peak, "work": peak - before}


def fresh_process(function: Callable[..., T], *arguments: Any) -> T:
    """What `function(*arguments)` answers in a process of its own, which starts with imports alone and ends with it.

    A process that ends without an answer, as it does where memory runs out, is an `LmdError`. A script that calls this
    guards its main part with `if __name__ == "__main__":`, as everywhere with Python's processes.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    try:
        found: T = ours.recv()
    except EOFError:
        process.join()
        given = f"{getattr(function, '__name__', function)}{arguments}"
        raise LmdError(f"the process of {given} ended without an answer, code {process.exitcode}") from None
    finally:
        ours.close()
    process.join()
    return found


def _answer(connection: Connection, function: Callable[..., object], arguments: Sequence[Any]) -> None:
    connection.send(function(*arguments))
    connection.close()


def _peak() -> float:
    peak = _megabytes("VmHWM")
    if not math.isnan(peak):
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return math.nan
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 2**10


def _megabytes(name: str) -> float:
    """What Linux says of this process; NaN elsewhere."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), math.nan)
