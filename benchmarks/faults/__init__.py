"""The cases of `benchmarks/faults.py` by theme, and what they share: the list of them, trials, forks, full disks."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Trials:
    """How often a case was tried, and what failed; `quick` asks for few tries."""

    def __init__(self, report: Path, quick: bool) -> None:
        self.report, self.quick = report, quick
        self.tries = self.failed = 0
        self.skipped = ""
        self.failures: list[str] = []

    def few(self, many: int, few: int) -> int:
        """`many` in a whole run, `few` in a quick one."""
        return few if self.quick else many

    def check(self, fine: bool, words: object) -> bool:
        """Count a try, which failed unless it is `fine`; `words` say what was tried and what was seen."""
        self.tries += 1
        if not fine:
            self.failed += 1
            self.failures.append(" ".join(str(words).split())[:300])
        self.write()
        return fine

    def skip(self, reason: str) -> None:
        """Say that nothing can be tried here, and why."""
        self.skipped = reason

    def write(self) -> None:
        """Write down what is known so far, as the process may not live on."""
        found = {"tries": self.tries, "failed": self.failed, "skipped": self.skipped, "failures": self.failures[:50]}
        self.report.write_text(json.dumps(found))


@dataclass(frozen=True)
class Case:
    """A kind of fault and the function that tries it."""

    name: str
    run: Callable[[Trials], None]
    seconds: int
    """How long it may take."""

    threads: int
    """OMP_NUM_THREADS of its process."""

    preload: bool
    """Whether writes of its process can be made to fail: `full_disk.c`."""


CASES: dict[str, Case] = {}


def case(name: str, *, seconds: int = 300, threads: int = 1, preload: bool = False) -> Callable[..., Any]:
    """Put a function into the list of cases."""

    def add(run: Callable[[Trials], None]) -> Callable[[Trials], None]:
        CASES[name] = Case(name, run, seconds, threads, preload)
        return run

    return add


@dataclass(frozen=True)
class Ended:
    """How a fork ended."""

    code: int
    """The exit code; a signal is negative."""

    out: str
    err: str

    @property
    def one_line(self) -> bool:
        """Whether it is what the command line does with bad input."""
        return self.code == 2 and self.err.startswith("lmd: ") and self.err.count("\n") == 1

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.err.strip()[-240:]}"


def forked(function: Callable[[], object], seconds: float = 60, ready: Callable[[int], object] | None = None) -> Ended:
    """Run a function in a fork of this process, in this folder; exit code 0 where it returns, 3 with what it raises.

    An `LmdError` of one line ends as the command line does: exit code 2. `ready` is called with the fork's number.
    """
    from lmd.errors import LmdError

    sys.stdout.flush()
    names = [Path(f"/tmp/faults-{os.getpid()}-{time.monotonic_ns()}.{end}") for end in ("out", "err")]
    handles = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in names]
    child = os.fork()
    if child == 0:
        os.dup2(handles[0], 1), os.dup2(handles[1], 2)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        code = 3
        try:
            function()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except LmdError as error:
            print("lmd:", error, file=sys.stderr)
            code = 2
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    try:
        if ready is not None:
            ready(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = (os.pread(handle, 10**6, 0).decode(errors="backslashreplace") for handle in handles)
    finally:
        for name, handle in zip(names, handles, strict=True):
            os.close(handle)
            name.unlink()
    return Ended(code, out, err)


def command(*arguments: str, before: Callable[[], object] = lambda: None, seconds: float = 60) -> Ended:
    """The command `lmd` with these arguments, in a fork."""

    def run() -> None:
        from lmd.cli.program import program

        before()
        sys.argv = ["lmd", *arguments]
        program()

    return forked(run, seconds)


def library_path(folder: Path) -> Path:
    """`full_disk.c`, compiled into a folder."""
    path = folder / "full_disk.so"
    source = Path(__file__).with_name("full_disk.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
    return path


class FullDisk:
    """Makes the n-th write below a folder fail, as on a disk that is full; in processes that were preloaded with it."""

    def __init__(self) -> None:
        self.code = ctypes.CDLL(None)

    def fail(self, folder: Path, number: int, *, once: bool = False) -> None:
        """From now on the write of this number fails and, unless `once`, all that follow it."""
        self.code.full_disk_fail(os.fsencode(folder.resolve()), ctypes.c_long(number), int(once))

    def seen(self) -> int:
        """How many writes there have been since."""
        return int(self.code.full_disk_seen())


from faults import disk, machine, memory, modes, parallel, runs  # noqa: E402, F401 (they fill the list of cases)
