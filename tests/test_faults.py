"""A part of `benchmarks/faults.py`: what goes wrong around a program ends in the right answer or in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "benchmarks" / "faults.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults as Linux has them")


def test_a_full_disk_loses_nothing() -> None:
    call = [sys.executable, str(FAULTS), "--quick", "--only", "full disk"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 failures\n")


@pytest.mark.parametrize(
    ("line", "code", "lines"),
    [("list > /dev/full", 2, 1), ("list | head -1", 0, 0), ("--version >&-", 0, 0)],
)
def test_outputs_that_are_full_closed_or_unread(line: str, code: int, lines: int) -> None:
    call = ["bash", "-c", f"set -o pipefail; {sys.executable} -m lmd {line}"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == lines and "Traceback" not in done.stderr
