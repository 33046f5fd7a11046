"""The learned pairs: both maps, the refined inverse, and what is promised of it."""

import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import lmd
from lmd.core.config import from_config, to_config
from lmd.errors import InputError
from lmd.mirrors import ConvPair, DensePair
from lmd.mirrors.base import norm_of
from lmd.mirrors.pairs import ResidualNetwork
from lmd.mirrors.potentials import Convolutions, Matrices
from lmd.testing.mirrors import MirrorConformance


def shaken(mirror, seed=0):
    """Other weights than the start's, as training would give, with the constraints kept."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mirror.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise.to(parameter.dtype))
    for module in mirror.modules():
        if callable(constrain := getattr(module, "constrain_", None)):
            constrain()
    return mirror


class PairConformance(MirrorConformance):
    def points(self, batch, dtype, generator):
        mirror = self.make_mirror(dtype)
        shape = (6,) if isinstance(mirror, DensePair) else (2, 6, 5)
        return torch.randn(batch, *shape, dtype=dtype, generator=generator)

    def test_what_is_learned_survives_a_solver_that_is_saved(self, tmp_path):
        solver = lmd.solvers.LearnedMirrorDescent(self.make_mirror(torch.float32), iterations=3)
        x = self.points(2, torch.float32, torch.Generator().manual_seed(0))
        loaded = lmd.solvers.load(lmd.solvers.save(solver, tmp_path))
        ours, theirs = (lmd.run(s, lambda x: x.square().flatten(1).sum(dim=1), x) for s in (solver, loaded))
        assert torch.equal(ours.x, theirs.x)


class LeakyConformance(PairConformance):
    def dual_points(self, mirror, batch, dtype, generator):
        """Gradients themselves: the gradient of a leaky potential jumps, so a midpoint of two need not be one."""
        return mirror.to_dual(self.points(batch, dtype, generator)).detach()


class TestDensePair(PairConformance):
    def make_mirror(self, dtype):
        return shaken(DensePair(6, 12, 2)).to(dtype)


class TestDensePairAtItsStart(PairConformance):
    def make_mirror(self, dtype):
        return DensePair(6, 8, 1, "gradient", 10, 2, scale=3.0).to(dtype)


class TestDensePairOfTwoGradients(PairConformance):
    def make_mirror(self, dtype):
        return shaken(DensePair(6, 12, 2, "gradient", 10, 1, scale=3.0)).to(dtype)


class TestLeakyDensePair(LeakyConformance):
    def make_mirror(self, dtype):
        return shaken(DensePair(6, 12, 2, "gradient", activation="leaky", curvature=False)).to(dtype)


class TestConvPair(PairConformance):
    def make_mirror(self, dtype):
        return shaken(ConvPair(2, 4, 1)).to(dtype)


class TestConvPairOfTwoGradients(PairConformance):
    def make_mirror(self, dtype):
        return shaken(ConvPair(2, 4, 1, "gradient", 3, 2, border="replicate")).to(dtype)


class TestLeakyConvPair(LeakyConformance):
    def make_mirror(self, dtype):
        return shaken(ConvPair(2, 3, 1, activation="leaky", kernel=5)).to(dtype)


class TestConvPairAsPublished(LeakyConformance):
    def make_mirror(self, dtype):
        options = {"activation": "leaky", "curvature": False, "reduction": "mean"}
        return shaken(ConvPair(2, 4, 2, "gradient", 5, 3, **options)).to(dtype)


class TestStart:
    @pytest.mark.parametrize("backward", ["gradient", "residual"])
    @pytest.mark.parametrize("scale", [1.0, 30.0])
    def test_both_maps_are_near_multiples_of_the_identity(self, backward, scale):
        generator = torch.Generator().manual_seed(0)
        for mirror, x in (
            (DensePair(8, backward=backward, scale=scale), torch.randn(4, 8, generator=generator)),
            (ConvPair(backward=backward, scale=scale), torch.rand(2, 3, 9, 9, generator=generator)),
        ):
            with torch.no_grad():
                assert float((norm_of(mirror.to_dual(x) - scale * x, "l2") / norm_of(scale * x, "l2")).max()) < 0.12
                assert_close(mirror.to_primal(x), x / scale, rtol=1e-6, atol=1e-6)

    def test_published_sizes_and_settings_are_written_down_whole(self):
        mirror = ConvPair.published()
        again = from_config(json.loads(json.dumps(to_config(mirror))))
        shapes = {name: tensor.shape for name, tensor in mirror.state_dict().items()}
        assert shapes == {name: tensor.shape for name, tensor in again.state_dict().items()}
        forward_net, backward_net = again.forward_net, again.backward_net
        assert (forward_net.width, forward_net.layers, forward_net.mixing) == (60, 3, 0.1)
        assert (backward_net.width, backward_net.layers, backward_net.mixing) == (75, 5, 0.5)
        assert forward_net.maps.is_mean and backward_net.maps.is_mean
        assert not forward_net.is_smooth and float(again.strong_convexity) == pytest.approx(forward_net.mixing)

    def test_published_weights_start_where_they_did(self):
        images = ConvPair.published()
        hidden = images.forward_net.gain * images.forward_net.hidden
        assert hidden.min().item() >= 0 and hidden.max().item() <= 0.001 and hidden.mean().item() > 4.9e-4
        assert images.backward_net.hidden.min().item() < 0 < images.backward_net.hidden.max().item()

    def test_the_networks_of_two_seeds_differ(self):
        one, other = DensePair(5, seed=1), DensePair(5, seed=2)
        assert not torch.equal(one.forward_net.linear, other.forward_net.linear)
        assert not torch.equal(one.backward_net.first, other.backward_net.first)


class TestRefinedInverse:
    @pytest.mark.parametrize("activation", ["smooth", "leaky"])
    @pytest.mark.parametrize("backward", ["residual", "gradient"])
    @pytest.mark.parametrize("scale", [1.0, 30.0])
    @pytest.mark.parametrize("kind", ["dense", "images"])
    def test_keeps_its_promise_on_every_instance_of_64(self, kind, scale, backward, activation):
        generator = torch.Generator().manual_seed(1)
        options = {"activation": activation, "scale": scale, "backward": backward}
        if kind == "dense":
            mirror = shaken(DensePair(10, 16, 2, **options).double())
            x = torch.randn(64, 10, dtype=torch.float64, generator=generator)
        else:
            mirror = shaken(ConvPair(1, 4, 1, **options).double())
            x = torch.rand(64, 1, 6, 6, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            y = mirror.to_dual(x)
            rough = norm_of(mirror.to_dual(mirror.to_primal(y)) - y, "l2")
            found = mirror.to_primal(y, tolerance=1e-6)  # a missed tolerance would warn, and warnings are errors here
            residual = norm_of(mirror.to_dual(found) - y, "l2")
        assert float(rough.min()) > 0.01, "there should be something to refine"
        assert float(residual.max()) <= 1e-6
        assert bool((norm_of(found - x, "l2") <= residual / mirror.strong_convexity + 1e-12).all())

    @pytest.mark.parametrize("scale", [1.0, 30.0])
    def test_of_a_smooth_pair_answers_any_dual_point(self, scale):
        mirror = shaken(DensePair(10, 16, 2, scale=scale).double())
        y = 20 * torch.randn(64, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            assert float(norm_of(mirror.to_dual(mirror.to_primal(y, tolerance=1e-6)) - y, "l2").max()) <= 1e-6

    def test_says_how_many_missed_the_tolerance_and_by_how_much(self):
        mirror = shaken(ConvPair(1, 6, 2, activation="leaky").double())
        generator = torch.Generator().manual_seed(1)
        y = mirror.to_dual(torch.randn(3, 1, 6, 6, dtype=torch.float64, generator=generator)).detach()
        y[1] = torch.randn(1, 6, 6, dtype=torch.float64, generator=generator)  # in a jump of the gradient
        y[2] = torch.nan
        words = r"^to_primal: 1 of 3 instances missed the tolerance 1e-06, the worst with a dual residual of"
        with pytest.warns(UserWarning, match=words) as seen:
            x = mirror.to_primal(y, tolerance=1e-6)
        residual = norm_of(mirror.to_dual(x) - y, "l2")[1].item()
        assert f"a dual residual of {residual:.3g}" in str(seen[0].message)
        assert seen[0].filename == __file__, "the warning should point at the caller"

    def test_of_an_instance_does_not_depend_on_its_neighbours(self):
        mirror = shaken(DensePair(6, 8, 1).double())
        y = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        together = mirror.to_primal(y, tolerance=1e-9)
        alone = torch.cat([mirror.to_primal(row[None], tolerance=1e-9) for row in y])
        assert_close(together, alone, rtol=0, atol=1e-8)


class TestResidualNetworks:
    @pytest.mark.parametrize("border", ["circular", "replicate"])
    def test_images_go_through_in_parts_and_come_out_the_same(self, border, monkeypatch):
        net = shaken(ResidualNetwork(Convolutions(2, 3, border), 5, 2).double())
        y = torch.randn(7, 2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        whole = net(y)
        monkeypatch.setattr("lmd.mirrors.potentials.MAX_CACHED_NUMBERS", 2 * 5 * 6 * 5)
        with torch.no_grad():
            assert_close(net(y), whole)

    def test_is_the_formula(self):
        net = shaken(ResidualNetwork(Matrices(3), 5, 2).double())
        y = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        g = nn.LeakyReLU(0.2)
        h = g(y @ net.first.T + net.bias[0])
        h = h + g(h @ net.hidden[0].T + net.bias[1])
        h = h + g(h @ net.hidden[1].T + net.bias[2])
        assert_close(net(y), y + h @ net.last.T)

    def test_borders_wrap_or_do_not(self):
        y = torch.randn(1, 2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        round_, flat = (
            shaken(ResidualNetwork(Convolutions(2, 3, border), 5, 2).double()) for border in ("circular", "replicate")
        )
        assert_close(round_(y.roll(2, 3)), round_(y).roll(2, 3))
        assert not torch.allclose(flat(y.roll(2, 3)), flat(y).roll(2, 3))


class TestBadArguments:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: DensePair(3, backward="magic"), "backward: got 'magic', expected one of residual, gradient"),
            (lambda: DensePair(3, scale=0), "scale: got 0, expected a positive number"),
            (lambda: DensePair(3).to_dual(torch.zeros(2, 4)), r"x: got shape \(2, 4\), expected shape \(B, 3\)"),
            (lambda: DensePair(3).to_primal(torch.zeros(2, 4)), r"y: got shape \(2, 4\), expected shape \(B, 3\)"),
            (
                lambda: ConvPair(3, 4).to_primal(torch.zeros(1, 1, 8, 8)),
                r"y: got shape \(1, 1, 8, 8\), expected images",
            ),
            (lambda: ConvPair(3, 4, kernel=2), "kernel: got 2, expected an odd number"),
            (lambda: DensePair(3).to_primal(torch.zeros(2, 3), tolerance=-1.0), "tolerance: got -1.0"),
        ],
    )
    def test_are_refused(self, make, words):
        with pytest.raises(InputError, match="^" + words):
            make()

    def test_a_start_of_another_shape_or_dtype(self):
        solver = lmd.solvers.MirrorDescent(ConvPair(1, 4))
        with pytest.raises(InputError, match=r"^x0: got shape \(2, 3, 4, 4\), expected images \(B, 1, H, W\)"):
            lmd.run(solver, lambda x: x.sum(dim=(1, 2, 3)), torch.zeros(2, 3, 4, 4))
        with pytest.raises(InputError, match=r"^x0: got torch.float64 on cpu, expected torch.float32"):
            lmd.run(solver, lambda x: x.sum(dim=(1, 2, 3)), torch.zeros(2, 1, 4, 4).double())
