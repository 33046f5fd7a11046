"""PDHG with over-relaxation: what a step is, the units of its steps, and how it gets to a tolerance."""

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.operators import Differences, gaussian_kernel
from lmd.problems import Composite, LassoFamily, TVDeblurring, TVDenoising, TVInpainting
from lmd.solvers import RelaxedPDHG
from lmd.terms import L1, KullbackLeibler


def images(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    smooth = torch.rand(2, 1, 3, 3, dtype=torch.float64, generator=generator)
    large = torch.nn.functional.interpolate(smooth, size=(20, 18), mode="bilinear")
    return large + 0.05 * torch.randn(large.shape, dtype=torch.float64, generator=generator)


def masked(seed: int = 0, scale: float = 1.0) -> TVInpainting:
    noisy = images(seed)
    mask = (torch.rand(20, 18, generator=torch.Generator().manual_seed(seed)) > 0.4).double()
    return TVInpainting(scale * noisy, mask, scale * 0.2)


class Plain(RelaxedPDHG):
    relaxation = 1.0


def test_without_relaxation_it_is_pdhg() -> None:
    """The same iteration, begun at its dual half: dual points are alike, and x is one half of a step ahead."""
    problem = masked().select(0)
    ours = Plain().double()
    state = ours.init(problem, problem.start())
    x, p, tau = state.x, state.dual, float(state.tau)
    sigma = 1 / (tau * problem.operator.norm**2)
    for _ in range(4):
        state, before = ours.step(problem, state), p
        p = problem.g.conjugate_prox(p + sigma * problem.operator(x), sigma)
        x = problem.f.prox(x - tau * problem.operator.adjoint(2 * p - before), tau)
    torch.testing.assert_close((state.x, state.dual), (x, p))


def test_steps_are_in_units_of_the_problem() -> None:
    small, large = (RelaxedPDHG().double(), masked()), (RelaxedPDHG().double(), masked(scale=50.0))
    (x, _), (y, _) = ((lmd.run(solver, problem, iterations=60).x, problem) for solver, problem in (small, large))
    torch.testing.assert_close(50.0 * x, y, rtol=1e-6, atol=1e-6)


def test_relaxation_takes_fewer_iterations() -> None:
    problem = masked()
    relaxed, plain = (
        lmd.run(solver.double(), problem, tolerance=1e-4).iterations for solver in (RelaxedPDHG(), Plain())
    )
    assert bool((relaxed < 0.8 * plain).all())


@pytest.mark.parametrize("which", range(3))
def test_steps_are_balanced_where_nothing_is_known(which: int) -> None:
    lasso, _ = LassoFamily(20, 40, nonzeros=4).sample(3, torch.Generator().manual_seed(0))
    counts = 1000 * images().clamp(min=0.01)
    poisson = Composite(KullbackLeibler(counts), (L1(0.5), Differences((20, 18))), start=counts)
    problem = (lasso, TVDenoising(images(), 0.2, isotropic=True), poisson)[which]
    result = lmd.run(RelaxedPDHG().to(problem.start().dtype), problem, tolerance=1e-3, iterations=3000)
    assert [status.name for status in result.status] == ["TOLERANCE_REACHED"] * len(result.x)


def test_steps_far_from_those_of_other_terms_are_balanced_from_the_beginning() -> None:
    """Data below a box: x stays at its end, and dual points of the misfit are as large as the data, not the weight."""
    generator = torch.Generator().manual_seed(0)
    y = -torch.rand(1, 1, 9, 8, dtype=torch.float64, generator=generator)
    problem = TVDeblurring(y, gaussian_kernel(1.0), 1e-6, box=(0.0, 1.0))
    result = lmd.solve(problem, tolerance=1e-4, solver=RelaxedPDHG(), iterations=3000)
    assert result.status[0].name == "TOLERANCE_REACHED" and float(result.x.max()) == 0


def test_whatever_was_learned_it_gets_to_a_tolerance() -> None:
    problem, solver = masked(), RelaxedPDHG(4).double()
    with torch.no_grad():
        solver.numbers.copy_(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    result = lmd.solve(problem, 1e-4, solver=solver)
    assert bool((problem.relative_gap(result.x, result.dual) <= 1e-4).all())


def test_everything_it_learns_has_a_derivative() -> None:
    problem, solver = masked(), RelaxedPDHG(3).double()
    state = solver.init(problem, problem.start())
    for _ in range(3):
        state = solver.step(problem, state)
    problem.gap(state.x, state.dual).sum().backward()
    assert solver.numbers.grad is not None
    assert bool((solver.numbers.grad != 0).sum() >= 7)  # the last relaxation leads nowhere


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="ratio"):
        RelaxedPDHG(ratio=0.0)
