import copy

import pytest
import torch

from lmd.problems import ControlFamily
from lmd.solvers import ADMM
from lmd.training.instances import Instances, draw, quantile
from lmd.training.proposals import ClassInfo, propose_initialisers
from lmd.training.tuning import fit_initialisers_


@pytest.fixture(scope="module")
def control():
    return Instances.solve(*draw(ControlFamily(states=2, inputs=1, horizon=5), 60, 0))


@pytest.fixture
def proposed(control):
    info = ClassInfo(control)
    return propose_initialisers(info, {"ADMM": ADMM()})


def gap(solver, instances):
    with torch.no_grad():
        return quantile(instances.errors(solver.init(instances.problem, instances.x0).x))


def test_starts_come_nearer_to_the_optima(control, proposed):
    solver, wanted = proposed
    before = gap(solver, control)
    fit_initialisers_(solver, control, wanted, 60, 0)
    assert gap(solver, control) < 0.7 * before


def test_nothing_else_of_the_solver_is_trained(control, proposed):
    solver, wanted = proposed
    before = {name: tensor.clone() for name, tensor in solver.solver.state_dict().items()}
    fit_initialisers_(solver, control, wanted, 2, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in solver.solver.state_dict().items())


def test_a_seed_gives_the_same_start(control, proposed):
    found = []
    for seed in (0, 0, 1):
        solver = copy.deepcopy(proposed[0])
        fit_initialisers_(solver, control, proposed[1], 3, seed)
        found.append(solver.start.linear.weight.detach())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_what_is_to_be_reached_is_outside_the_box_where_that_presses(control, proposed):
    (wanted,) = proposed[1]
    limit = float(control.problem.g.high.max())
    pressed = control.duals.abs() > 1e-3
    assert bool(pressed.any())
    assert bool((wanted.abs()[pressed] > limit).all()) and bool((wanted.abs()[~pressed] <= limit * 1.01).all())
