"""The refined inverse: the residual it promises, the error that follows, and what it says when it cannot."""

import pytest
import torch
from torch.testing import assert_close

from lmd.mirrors.base import norm_of
from lmd.mirrors.pairs import refine
from lmd.mirrors.potentials import Convolutions, Matrices, PotentialNetwork

KINDS = {
    "dense": (lambda **options: PotentialNetwork(Matrices(20), 32, 2, **options), (20,)),
    "conv": (lambda **options: PotentialNetwork(Convolutions(2), 6, 2, **options), (2, 7, 6)),
    "conv, replicate": (
        lambda **options: PotentialNetwork(Convolutions(1, border="replicate"), 5, 1, **options),
        (1, 6, 6),
    ),
    "conv, as published": (
        lambda **options: PotentialNetwork(Convolutions(2), 6, 2, curvature=False, **options),
        (2, 6, 6),
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_activation = pytest.mark.parametrize("activation", ["leaky", "smooth"])


def random_points(kind, batch=64, seed=1, dtype=torch.float64):
    return torch.randn(batch, *KINDS[kind][1], dtype=dtype, generator=torch.Generator().manual_seed(seed))


def random_net(kind, spread, dtype=torch.float64, **options):
    """A network whose parameters are `spread` away from their start."""
    net = KINDS[kind][0](**options).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=dtype, generator=generator), alpha=spread)
    net.constrain_()
    return net


def trained_net(kind, **options):
    """A network whose gradient was fitted to a stiff map: soft thresholding, ten times as steep near zero."""
    net = KINDS[kind][0](**options).double()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.03)
    x = random_points(kind, 32, seed=5)
    for _ in range(30):
        optimiser.zero_grad()
        (net.gradient(x) - x - torch.tanh(10 * x)).square().mean().backward()
        optimiser.step()
        net.constrain_()
    return net


NETS = {
    "at the start": lambda kind, **options: random_net(kind, 0.0, **options),
    "random": lambda kind, **options: random_net(kind, 0.3, **options),
    "wild": lambda kind, **options: random_net(kind, 1.0, **options),
    "trained": trained_net,
}


def dual(net, x):
    with torch.no_grad():
        return net.gradient(x)


class TestEveryInstanceOf64:
    @every_kind
    @every_activation
    @pytest.mark.parametrize("make", NETS)
    def test_reaches_the_tolerance_and_the_error_it_promises(self, kind, activation, make):
        net, x = NETS[make](kind, activation=activation), random_points(kind)
        y = dual(net, x)
        refined = refine(net, y, start=y, tolerance=1e-6)
        assert bool(refined.converged.all()), f"residuals {refined.residual.tolist()}"
        assert_close(refined.residual, norm_of(dual(net, refined.x) - y, "l2"), rtol=1e-6, atol=1e-12)
        assert float(refined.residual.max()) <= 1e-6
        error = norm_of(refined.x - x, "l2")
        assert bool((error <= refined.residual / net.strong_convexity + 1e-12).all())

    @every_kind
    @pytest.mark.parametrize("make", ["at the start", "random", "trained"])
    def test_of_a_smooth_potential_inverts_any_y(self, kind, make):
        net = NETS[make](kind, activation="smooth")
        y = 5 * random_points(kind)
        refined = refine(net, y, start=torch.zeros_like(y), tolerance=1e-6)
        assert bool(refined.converged.all())
        assert float(norm_of(dual(net, refined.x) - y, "l2").max()) <= 1e-6

    @every_activation
    def test_finds_its_way_from_a_start_that_is_worth_nothing(self, activation):
        net, x = random_net("dense", 2.0, activation=activation), 3 * random_points("dense")
        y = dual(net, x)
        assert float(norm_of(dual(net, y) - y, "l2").min()) > 1e4
        assert bool(refine(net, y, start=y, tolerance=1e-6).converged.all())

    @every_kind
    def test_in_float32(self, kind):
        net = random_net(kind, 0.3, torch.float32, activation="leaky")
        x = random_points(kind, dtype=torch.float32)
        refined = refine(net, dual(net, x), start=x + 0.1, tolerance=1e-2)
        assert refined.x.dtype == torch.float32 and bool(refined.converged.all())


class TestInstanceByInstance:
    @every_activation
    def test_an_instance_of_a_batch_is_the_instance_alone(self, activation):
        net, x = random_net("conv", 0.3, activation=activation), random_points("conv", 5)
        y = dual(net, x)
        start = y.clone()
        start[2] = x[2]  # one that is done from the start
        together = refine(net, y, start)
        for i in range(5):
            alone = refine(net, y[i : i + 1], start[i : i + 1])
            assert_close(together.x[i : i + 1], alone.x, rtol=1e-8, atol=1e-8)
            assert together.iterations[i] == alone.iterations[0]

    def test_one_that_is_done_is_left_alone(self):
        net, x = random_net("dense", 0.3), random_points("dense", 3)
        start = torch.stack([x[0], x[1] + 1, x[2] + 1e-9])
        refined = refine(net, dual(net, x), start)
        assert refined.iterations[0] == 0 and refined.iterations[1] > 0 and refined.iterations[2] == 0
        assert torch.equal(refined.x[0], x[0]) and torch.equal(refined.x[2], start[2])

    @every_activation
    def test_a_nan_ends_unconverged_and_touches_nothing_else(self, activation):
        net, x = random_net("dense", 0.3, activation=activation), random_points("dense", 4)
        y = dual(net, x)
        y[1] = torch.nan
        refined = refine(net, y, start=torch.zeros_like(y))
        assert refined.converged.tolist() == [True, False, True, True]
        assert bool(refined.residual[1].isnan()) and refined.iterations[1] == 0
        assert float(norm_of(refined.x - x, "l2")[[0, 2, 3]].max()) < 1e-5


class TestLimits:
    def test_the_cap_is_reported_where_it_is_hit(self):
        net, x = random_net("conv", 1.0, activation="smooth"), random_points("conv", 4)
        y, start = dual(net, x), torch.zeros_like(x)
        start[3] = x[3]
        refined = refine(net, y, start, iterations=2)
        assert refined.converged.tolist() == [False, False, False, True]
        assert refined.iterations.tolist() == [2, 2, 2, 0]
        before = norm_of(dual(net, start) - y, "l2")
        assert bool((refined.residual[:3] < before[:3]).all())
        assert_close(refined.residual, norm_of(dual(net, refined.x) - y, "l2"))

    def test_a_y_inside_a_jump_is_the_gradient_nowhere_and_its_kink_is_found(self):
        """Psi(x) = 1/2 x^2 + max(x, 0.2 x): the gradient jumps from 0.2 to 1 at 0, and y = 0.6 is in between."""
        net = PotentialNetwork(Matrices(1), 1, 1, mixing=0.5, activation="leaky", curvature=False).double()
        with torch.no_grad():
            net.quadratic.zero_()
            net.out_quadratic.zero_()
            net.linear[:, 0, 0] = torch.tensor([2.0 / net.gain, 0.0])
            net.hidden.fill_(1.0)
            net.out.fill_(1.0 / net.gain_out)
            net.bias.zero_()
        x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        slopes = (dual(net, x) - 0.5 * x)[:, 0].tolist()
        y = torch.tensor([[sum(slopes) / 2]], dtype=torch.float64)
        refined = refine(net, y, start=x[:1])
        assert refined.converged.tolist() == [False] and refined.iterations[0] <= 100
        assert float(refined.residual) == pytest.approx(abs(slopes[0] - slopes[1]) / 2, rel=1e-3)
        assert abs(float(refined.x)) < 0.01

    def test_the_answer_is_never_worse_than_the_start(self):
        net = random_net("dense", 0.3, activation="leaky")
        y = random_points("dense", 16)
        start = random_points("dense", 16, seed=2)
        refined = refine(net, y, start, iterations=5)
        assert bool((refined.residual <= norm_of(dual(net, start) - y, "l2")).all())

    def test_no_graph_leads_back_and_nothing_is_changed(self):
        net, x = random_net("dense", 0.3), random_points("dense", 3).requires_grad_()
        y = net.gradient(x)
        start = torch.zeros(3, 20, dtype=torch.float64, requires_grad=True)
        refined = refine(net, y, start)
        assert not refined.x.requires_grad and bool((start == 0).all())
        assert all(parameter.grad is None for parameter in net.parameters())
