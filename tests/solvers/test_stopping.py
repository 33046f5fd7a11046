"""Stopping rules are objects: those of `lmd.run` by name, and rules of one's own, side by side."""

import math

import torch

import lmd
from lmd.problems import LeastSquares, TVDenoising
from lmd.solvers import FGP, GradientDescent, Status
from lmd.solvers.stopping import GapSchedule, StoppingRule, Target, Tolerance


def squares():
    return LeastSquares(torch.eye(2).double(), torch.zeros(3, 2).double()), torch.tensor([[1.0, 0], [4, 0], [16, 0]])


def test_the_arguments_of_run_are_such_rules():
    problem, x0 = squares()
    named = lmd.run(GradientDescent(0.1), problem, x0.double(), 200, target_value=0.5)
    given = lmd.run(GradientDescent(0.1), problem, x0.double(), 200, stop=[Target(0.5)])
    assert given.status == named.status and torch.equal(given.x, named.x)
    assert given.iterations.tolist() == named.iterations.tolist()


def test_whichever_comes_first_ends_an_instance():
    noisy = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    problem = TVDenoising(noisy, torch.tensor([0.01, 0.3]))
    values = lmd.run(FGP(), problem, tolerance=1e-6).values
    target = torch.tensor([-1.0, 1.2]) * values  # the first is never reached
    result = lmd.run(FGP(), problem, iterations=1000, stop=(Tolerance(1e-3), Target(target)))
    assert result.status == (Status.TOLERANCE_REACHED, Status.TARGET_REACHED)


class Every(StoppingRule):
    """Ends instance i after 3 (i + 1) iterations."""

    def check(self, problem, state, tracker, last):
        limit = 3 * torch.arange(1, len(state.x) + 1)
        tracker.stop(state.iteration >= limit, Status.STOPPED)


def test_a_rule_of_ones_own():
    problem, x0 = squares()
    result = lmd.run(GradientDescent(0.1), problem, x0.double(), 100, stop=[Every()])
    assert result.iterations.tolist() == [3, 6, 9] and set(result.status) == {Status.STOPPED}


def test_looks_are_before_the_tolerance_is_met_and_few():
    def looks_until(gap, tolerance):
        schedule, k, seen = GapSchedule(), 5, []
        while not gap(k) <= tolerance:
            seen.append(k)
            k += schedule.next_interval(k, gap(k) / tolerance)
        return k, seen

    for gap, met in ((lambda k: 1 / k, 1000), (lambda k: 100 / k**2, 317), (lambda k: 0.98**k, 342)):
        end, seen = looks_until(gap, 1e-3)
        assert met <= end <= 1.25 * met  # as many iterations in vain as looks at every tenth of k would cost, and room
        assert len(seen) <= 16


def test_looks_go_on_where_gaps_are_not_finite_or_rise():
    schedule = GapSchedule()
    assert schedule.next_interval(40, math.inf) == 5 and schedule.next_interval(400, math.nan) == 40
    assert schedule.next_interval(400, 100.0) == 200  # steep as it may be, it is far
    assert schedule.next_interval(800, 200.0) == 80
