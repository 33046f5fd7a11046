"""A part of `benchmarks/faults.py`: what goes wrong around a program ends in the right answer or in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lmd
from lmd.problems import LeastSquaresFamily

FAULTS = Path(__file__).parents[1] / "benchmarks" / "faults.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="faults as Linux has them")


@pytest.mark.slow
def test_a_full_disk_loses_nothing() -> None:
    call = [sys.executable, str(FAULTS), "--quick", "--only", "full disk"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 failures\n")


@pytest.mark.parametrize(
    ("line", "code", "lines"),
    [("--help > /dev/full", 2, 1), ("--help | head -1", 0, 0), ("--version >&-", 0, 0)],
)
def test_outputs_that_are_full_closed_or_unread(line: str, code: int, lines: int) -> None:
    call = ["bash", "-c", f"set -o pipefail; {sys.executable} -m lmd {line}"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == lines and "Traceback" not in done.stderr


def test_an_interrupted_import_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    call = [sys.executable, "-m", "lmd", "list"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": paths})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "lmd: interrupted\n")


def test_training_in_a_folder_that_is_gone_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    solver, family = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2), iterations=2), LeastSquaresFamily()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(lmd.InputError, match=r"\Acurrent folder: got one that is gone .*, expected [^\n]*\Z"):
        lmd.train(solver, family, updates=1, batch=2, progress=False)


def test_a_command_in_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    arguments = ["solve", "denoise", "/in.png", "/out.png"]
    call = f"import os; from lmd.cli.program import main; os.rmdir(os.getcwd()); main({arguments})"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, cwd=tmp_path / "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lmd: current folder: got one that is gone") and done.stderr.count("\n") == 1


def test_a_read_only_home_is_not_mentioned() -> None:
    main = "lmd.cli.program.__globals__['main'] = lambda: __import__('matplotlib').get_cachedir()"
    call = [sys.executable, "-c", f"import lmd.cli; {main}; lmd.cli.program()"]
    own = {name: value for name, value in os.environ.items() if name != "MPLCONFIGDIR"}
    own |= dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), "/proc/1")
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, env=own)
    assert (done.returncode, done.stderr) == (0, "")


def test_autocast_and_half_numbers_change_no_picture() -> None:
    picture = torch.rand(40, 48, generator=torch.Generator().manual_seed(0))
    plain = lmd.denoise(picture)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(lmd.denoise(picture), plain)
    half = picture.bfloat16()
    assert lmd.inpaint(half, half > 0.1, weight=0.1).shape == picture.shape
