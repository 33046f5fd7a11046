"""What goes wrong around a program: forks, signals, full disks, little memory, killed runs, damaged files.

    python benchmarks/faults.py [--quick] [--only NAME] [--list]

Each case runs in a process of its own, in a folder of its own, with a time limit, and tries many faults. Each of them
must end in the right answer, or in one line: exit code 2 on the command line, one `LmdError` in Python. Nothing that
was there before may be lost. Printed is one row for each case: tries, failures, seconds; below it what failed. Exit
code 1 where anything did. `--quick` tries each case a few times. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from faults import CASES, Case, Trials, library_path

NOTHING = {"tries": 1, "failed": 0, "skipped": "", "failures": []}
"""What a case has found that has ended before it wrote anything."""

MEMORY = "/dev/shm"
"""A folder in memory, where there is one: nobody waits there until files are on a disk."""


def main() -> int:
    """Run the cases that were asked for; the answer is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="NAME", help="one case; several with commas")
    parser.add_argument("--quick", action="store_true", help="a few tries of each case")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--shown", type=int, default=5, help="how many failures of a case to print")
    parser.add_argument("--report", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case {unknown[0]}: there are {', '.join(CASES)}")
    if given.list:
        print(*CASES, sep="\n")
        return 0
    if given.report:
        return run_here(CASES[names[0]], given.quick, Path(given.report))
    print(f"{'case':24}{'tries':>8}{'failures':>10}{'seconds':>9}", flush=True)
    total = tried = 0
    for name in names:
        begun = time.monotonic()
        found = run_apart(CASES[name], given.quick)
        tried, total = tried + found["tries"], total + found["failed"]
        seconds = time.monotonic() - begun
        tries = "skipped" if found["skipped"] else found["tries"]
        print(f"{name:24}{tries:>8}{found['failed']:10d}{seconds:9.1f}  {found['skipped']}".rstrip(), flush=True)
        for words in found["failures"][: given.shown]:
            print(f"    {words}", flush=True)
    print(f"{len(names)} cases, {tried} tries, {total} failures")
    return 1 if total else 0


def run_apart(case: Case, quick: bool) -> dict[str, Any]:
    """Run a case in a process of its own and read what it reports; one that ends early has failed."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 2**30 else None
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as place, tempfile.TemporaryDirectory() as built:
        report = Path(place) / "report.json"
        call = [sys.executable, __file__, "--only", case.name, "--report", str(report), *(["--quick"] * quick)]
        work = Path(place) / "work"
        work.mkdir()
        own = {"OMP_NUM_THREADS": str(case.threads), "LMD_CACHE": str(Path(place) / "cache"), "LC_ALL": "C.UTF-8"}
        if case.preload:
            own["LD_PRELOAD"] = str(library_path(Path(built)))
        child = subprocess.Popen(
            call,
            cwd=work,
            env={**os.environ, **own},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            said = child.communicate(timeout=case.seconds)[1].decode(errors="replace").strip()[-300:]
            ended = "" if child.returncode == 0 else f"ended with exit code {child.returncode}: {said}"
        except subprocess.TimeoutExpired:
            ended = f"took more than {case.seconds} seconds"
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        found = json.loads(report.read_text()) if report.exists() else dict(NOTHING)
        if ended:
            found["failed"] += 1
            found["failures"] = [ended, *found["failures"]]
        for path in Path(place).rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(work, ignore_errors=True)
    return found


def run_here(case: Case, quick: bool, report: Path) -> int:
    """Run a case in this process and write its report."""
    trials = Trials(report, quick)
    case.run(trials)
    trials.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
