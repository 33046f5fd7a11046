"""What the learned solvers with a proven rest declare is what they evaluate: learned steps, the turn, the rest."""

import collections

import pytest
import torch

import lmd
from lmd.operators import gaussian_kernel
from lmd.problems import Lasso, TVDeblurring, TVDenoising, TVInpainting
from lmd.problems.image_families import random_masks
from lmd.solvers import FGP, PDHG, LearnedDual, LearnedFGP, LearnedPDHG, LearnedSaddle

METHODS, METHODS_OF_F = ("data_gradient", "dual_from"), ("tilted_minimiser", "prox")


class Counted:
    """A linear operator that counts how often it and its adjoint are evaluated."""

    def __init__(self, operator, calls):
        self.operator, self.calls = operator, calls

    def __getattr__(self, name):
        return getattr(self.operator, name)

    def __call__(self, x):
        self.calls["operator"] += 1
        return self.operator(x)

    def adjoint(self, z):
        self.calls["adjoint"] += 1
        return self.operator.adjoint(z)


class CountedTerm:
    """A term that counts how often each of some methods is called."""

    def __init__(self, term, calls):
        self.term, self.calls = term, calls

    def __getattr__(self, name):
        if name in METHODS_OF_F:
            self.calls[name] += 1
        return getattr(self.term, name)


def counting(problem):
    """The problem, and the counter of its evaluations."""
    calls = collections.Counter()

    def counted(name):
        method = getattr(problem, name)

        def answer(*arguments, **options):
            calls[name] += 1
            return method(*arguments, **options)

        return answer

    for name in METHODS:
        if hasattr(problem, name):
            setattr(problem, name, counted(name))
    differences, kind = getattr(problem, "differences", None), type(problem)
    if differences is not None:
        problem.__class__ = type(kind.__name__, (kind,), {"differences": Counted(differences, calls)})
    problem.operator, problem.f = Counted(problem.operator, calls), CountedTerm(problem.f, calls)
    return problem, calls


def random(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


NOISY = random(2, 1, 6, 7)
PROBLEMS = {
    "denoising": lambda: TVDenoising(NOISY),
    "isotropic": lambda: TVDenoising(NOISY, isotropic=True),
    "inpainting": lambda: TVInpainting(NOISY, random_masks(2, 6, 7, 0.7, torch.Generator().manual_seed(1))),
    "deblurring": lambda: TVDeblurring(NOISY, gaussian_kernel(0.7, 3)),
    "lasso": lambda: Lasso(random(5, 3), random(2, 5), 0.1),
}
PAIRS = [
    (LearnedDual(3, 3), "denoising"),
    (LearnedDual(3, 3), "isotropic"),
    (LearnedFGP(3), "denoising"),
    (LearnedFGP(3), "isotropic"),
    (LearnedSaddle(3, 3, 3), "inpainting"),
    (LearnedSaddle(3, 3, 3, masked=False), "deblurring"),
    (LearnedPDHG(3), "lasso"),
    (LearnedPDHG(3), "inpainting"),
    (FGP(restart=True), "denoising"),
    (PDHG(), "inpainting"),
]
every_pair = pytest.mark.parametrize(
    ("solver", "kind"), PAIRS, ids=[f"{type(solver).__name__}-{kind}" for solver, kind in PAIRS]
)


@every_pair
def test_costs_are_what_is_declared(solver, kind):
    """Where nothing is compiled; from the first step to some past the horizon."""
    solver = solver.double()
    problem, calls = counting(PROBLEMS[kind]())
    x0 = PROBLEMS[kind]().start()
    with torch.no_grad():
        state = solver.init(problem, x0)
        assert calls == solver.init_cost
        for _ in range(6):
            calls.clear()
            state = solver.step(problem, state)
            beyond = {name: counts.tolist() for name, counts in state.evaluations.items()}
            spent = collections.Counter(solver.step_cost)
            spent.update({name: counts[0] for name, counts in beyond.items()})
            assert calls == +spent and all(counts == [counts[0]] * 2 for counts in beyond.values())


@every_pair
def test_a_run_reports_the_same_at_once_and_step_by_step(solver, kind):
    solver = solver.double()
    problem, calls = counting(PROBLEMS[kind]())
    x0 = PROBLEMS[kind]().start()
    for iterations in (2, 3, 5):
        calls.clear()
        with torch.no_grad():
            solver.advance(problem, solver.init(problem, x0), iterations)
        for record in (True, False):
            result = lmd.run(solver, PROBLEMS[kind](), x0, iterations, record=record)
            found = {name: counts.tolist() for name, counts in result.evaluations.items() if bool(counts.any())}
            assert found == {name: [count] * 2 for name, count in calls.items()}
