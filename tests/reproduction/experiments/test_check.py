import errno
import json
from dataclasses import asdict
from pathlib import Path

import pytest

import lmd
from lmd.cli.program import main
from lmd.errors import FileError, InputError
from lmd.guarantees.diagnosis import Diagnosis, Finding
from lmd.guarantees.promises import least_share
from lmd.problems import ControlFamily, LassoFamily, LeastSquaresFamily
from lmd.reproduction.experiments.check import check, check_table, family_of, named_family, promise_findings
from lmd.solvers import ADMM, GradientDescent


def test_a_shipped_solver_passes_and_leaves_a_table_and_a_figure(tmp_path):
    found = check("least-squares-quadratic-10", tmp_path / "out", batch=4, iterations=40)
    assert found.broken == ()
    written = json.loads((tmp_path / "out" / "check.json").read_text())
    assert written["broken"] == 0 and len(written["findings"]) == len(found.findings)
    assert (tmp_path / "out" / "check.png").read_bytes()[:4] == b"\x89PNG"
    table = check_table(found)
    assert len(table.lines) == len(found.findings) and any(line[3].startswith("kept: ") for line in table.lines)


@pytest.mark.parametrize(("step", "kept"), [(0.05, True), (1e-6, False)])
def test_a_promise_about_the_class_is_kept_or_broken(tmp_path, step, kept):
    promised = lmd.guarantees.Promise(target=0.5, iterations=300, runs=300, within=300, share=0.99, confidence=0.95)
    solver = GradientDescent(step)
    solver.card = {"promise": asdict(promised)}
    (found,) = promise_findings(solver, LeastSquaresFamily(), 4, 0, lmd.guarantees.minimum)
    assert found.holds is kept and found.promise == "at least 0.99 of the class" and (found.value > 0.9) is kept


def test_shares_of_programs_with_minima_below_0_are_relative_to_them():
    (found,) = promise_findings(ADMM(), ControlFamily(horizon=3), 8, 0, lmd.guarantees.minimum)
    assert 0.5 < found.value < 1


def test_what_could_be_promised_is_reported_and_families_of_a_module_are_found():
    solver = lmd.zoo.load("least-squares-quadratic-10", bare=True)
    family = named_family("lmd.problems:LeastSquaresFamily")
    (found,) = promise_findings(solver.double(), family, 16, 0, lmd.guarantees.minimum)
    assert found.promise == "" and found.name.startswith("share within 0.01 after 10 iterations")
    assert found.value == least_share(16, 16) or found.value < 0.83


def test_the_family_of_a_trained_folder_is_that_of_its_command(tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path, card={"command": "lmd train least-squares-quadratic-10 --seed 0"})
    assert isinstance(family_of(tmp_path), LeastSquaresFamily)
    assert check(tmp_path, batch=2, iterations=12).broken == ()


def test_any_other_folder_needs_a_family(tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path)
    with pytest.raises(InputError, match=r"^family: got none, expected one to check"):
        check(tmp_path)
    assert check(tmp_path, family=LeastSquaresFamily(), batch=2, iterations=12).broken == ()


def test_a_family_can_be_named(tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path / "solver")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "check",
                str(tmp_path / "solver"),
                "--family",
                "least-squares-quadratic-10",
                "--iterations",
                "12",
                "--out",
                str(tmp_path / "out"),
            ]
        )
    assert ended.value.code == 0 and (tmp_path / "out" / "check.json").is_file()
    assert isinstance(named_family("lasso-10"), LassoFamily), "not what training drew beforehand"
    with pytest.raises(InputError, match=r"^family: got 'lass', expected one of .*did you mean lasso"):
        named_family("lass")


@pytest.mark.parametrize("card", [None, [], "text", {"command": 3}, {"command": ["lmd", "train"]}])
def test_a_card_of_another_kind_says_no_family(card, tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path, card=card)
    with pytest.raises(InputError, match=r"^family: got none, expected one to check"):
        family_of(tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(self, file, **_):
        Path(file).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(FileError, match=r"^out: got .*out \(No space left on device\)"):
        check("least-squares-quadratic-10", tmp_path / "out", batch=2, iterations=12)
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_a_broken_promise_stands_out():
    table = check_table(Diagnosis((Finding("its family", "it", 1.0, "at most 0", False), Finding("x", "y", 2.0))))
    assert table.lines[0][3] == "BROKEN: at most 0" and table.lines[1][3] == ""
