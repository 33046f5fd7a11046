import importlib.util

import pytest
import torch

from lmd.operators import Identity
from lmd.problems import ControlFamily, LeastSquaresFamily, QuadraticProgram
from lmd.problems.base import Family
from lmd.problems.composite import Composite
from lmd.terms import Box, Quadratic
from lmd.training import card as module
from lmd.training.card import peers
from lmd.training.instances import Instances, draw


class Programs(Family):
    """Programs in a box that are not alike in one thing."""

    name = "programs"

    def __init__(self, own):
        self.own = own

    def sample(self, batch, generator):
        P, q = ControlFamily(horizon=5).sample(batch, generator)[0].quadratic
        drawn = 0.1 + torch.rand(batch, q.shape[1], generator=generator)
        if self.own == "matrices":
            problem = QuadraticProgram(P + 0.1 * torch.diag_embed(drawn), q, -0.5, 0.5)
        elif self.own == "bounds":
            problem = QuadraticProgram(P, q, -drawn, drawn)
        else:
            end = 0.5 if self.own == "nothing" else drawn[:, 0]
            problem = Composite(Quadratic(P, q), (Box(-end, end), Identity()), start=torch.zeros_like(q))
        return problem, torch.zeros_like(q)


def test_scipy_gets_there_on_smooth_problems():
    instances = Instances.solve(*draw(LeastSquaresFamily(torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])), 20, 0))
    (row,) = peers(instances, 1e-3)
    assert row["method"].startswith("SciPy") and row["milliseconds"]["0.001"] == 20 * row["one"]["0.001"] > 0


@pytest.mark.skipif(importlib.util.find_spec("osqp") is None, reason="OSQP is not installed")
def test_osqp_gets_there_on_programs_in_a_box():
    (row,) = peers(Instances.solve(*draw(ControlFamily(), 20, 0)), 1e-3)
    assert row["method"].startswith("OSQP") and row["one"]["0.001"] > 0


@pytest.mark.skipif(importlib.util.find_spec("osqp") is None, reason="OSQP is not installed")
@pytest.mark.parametrize("own", ["nothing", "matrices", "bounds", "a bound"])
def test_osqp_gets_there_whatever_each_program_has_of_its_own(own):
    said = []
    (row,) = peers(Instances.solve(*draw(Programs(own), 20, 0)), 1e-3, said.append)
    assert row["one"]["0.001"] > 0 and said == []


def test_a_peer_that_takes_too_long_is_left_out_and_named():
    said = []
    instances = Instances.solve(*draw(LeastSquaresFamily(torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])), 20, 0))
    assert peers(instances, 1e-3, said.append, seconds=0) == []
    assert said == ["SciPy L-BFGS-B is left out: TimeoutError, more than 0 s for 20 instances"]


def test_a_peer_that_fails_is_left_out_and_named(monkeypatch):
    def broken(tolerance, part):
        raise ValueError("two\nlines")

    monkeypatch.setattr(module, "_scipy", broken)
    said = []
    family = LeastSquaresFamily(torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]]))
    assert peers(Instances.solve(*draw(family, 20, 0)), 1e-3, said.append) == []
    assert said == ["SciPy L-BFGS-B is left out: ValueError, two lines"]
