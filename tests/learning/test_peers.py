import importlib.util

import pytest
import torch

from lmd.learning.instances import Instances, draw
from lmd.learning.peers import peers
from lmd.problems import ControlFamily, LeastSquaresFamily


def test_scipy_gets_there_on_smooth_problems():
    instances = Instances.solve(*draw(LeastSquaresFamily(torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 1.0]])), 20, 0))
    (row,) = peers(instances, 1e-3)
    assert row["method"].startswith("SciPy") and row["milliseconds"]["0.001"] == 20 * row["one"]["0.001"] > 0


@pytest.mark.skipif(importlib.util.find_spec("osqp") is None, reason="OSQP is not installed")
def test_osqp_gets_there_on_programs_in_a_box():
    (row,) = peers(Instances.solve(*draw(ControlFamily(), 20, 0)), 1e-3)
    assert row["method"].startswith("OSQP") and row["one"]["0.001"] > 0
