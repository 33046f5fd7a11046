import math

import pytest
import torch

import lmd
from lmd.problems import QuadraticProgram
from lmd.solvers import ADMM
from lmd.solvers.classical.qp_interior_point import QPInteriorPoint

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def program(scale=1.0, unit=1.0, each=False, equal=2, dtype=F64):
    """Three programs with a box, inequalities and equations, around points that fulfil all of them."""
    P, A, inside = normal(3, 6, 6), normal(3, 5, 6, seed=1), normal(3, 6, seed=2)
    P = P @ P.mT + 1e-3 * torch.eye(6, dtype=F64)
    P, A = (P, A) if each else (P[0], A[0])
    z = (A.expand(3, 5, 6) @ inside[:, :, None])[:, :, 0]
    u = z + 0.1
    u[:, :equal] = z[:, :equal]
    l = torch.where(torch.arange(5) < equal, z, -math.inf)  # noqa: E741
    given = P * unit / scale**2, 5 * normal(3, 6, seed=3) * unit / scale, (inside - 1) * scale, math.inf, A
    return QuadraticProgram(*(each.to(dtype) if isinstance(each, torch.Tensor) else each for each in given),
                            (l * scale).to(dtype), (u * scale).to(dtype))  # fmt: skip


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("scale", "unit"), [(1.0, 1.0), (1e-9, 1e9), (1e9, 1e-9)])
def test_it_solves_programs_of_every_kind_in_any_units(each, scale, unit):
    problem = program(scale, unit, each)
    result = lmd.solve(problem, 1e-8, solver=QPInteriorPoint(), iterations=50)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
    torch.testing.assert_close(result.values, problem.value(result.x))
    alone = lmd.solve(problem.select(1), 1e-8, solver=QPInteriorPoint(), iterations=50)
    torch.testing.assert_close(alone.x, result.x[1:2], rtol=1e-4, atol=1e-4 * scale)


def test_float32_ends_as_near_as_it_can():
    result = lmd.solve(program(dtype=torch.float32), 1e-4)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"} and result.x.dtype == torch.float32


def test_equations_may_be_there_twice():
    problem = program()
    low, high = (torch.cat([getattr(term, end) for term in problem.regularisers], dim=1) for end in ("low", "high"))
    A = torch.cat([problem.operator.blocks[1].A] * 2)
    twice = QuadraticProgram(
        *problem.f.quadratic, low[:, :6], math.inf, A, low[:, 6:].repeat(1, 2), high[:, 6:].repeat(1, 2)
    )
    first, second = lmd.solve(problem, 1e-8), lmd.solve(twice, 1e-8)
    assert {status.name for status in second.status} == {"TOLERANCE_REACHED"}
    torch.testing.assert_close(first.values, second.values, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("room", [1e-7, 1e-6, 1e-5])
def test_a_bound_close_to_an_equation_does_not_hold_x_off_it(room):
    P, inside, rows = normal(40, 5, 5), normal(40, 5, seed=1), normal(40, 2, 5, seed=2)
    P = P @ P.mT + 1e-3 * torch.eye(5, dtype=F64)
    A, width = torch.cat([rows, rows[:, :1]], dim=1), normal(40, 5, seed=3).abs()
    z = (A @ inside[:, :, None])[:, :, 0]
    l, u = z.clone(), z.clone()  # noqa: E741
    l[:, 2], u[:, 2] = -math.inf, u[:, 2] + room
    problem = QuadraticProgram(P, 1e3 * normal(40, 5, seed=4), inside - width, inside + width, A, l, u)
    result = lmd.solve(problem, 1e-6, iterations=60)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}


def test_other_methods_end_at_the_same_point():
    problem, _ = lmd.problems.ControlFamily(horizon=5).sample(4, torch.Generator().manual_seed(0))
    by_admm = lmd.solve(problem, 1e-6, solver=ADMM())
    result = lmd.solve(problem, 1e-6)
    assert isinstance(result.solver, QPInteriorPoint) and int(result.iterations.max()) <= 15
    torch.testing.assert_close(result.values, by_admm.values, rtol=1e-5, atol=1e-5)


def test_it_goes_on_from_an_answer_and_stays_where_it_is_solved():
    problem, solver = program(), QPInteriorPoint()
    first = lmd.solve(problem, 1e-9)
    again = lmd.solve(problem, 1e-9, warm=first)
    assert {status.name for status in again.status} == {"TOLERANCE_REACHED"}
    state = solver.init(problem, problem.start())
    for _ in range(40):
        state = solver.step(problem, state)
    assert bool(state.settled.all()) and torch.equal(solver.step(problem, state).x, state.x)


def test_a_minimum_of_zero_is_exact_or_stalled():
    problem = QuadraticProgram(torch.eye(3, dtype=F64), torch.zeros(2, 3, dtype=F64), -1.0, 1.0)
    result = lmd.solve(problem, 1e-6)
    assert all(status.name in ("TOLERANCE_REACHED", "STALLED") for status in result.status)
    assert float(result.certificate.bound.max()) < 1e-20


def random_program(seed, spectrum, rows, slope, room):
    """64 programs with rows of lengths from 0.1 to 10, around points that fulfil them with some room."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, dtype=F64, generator=generator)

    n = len(spectrum)
    turned = torch.linalg.qr(draw(n, n))[0]
    P = (turned * torch.tensor(spectrum, dtype=F64)) @ turned.T
    A = draw(rows, n) * 10 ** draw(rows, 1)
    z = draw(64, n) @ A.T
    low, high = z - 3 * draw(64, rows).abs(), z + room * draw(64, rows).abs()
    return QuadraticProgram((P + P.T) / 2, slope * draw(64, n), A=A, l=low, u=high)


@pytest.mark.parametrize("seed", [280, 472])
def test_corrections_that_lead_in_circles_end(seed):
    """On one of the 64, Mehrotra's steps return to where they were, for ever."""
    problem = random_program(seed, [1, 1e-6], rows=4, slope=1e-3, room=1.0)
    result = lmd.solve(problem, 1e-6, solver=QPInteriorPoint(), iterations=100)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}


@pytest.mark.parametrize("seed", [33, 70])
def test_what_is_solved_stays_so(seed):
    """Steps past the last digit spread rounding: the best points must not come between two looks and be lost."""
    problem = random_program(seed, [1, 1e-2, 1e-4], rows=6, slope=1.0, room=1e-2)
    result = lmd.solve(problem, 1e-6, solver=QPInteriorPoint(), iterations=100)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
