"""The examples run, and show what their headers say; with_deepinv.py does in tests/compat, where deepinv is."""

import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import lmd

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_own_problem_learns_the_scaling(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_UPDATES": 20, "MAX_TRAINING_FACTOR": 1, "N_TRAINING": 100}.items():
        monkeypatch.setattr(importlib.import_module("lmd.training.learn"), name, value)
    runpy.run_path(str(EXAMPLES / "own_problem.py"), run_name="__main__")
    counts = {line[:50].strip(): int(line[50:].split()[0]) for line in capsys.readouterr().out.splitlines()}
    learned, classical = next(iter(counts.values())), [counts[name] for name in ("L-BFGS", "Nesterov")]
    assert "learned" in next(iter(counts)) and learned < 0.5 * min(classical)


def test_denoise_photo_takes_the_noise_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["denoise_photo.py", str(tmp_path / "out.png")])
    runpy.run_path(str(EXAMPLES / "denoise_photo.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "certificate" in out
    noisy, denoised = (float(line.split()[-2]) for line in out.splitlines() if line.endswith("dB"))
    assert denoised > noisy + 4
    assert (tmp_path / "out.png").is_file()


def test_a_weight_map_is_learned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["learn_weight_map.py", "12"])
    runpy.run_path(str(EXAMPLES / "learn_weight_map.py"), run_name="__main__")
    noisy, single, mapped, gain = (float(line.split()[-2]) for line in capsys.readouterr().out.splitlines())
    assert noisy + 4 < single < mapped and gain > 0.8


def test_a_model_of_cvxpy_becomes_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the learning itself, which `make docs` runs with the rest of the gallery."""
    cvxpy = pytest.importorskip("cvxpy")
    monkeypatch.setattr("lmd.learn", lambda family, minutes, target: lmd.solvers.ADMM())
    names = runpy.run_path(str(EXAMPLES / "gallery" / "plot_17_cvxpy.py"))
    found, model = names["found"], names["model"]
    sizes = [parameter.size for parameter in model.parameters()]
    for parameter, value in zip(model.parameters(), names["problem"].parameters[0].split(sizes), strict=True):
        parameter.value = value.double().numpy().reshape(parameter.shape)
    model.solve(solver=cvxpy.CLARABEL)
    assert_close(found["place"][0], torch.as_tensor(names["place"].value), atol=0.2, rtol=0)  # flat near the end
    assert float(found["force"].abs().max()) <= 1 + 1e-6


def test_the_gallery_shows_what_its_texts_say() -> None:
    def names_of(page: str) -> dict[str, Any]:
        return runpy.run_path(str(next((EXAMPLES / "gallery").glob(f"plot_{page}_*.py"))))

    entropic = names_of("06")
    assert (torch.tensor(entropic["misfits"]).diff() <= 1e-5).all(), "a step of 1/L never raises the misfit"
    assert_close(entropic["weights"].detach(), entropic["target"], atol=0.02, rtol=0)
    assert_close(torch.stack(entropic["history"]).sum(dim=1), torch.ones(1000))
    warm = names_of("11")
    for axis in warm["axes"]:
        cold, followed = (line.get_ydata()[1:] for line in axis.get_lines())
        assert (followed < 0.6 * cold).all()
    deblur = names_of("13")
    assert deblur["result"].status[0] is lmd.solvers.Status.TOLERANCE_REACHED and deblur["bound"] <= 1.001e-3


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in text] == []


def test_own_term_is_a_term_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(EXAMPLES / "own_term.py"), run_name="__main__")
    classical, learned = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert 0 <= learned < 0.6 * classical
    suite = names["TestPinball"]()
    for batch in (1, 3):
        suite.test_subgradient_inequality_and_its_constants(batch)


def test_own_task_learns(capsys: pytest.CaptureFixture[str]) -> None:
    """That the command line knows it is tested in tests/tasks/test_own_task.py."""
    runpy.run_path(str(EXAMPLES / "own_task.py"), run_name="__main__")
    classical, learned = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert 0 <= learned < 0.8 * classical


def test_many_machines_lose_nothing_with_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    call = [sys.executable, str(EXAMPLES / "many_machines.py"), str(tmp_path / "out"), "40"]
    done = subprocess.run(call, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == [
        "40 answers of two processes, one of which was killed; 40 of one process",
        "40 of 40 are equal to the byte",
    ]
