import json

import pytest

import lmd
from lmd.errors import InputError
from lmd.experiments.check import check, check_table, family_of
from lmd.guarantees import Diagnosis, Finding
from lmd.problems import LeastSquaresFamily
from lmd.solvers import GradientDescent


def test_a_shipped_solver_passes_and_leaves_a_table_and_a_figure(tmp_path):
    found = check("least-squares-quadratic", tmp_path / "out", batch=4, iterations=40)
    assert found.broken == ()
    written = json.loads((tmp_path / "out" / "check.json").read_text())
    assert written["broken"] == 0 and len(written["findings"]) == len(found.findings)
    assert (tmp_path / "out" / "check.png").read_bytes()[:4] == b"\x89PNG"
    table = check_table(found)
    assert len(table.lines) == len(found.findings) and any(line[3].startswith("kept: ") for line in table.lines)


def test_the_family_of_a_trained_folder_is_that_of_its_command(tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path, card={"command": "lmd train least-squares-quadratic --seed 0"})
    assert isinstance(family_of(tmp_path), LeastSquaresFamily)
    assert check(tmp_path, batch=2, iterations=12).broken == ()


def test_any_other_folder_needs_a_family(tmp_path):
    lmd.solvers.save(GradientDescent(0.03), tmp_path)
    with pytest.raises(InputError, match=r"^family: got none, expected one to check"):
        check(tmp_path)
    assert check(tmp_path, family=LeastSquaresFamily(), batch=2, iterations=12).broken == ()


def test_a_broken_promise_stands_out():
    table = check_table(Diagnosis((Finding("its family", "it", 1.0, "at most 0", False), Finding("x", "y", 2.0))))
    assert table.lines[0][3] == "BROKEN: at most 0" and table.lines[1][3] == ""
