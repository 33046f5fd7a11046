import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.mirrors import OneLayer
from lmd.testing.mirrors import MirrorConformance

# The pivots are not in their places, so the LU factors come with a permutation.
MATRIX = ((0.1, 1.0, 0.3), (0.2, -0.4, 1.5), (1.2, 0.5, -0.1))
WEIGHT = (0.5, 1.0, 2.0)


def permuted(dtype=torch.float64, **arguments):
    return OneLayer(3, matrix=torch.tensor(MATRIX, dtype=dtype), weight=torch.tensor(WEIGHT, dtype=dtype), **arguments)


class TestOneLayer(MirrorConformance):
    def make_mirror(self, dtype):
        return permuted(dtype)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


class TestOneLayerAtItsRandomStart(MirrorConformance):
    def make_mirror(self, dtype):
        return OneLayer.random(5, torch.Generator().manual_seed(0), alpha=0.0).to(dtype)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 5, dtype=dtype, generator=generator)


def papers_gradient(mirror, x):
    """As printed: alpha A'w + (1 - alpha) w * sigmoid(Ax), without the A' in front of the second term."""
    A, w, alpha = mirror.matrix, mirror.weight, mirror.alpha
    return alpha * w @ A + (1 - alpha) * w * torch.sigmoid(x @ A.T)


class TestGradient:
    def jacobian(self, function, x):
        return torch.autograd.functional.jacobian(lambda z: function(z[None])[0], x)

    def test_the_mended_formula_is_a_gradient_and_the_printed_one_is_not(self):
        mirror = permuted()
        x = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
        ours = self.jacobian(mirror.to_dual, x)
        printed = self.jacobian(lambda z: papers_gradient(mirror, z), x)
        assert_close(ours, ours.T)  # the Jacobian of a gradient is a Hessian, and symmetric
        assert (printed - printed.T).abs().max() > 0.1

    def test_both_agree_where_the_matrix_is_the_identity(self):
        mirror = OneLayer(3).double()
        x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert_close(mirror.to_dual(x), papers_gradient(mirror, x))


def test_the_factors_multiply_to_the_matrix():
    mirror = permuted()
    assert_close(mirror.matrix, torch.tensor(MATRIX, dtype=torch.float64))
    assert not torch.equal(mirror.permutation, torch.eye(3, dtype=torch.float64)), "the test should see a permutation"


def test_the_inverse_is_the_formula_with_a_dense_inverse():
    mirror = permuted()
    A, w = mirror.matrix, mirror.weight
    y = mirror.to_dual(torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    u = (torch.linalg.solve(A.T, y.T).T - mirror.alpha * w) / ((1 - mirror.alpha) * w)
    assert_close(mirror.to_primal(y), torch.linalg.solve(A, torch.logit(u).T).T)


class TestClipping:
    def dual(self, mirror, u):
        """The y whose u (see the class docstring) is given."""
        slope = mirror.weight * (mirror.alpha + (1 - mirror.alpha) * torch.tensor(u, dtype=torch.float64))
        return (slope @ mirror.matrix).detach()

    @pytest.mark.parametrize(
        ("u", "count"),
        [
            ([0.5, 0.1, 0.9], 0),
            ([0.0011, 0.5, 0.9989], 0),
            ([0.0009, 0.5, 0.5], 1),
            ([-0.5, 0.5, 1.5], 2),
            ([0.9999, 0.0001, 100.0], 3),
        ],
    )
    def test_entries_outside_are_counted_and_moved_to_the_margin(self, u, count):
        mirror = permuted()
        y = self.dual(mirror, [u])
        assert mirror.clipped(y).tolist() == [count]
        clipped = torch.tensor([u], dtype=torch.float64).clamp(0.001, 0.999)
        assert_close(mirror.to_primal(y), torch.linalg.solve(mirror.matrix, torch.logit(clipped).T).T)

    def test_instance_by_instance(self):
        mirror = permuted()
        y = self.dual(mirror, [[0.5, 0.5, 0.5], [2.0, 2.0, 0.5], [0.5, 0.5, 0.5]])
        assert mirror.clipped(y).tolist() == [0, 2, 0]

    def test_a_run_reports_how_often_it_left_the_domain(self):
        solver = lmd.solvers.MirrorDescent(OneLayer(2), 1.0)
        result = lmd.run(solver, lambda x: 3 * x.sum(dim=1), torch.zeros(2, 2), iterations=3)
        clipped = result.history.diagnostics["clipped"]
        assert clipped.shape == (4, 2)
        assert clipped[:3].tolist() == [[2, 2]] * 3 and bool(clipped[3].isnan().all())


class TestConstraints:
    def test_pivots_keep_their_side_of_zero_and_weights_stay_positive(self):
        mirror = OneLayer(3)
        with torch.no_grad():
            mirror.upper.diagonal().copy_(torch.tensor([-0.001, 0.001, -2.0]))
            mirror.weight.copy_(torch.tensor([-1.0, 0.005, 3.0]))
        mirror.constrain_()
        assert_close(mirror.upper.diagonal().detach(), torch.tensor([-0.01, 0.01, -2.0]))
        assert_close(mirror.weight.detach(), torch.tensor([0.01, 0.01, 3.0]))

    def test_the_random_start_satisfies_them(self):
        mirror = OneLayer.random(4, torch.Generator().manual_seed(0))
        before = {name: parameter.clone() for name, parameter in mirror.named_parameters()}
        mirror.constrain_()
        assert all(torch.equal(parameter, before[name]) for name, parameter in mirror.named_parameters())


class TestBadArguments:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"dimension": 0}, "dimension: got 0"),
            ({"dimension": 2, "alpha": 1.0}, r"alpha: got 1.0, expected a number in \[0, 1\)"),
            ({"dimension": 2, "alpha": math.nan}, "alpha: got nan"),
            ({"dimension": 2, "matrix": torch.eye(3)}, r"matrix: got shape \(3, 3\), expected shape \(2, 2\)"),
            ({"dimension": 2, "matrix": torch.ones(2, 2)}, "matrix: got a matrix that is nearly singular"),
            ({"dimension": 2, "matrix": torch.full((2, 2), math.nan)}, "matrix: got 4 non-finite entries"),
            ({"dimension": 2, "matrix": torch.eye(2, dtype=torch.int64)}, "matrix: got torch.int64"),
            ({"dimension": 2, "weight": torch.tensor([1.0, -1.0])}, "weight: got -1"),
            ({"dimension": 2, "weight": torch.ones(3)}, r"weight: got shape \(3,\), expected shape \(2,\)"),
            ({"dimension": 2, "weight": torch.tensor([1.0, math.nan])}, "weight: got 1 non-finite"),
            ({"dimension": 2, "matrix": torch.eye(2), "weight": torch.ones(2).double()}, "weight: got torch.float64"),
        ],
    )
    def test_are_refused(self, arguments, words):
        with pytest.raises(InputError, match="^" + words):
            OneLayer(**arguments)

    def test_what_was_given_is_not_learned_in_place(self):
        matrix, weight = torch.eye(2), torch.ones(2)
        mirror = OneLayer(2, matrix=matrix, weight=weight)
        with torch.no_grad():
            for parameter in mirror.parameters():
                parameter.mul_(5)
        assert torch.equal(matrix, torch.eye(2)) and torch.equal(weight, torch.ones(2))
