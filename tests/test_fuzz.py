"""A part of `benchmarks/fuzz.py`: malformed inputs for every command and every file format."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "benchmarks" / "fuzz.py"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="cases run in forks whose memory is measured as Linux does it")
def test_malformed_inputs_get_one_line_and_leave_nothing() -> None:
    call = [sys.executable, str(FUZZ), "--inputs", "160", "--seed", "0"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("160 inputs, 0 wrong\n")
