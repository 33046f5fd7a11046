"""What `torch.compile` and `torch.export` make of learned solves: whole graphs, and the same numbers."""

import pytest
import torch

import lmd
from lmd import kernels
from lmd.solvers import LearnedDual

pytestmark = pytest.mark.filterwarnings("ignore")  # of the tracer, about itself


class Denoiser(torch.nn.Module):
    """The learned iterations of a solver on one problem, from any start."""

    def __init__(self, solver, problem):
        super().__init__()
        self.solver, self.problem = solver, problem

    def forward(self, x):
        start = self.solver.init(self.problem, x)
        return self.solver.advance(self.problem, start, self.solver.horizon).x


@pytest.fixture
def problem():
    noisy = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return lmd.problems.TVDenoising(noisy, weight=0.3)


def test_a_learned_solve_is_one_graph_with_the_same_numbers(problem):
    torch._dynamo.reset()
    model, x = Denoiser(lmd.zoo.load("denoise-7-fast", bare=True), problem), problem.start()
    with torch.no_grad():
        expected = model(x)
        found = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, expected) and not torch.equal(found, x)


def test_derivatives_are_seen_through(problem):
    torch._dynamo.reset()
    solver = LearnedDual(1, kernel=3)
    model = Denoiser(solver, problem)
    (expected,) = torch.autograd.grad(model(problem.start()).square().sum(), solver.kernels)
    traced = torch.compile(model, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(traced(problem.start()).square().sum(), solver.kernels)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7) and bool(expected.abs().sum() > 0)


def test_an_exported_solve_gives_the_same_numbers(problem):
    torch._dynamo.reset()
    model, x = Denoiser(lmd.zoo.load("denoise-7-fast", bare=True), problem), problem.start()
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=True)
        assert torch.equal(program.module()(x), model(x))
    assert ("lmd.convolve" in str(program.graph)) == (kernels.library() is not None)


@pytest.mark.skipif(kernels.library() is None, reason="there are no compiled kernels here")
def test_the_operator_keeps_what_it_promises():
    x, kernel = torch.rand(1, 2, 5, 6), torch.rand(2, 2, 3, 3)
    for operator, arguments, expected in (
        (kernels.opaque_convolve, (x, kernel), kernels.convolve(x, kernel)),
        (kernels.opaque_by_kernel, (x, x, 3), kernels._correlate(x, x, 3)),
    ):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
        assert torch.equal(operator(*arguments), expected)


@pytest.mark.parametrize("isotropic", [False, True])
def test_a_layer_is_one_graph_with_the_same_numbers_and_derivatives(problem, isotropic):
    torch._dynamo.reset()
    layer = lmd.nn.TVLayer(0.2, isotropic=isotropic, tolerance=1e-6)
    traced = torch.compile(layer, fullgraph=True, backend="aot_eager")
    answers = []
    for each in (layer, traced):
        y = problem.noisy.clone().requires_grad_()
        x = each(y)
        answers.append((x, *torch.autograd.grad(x.square().sum(), (y, layer.log_weight))))
    assert all(torch.allclose(one, other, rtol=1e-5, atol=1e-6) for one, other in zip(*answers, strict=True))
