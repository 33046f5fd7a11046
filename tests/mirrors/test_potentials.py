"""The input-convex networks: their gradient written out, their convexity, and where they start."""

import math

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.mirrors.potentials import Activation, Convolutions, Matrices, PotentialNetwork
from lmd.terms.base import inner


def dense(dimension, width=64, layers=2, **options):
    return PotentialNetwork(Matrices(dimension), width, layers, **options)


def conv(channels=3, filters=32, layers=2, kernel=3, border="circular", reduction="sum", **options):
    return PotentialNetwork(Convolutions(channels, kernel, border, reduction), filters, layers, **options)


KINDS = {
    "dense": lambda **options: dense(5, 9, 3, **options),
    "conv": lambda **options: conv(2, 6, 2, **options),
    "conv, 5x5 taps, replicate": lambda **options: conv(1, 4, 2, 5, border="replicate", **options),
    "conv, 1x1 taps": lambda **options: conv(2, 6, 1, 1, **options),
    "conv, mean over pixels": lambda **options: conv(2, 6, 2, reduction="mean", **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_activation = pytest.mark.parametrize("activation", ["leaky", "smooth"])
convex_or_not = pytest.mark.parametrize("convex", [True, False])


def wild(kind, seed=0, dtype=torch.float64, **options):
    """A network after random updates of all its parameters, far from its start."""
    net = KINDS[kind](**options).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=dtype, generator=generator))
    net.constrain_()
    return net


def points(kind, batch=3, seed=1, dtype=torch.float64):
    shape = {"dense": (5,), "conv, 5x5 taps, replicate": (1, 6, 5)}.get(kind, (2, 6, 5))
    return torch.randn(batch, *shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def written_out(net, x):
    """The value by the formula of the docstring, with none of the network's own code but its parameters."""
    hidden, out = net.gain * net.hidden, net.gain_out * net.out
    g = (
        (lambda t: 0.2 * t + 0.8 * functional.softplus(t, 10, 40))
        if net.is_smooth
        else (lambda t: functional.leaky_relu(t, 0.2))
    )
    if net.is_dense:
        apply = lambda x, weight: x @ weight.T  # noqa: E731
        bias = net.bias
    else:

        def apply(x, weight):
            border = (net.maps.radius,) * 4
            return functional.conv2d(functional.pad(x, border, mode=net.maps.border) if net.maps.radius else x, weight)

        bias = net.bias[:, :, None, None]
    z = None
    for i in range(net.layers + 1):
        t = apply(x, net.linear[i]) + bias[i] + apply(x, net.quadratic[i]).square()
        z = g(t if z is None else t + apply(z, hidden[i - 1]))
    if net.is_dense:
        value = z @ out + x @ net.out_linear + (x @ net.out_quadratic).square()
    else:
        value = torch.einsum("bfhw,f->b", z, out)
        value = value / (x.shape[2] * x.shape[3]) if net.maps.is_mean else value
    c = 0.0 if net.curvature is None else net.curvature
    squares = x.square().flatten(1).sum(dim=1)
    return (1 - net.mixing) * (value + c / 2 * squares) + net.mixing / 2 * squares


class TestGradient:
    @every_kind
    @every_activation
    @convex_or_not
    @pytest.mark.parametrize("curvature", [True, False], ids=["learned curvature", "none"])
    def test_value_is_the_formula_and_gradient_is_its_gradient(self, kind, activation, convex, curvature):
        net = wild(kind, activation=activation, convex=convex, curvature=curvature)
        x = points(kind).requires_grad_()
        value = written_out(net, x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
        assert_close(net.value(x), value, rtol=1e-12, atol=1e-12)
        assert_close(net.gradient(x), gradient, rtol=1e-12, atol=1e-12)
        with torch.no_grad():
            assert_close(net.gradient(x), gradient, rtol=1e-12, atol=1e-12)
            both = net.value_and_gradient(x)
        assert_close(both, (value, gradient), rtol=1e-12, atol=1e-12)

    @every_kind
    @every_activation
    def test_training_through_it_is_autograd_of_autograd(self, kind, activation):
        net, x = wild(kind, activation=activation), points(kind).requires_grad_()
        mixture = points(kind, seed=2)
        names = [name for name, _ in net.named_parameters()]
        ours = torch.autograd.grad((net.gradient(x) * mixture).sum(), [x, *net.parameters()])
        (gradient,) = torch.autograd.grad(written_out(net, x).sum(), x, create_graph=True)
        theirs = torch.autograd.grad((gradient * mixture).sum(), [x, *net.parameters()])
        for name, one, other in zip(["x", *names], ours, theirs, strict=True):
            assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")

    @every_kind
    def test_of_a_leaky_network_records_the_way_back_alone(self, kind):
        """The slopes are constants for autograd: a graph of the forward pass would be dead weight."""
        net = wild(kind, activation="leaky")
        assert "bias" in dict(net.named_buffers()) and "bias" not in dict(net.named_parameters())
        x = points(kind)
        with torch.no_grad():
            assert not net.gradient(x).requires_grad
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            net.gradient(x)
            one_pass = sum(saved)
            saved.clear()
            wild(kind, activation="smooth").gradient(x)
        assert one_pass < 0.7 * sum(saved)

    @every_kind
    def test_sharper_and_sharper_smoothing_is_leaky(self, kind):
        net, x = wild(kind, activation="leaky"), points(kind)
        with torch.no_grad():
            value, gradient = net.value_and_gradient(x, 1e10)
        assert_close(value, net.value(x), rtol=1e-8, atol=1e-8)
        assert_close(gradient, net.gradient(x), rtol=1e-8, atol=1e-8)

    @every_activation
    def test_large_batches_go_through_in_parts(self, activation, monkeypatch):
        net, x = wild("conv", activation=activation), points("conv", batch=7)
        with torch.no_grad():
            whole = net.gradient(x)
            monkeypatch.setattr("lmd.mirrors.potentials.MAX_CACHED_NUMBERS", 3 * 6 * 6 * 5)
            assert_close(net.gradient(x), whole)
            monkeypatch.setattr("lmd.mirrors.potentials.MAX_CACHED_NUMBERS", 1)
            assert_close(net.gradient(x), whole)

    @every_kind
    @every_activation
    def test_mixed_precision_stays_near(self, kind, activation):
        net = wild(kind, activation=activation, dtype=torch.float32)
        x = points(kind, dtype=torch.float32).requires_grad_()
        exact = net.gradient(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = net.gradient(x)
            with torch.no_grad():
                quiet = net.gradient(x)
        mixed.square().sum().backward()
        assert bool(torch.isfinite(x.grad).all())
        assert (mixed - exact).norm() < 0.1 * exact.norm() and (quiet - exact).norm() < 0.1 * exact.norm()


class TestConvexity:
    @every_kind
    @every_activation
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_holds_after_random_updates_with_the_promised_constant(self, kind, activation, seed):
        net = wild(kind, seed, activation=activation)
        x, z = points(kind, 40, 3), points(kind, 40, 4)
        with torch.no_grad():
            sigma = net.strong_convexity
            slope = inner(net.gradient(x) - net.gradient(z), x - z)
            apart = (x - z).square().flatten(1).sum(dim=1)
            bow = sigma / 8 * apart
            middle, ends = net.value((x + z) / 2), (net.value(x) + net.value(z)) / 2
        assert bool((slope >= (sigma - 1e-10) * apart).all())
        assert bool((middle <= ends - bow + 1e-10).all())

    @every_kind
    def test_an_unconstrained_network_is_not_convex_and_promises_nothing(self, kind):
        net = wild(kind, convex=False, curvature=False)
        x, z = points(kind, 40, 3), points(kind, 40, 4)
        with torch.no_grad():
            net.hidden.abs_()
            net.out.fill_(-5)
            assert float(inner(net.gradient(x) - net.gradient(z), x - z).min()) < 0
        assert float(net.strong_convexity) == 0

    def test_the_constant_is_the_quadratic_term_exactly(self):
        plain = KINDS["dense"](mixing=0.3, curvature=False).double()
        assert float(plain.strong_convexity) == 0.3
        net = KINDS["dense"](mixing=0.3).double()
        with torch.no_grad():
            net.out.zero_()
            net.out_quadratic.zero_()
            net.curvature.fill_(0.7)
        x = points("dense")
        assert_close(net.value(x), net.strong_convexity / 2 * x.square().sum(dim=1))  # no more and no less
        assert float(net.strong_convexity) == pytest.approx(0.3 + 0.7 * 0.7)

    def test_clipping_is_left_to_the_owner(self):
        net = KINDS["conv"]()
        with torch.no_grad():
            net.hidden.sub_(1)
            net.out.sub_(1)
            net.curvature.sub_(3)
        before = net.hidden.clone()
        net.gradient(points("conv", dtype=torch.float32))
        assert torch.equal(net.hidden, before), "a map changed its weights"
        net.constrain_()
        assert torch.equal(net.hidden, before.clamp(min=0))
        assert net.out.min().item() == 0 and net.curvature.item() == 0

    def test_there_is_nothing_to_clip_otherwise(self):
        net = wild("dense", convex=False)
        before = [parameter.clone() for parameter in net.parameters()]
        net.constrain_()
        assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


class TestStart:
    @pytest.mark.parametrize(
        "make",
        [
            lambda **options: dense(51, 96, 4, **options),
            lambda **options: dense(500, 128, 4, **options),
            lambda **options: conv(**options),
            lambda **options: conv(3, 60, 3, **options),
        ],
        ids=["svm", "classifier", "small images", "published images"],
    )
    @every_activation
    @convex_or_not
    def test_is_near_the_identity(self, make, activation, convex):
        net = make(activation=activation, convex=convex)
        shape = (8, net.maps.points) if net.is_dense else (2, 3, 16, 16)
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            off = (net.gradient(x) - x).norm() / x.norm()
        assert off < 0.12
        if convex:
            assert off > 1e-3, "a read-out of nothing would be cut off by the first update that clips it"
        else:
            assert off < 1e-3

    def test_every_parameter_has_a_derivative_there(self):
        for net in (KINDS["dense"](), KINDS["conv"](activation="leaky")):
            x = points("dense" if net.is_dense else "conv", dtype=torch.float32)
            net.gradient(x).pow(3).sum().backward()
            assert all(bool(parameter.grad.any()) for parameter in net.parameters())

    def test_depends_on_the_seed_alone(self):
        torch.manual_seed(1)
        one = KINDS["conv"](seed=5)
        torch.manual_seed(2)
        state = torch.get_rng_state()
        same, other = KINDS["conv"](seed=5), KINDS["conv"](seed=6)
        assert torch.equal(torch.get_rng_state(), state), "the global generator was used"
        assert torch.equal(one.hidden, same.hidden) and not torch.equal(one.hidden, other.hidden)


class TestImages:
    @pytest.mark.parametrize("border", ["circular", "replicate"])
    @pytest.mark.parametrize("kernel", [1, 3, 5])
    def test_the_adjoint_of_a_convolution(self, border, kernel):
        generator = torch.Generator().manual_seed(0)
        maps, shape = Convolutions(3, kernel, border), (7, 3, kernel, kernel)
        x = torch.randn(2, 3, 5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        weight = torch.randn(shape, dtype=torch.float64, generator=generator)
        image = maps.apply(x, weight)
        u = torch.randn(image.shape, dtype=torch.float64, generator=generator)
        (derivative,) = torch.autograd.grad(image, x, u)
        assert_close(maps.adjoint(u, weight), derivative)
        assert_close(inner(image, u), inner(x, derivative))

    def test_a_pixel_depends_on_its_surroundings_alone(self):
        """What a network learned on small images it does on large ones."""
        net = wild("conv")
        large = torch.randn(1, 2, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        reach = 2 * (net.layers + 1) * net.maps.radius  # there and back
        with torch.no_grad():
            crop = net.gradient(large[..., :20, :20])
            assert_close(
                crop[..., reach:-reach, reach:-reach], net.gradient(large)[..., reach : 20 - reach, reach : 20 - reach]
            )
            tiled = net.gradient(large.repeat(1, 1, 2, 3))
            assert_close(tiled, net.gradient(large).repeat(1, 1, 2, 3))
            assert_close(net.value(large.repeat(1, 1, 2, 3)), 6 * net.value(large))

    def test_the_published_mean_is_the_sum_over_the_number_of_pixels(self):
        summed, mean = (wild("conv", reduction=r, curvature=False) for r in ("sum", "mean"))
        x = points("conv")
        with torch.no_grad():
            part = lambda net: (net.gradient(x) - 0.1 * x) / 0.9  # noqa: E731
            assert_close(part(mean), part(summed) / 30)

    def test_circular_borders_commute_with_shifts(self):
        net, x = wild("conv"), points("conv")
        with torch.no_grad():
            assert_close(net.gradient(x.roll((2, 3), (2, 3))), net.gradient(x).roll((2, 3), (2, 3)))

    @pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 2, 1, 9), (2, 2, 3, 2)])
    def test_tiny_images(self, shape):
        net = wild("conv")
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
        (gradient,) = torch.autograd.grad(written_out(net, x).sum(), x)
        assert_close(net.gradient(x), gradient)


class TestActivation:
    def test_smooth_lies_between_leaky_and_leaky_plus_its_gap(self):
        t = torch.linspace(-3, 3, 601, dtype=torch.float64)
        gap = Activation(8.0)(t) - Activation()(t)
        assert float(gap.min()) >= 0 and float(gap.max()) == pytest.approx(0.8 * math.log(2) / 8)

    @pytest.mark.parametrize("beta", [None, 0.5, 10.0, 1e4])
    def test_pull_back_is_the_derivative(self, beta):
        activation = Activation(beta)
        t = torch.linspace(-3, 3, 600, dtype=torch.float64, requires_grad=True)
        p = torch.linspace(-1, 2, 600, dtype=torch.float64)
        (derivative,) = torch.autograd.grad(activation(t), t, p)
        assert_close(activation.pull_back(p, t), derivative)

    def test_far_out_nothing_overflows(self):
        t = torch.tensor([-1e300, -1e5, 1e5, 1e300], dtype=torch.float64)
        assert_close(Activation(10.0)(t), functional.leaky_relu(t, 0.2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dense(0), "dimension: got 0"),
        (lambda: dense(2, 0), "width: got 0"),
        (lambda: dense(2, layers=0), "layers: got 0"),
        (lambda: dense(2, mixing=0), r"mixing: got 0, expected a number in \(0, 1\)"),
        (lambda: dense(2, mixing=math.nan), "mixing: got nan"),
        (lambda: dense(2, activation="relu"), "activation: got 'relu', expected one of leaky, smooth"),
        (lambda: dense(2, seed=-1), "seed: got -1"),
        (lambda: conv(0), "channels: got 0"),
        (lambda: conv(filters=0), "width: got 0"),
        (lambda: conv(kernel=4), "kernel: got 4, expected an odd number"),
        (lambda: conv(border="zero"), "border: got 'zero', expected one of circular, replicate"),
        (lambda: conv(reduction="max"), "reduction: got 'max', expected one of sum, mean"),
        (lambda: dense(2).gradient(torch.zeros(1, 3)), r"x: got shape \(1, 3\), expected shape \(B, 2\)"),
        (lambda: conv(2).value(torch.zeros(1, 3, 4, 4)), r"x: got shape \(1, 3, 4, 4\), expected images \(B, 2, H"),
        (lambda: conv(2).value(torch.zeros(2, 4, 4)), r"x: got shape \(2, 4, 4\), expected images"),
        (lambda: conv(2, kernel=7).value(torch.zeros(1, 2, 2, 9)), r".* of at least 3 pixels each way"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(InputError, match="^" + words):
        make()
