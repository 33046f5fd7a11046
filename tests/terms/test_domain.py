import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import DomainError, InputError
from lmd.mirrors import EuclideanBox
from lmd.problems.simplex import uniform_simplex
from lmd.terms import Box, Simplex
from lmd.terms.domains import project_simplex

entries = st.floats(-1e6, 1e6)
rows = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(entries, min_size=width, max_size=width), min_size=1, max_size=4)
)


class TestProjectSimplex:
    @given(rows)
    def test_is_a_point_of_the_simplex(self, x):
        point = project_simplex(torch.tensor(x, dtype=torch.float64))
        assert bool((point >= 0).all())
        assert_close(point.sum(dim=1), torch.ones(len(x), dtype=torch.float64), rtol=0, atol=1e-12)

    @given(rows, st.integers(0, 1000))
    def test_is_the_nearest_point(self, x, seed):
        """<x - P(x), z - P(x)> <= 0 for every z of the simplex says so; its vertices are enough."""
        x = torch.tensor(x, dtype=torch.float64)
        point = project_simplex(x)
        inside = uniform_simplex(len(x), x.shape[1], torch.Generator().manual_seed(seed), torch.float64)
        for z in (inside, *torch.eye(x.shape[1], dtype=torch.float64)):
            assert bool((((x - point) * (z - point)).sum(dim=1) <= 1e-9 * (1 + x.abs().amax(dim=1))).all())

    @given(rows, st.floats(-100, 100))
    def test_a_constant_added_to_a_row_changes_nothing(self, x, shift):
        x = torch.tensor(x, dtype=torch.float64)
        assert_close(project_simplex(x + shift), project_simplex(x), rtol=0, atol=1e-9)

    def test_leaves_the_simplex_alone(self):
        x = uniform_simplex(7, 5, torch.Generator().manual_seed(0), torch.float64)
        assert_close(project_simplex(x), x)

    def test_by_hand(self):
        x = torch.tensor([[2.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.6, 0.6, -3.0]])
        expected = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
        assert_close(project_simplex(x), expected)

    def test_far_away_in_float32(self):
        x = 1e4 + 0.1 * torch.rand(7, 50, generator=torch.Generator().manual_seed(0))
        assert_close(project_simplex(x).sum(dim=1), torch.ones(7), rtol=0, atol=1e-6)

    def test_derivative(self):
        x = torch.tensor([[0.3, 0.4, 0.9], [5.0, 1.0, 0.5]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(project_simplex, x)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_bad_row_stays_alone(self, bad):
        x = torch.tensor([[0.2, 0.3, 0.6], [0.1, bad, 0.2]])
        assert_close(project_simplex(x)[0], project_simplex(x[:1])[0])
        assert not bool(torch.isfinite(project_simplex(x)[1]).all())


class TestBox:
    @given(rows, st.floats(-5, 0), st.floats(0.1, 5))
    def test_projection_is_inside_and_nothing_inside_moves(self, x, low, width):
        box = Box(low, low + width)
        x = torch.tensor(x, dtype=torch.float64)
        point = box.nearest(x)
        assert bool((box.max_violation(point) <= 1e-12).all())
        assert torch.equal(box.nearest(point), point)
        inside = (x >= box.low) & (x <= box.high)
        assert torch.equal(point[inside], x[inside])

    def test_how_far_beyond_is_the_largest_per_instance(self):
        x = torch.tensor([[[0.0, 0.5], [1.0, 1.0]], [[-0.5, 0.0], [3.0, 0.0]]])
        assert_close(Box(0, 1).max_violation(x), torch.tensor([0.0, 2.0]))

    @pytest.mark.parametrize("ends", [(1, 0), (0, math.inf), ("a", 1)])
    def test_ends_have_to_be_ordered_numbers(self, ends):
        with pytest.raises(InputError, match=r"^box: got "):
            EuclideanBox(*ends)


class TestCheck:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rounding_is_forgiven(self, dtype):
        x = torch.full((3, 1000), 1e-3, dtype=dtype)
        assert Simplex().check("x", x) is x
        x = torch.full((3, 10), 1 + torch.finfo(dtype).eps, dtype=dtype)
        assert Box(0, 1).check("x", x) is x

    def test_the_instance_and_the_distance_are_named(self):
        x = torch.tensor([[0.5, 0.5], [0.75, 0.75], [0.5, 0.5]])
        with pytest.raises(
            DomainError, match=r"^x0: got instance 1, which is 0.5 outside, expected a point of the simplex"
        ):
            Simplex().check("x0", x)
        with pytest.raises(
            DomainError, match=r"^x0: got instance 1, which is 0.15 outside, expected entries between 0 and 0.6"
        ):
            Box(0, 0.6).check("x0", x)

    @pytest.mark.parametrize("x", [[[1.5, -0.5]], [[0.2, 0.2]]], ids=["negative", "sum"])
    def test_both_conditions_of_the_simplex(self, x):
        with pytest.raises(DomainError):
            Simplex().check("x", torch.tensor(x))

    def test_a_nan_is_left_to_others_but_hides_nothing(self):
        x = torch.tensor([[math.nan, 0.0], [0.5, 0.5]])
        assert Simplex().check("x", x) is x
        x[1] = 2
        with pytest.raises(DomainError, match="instance 1"):
            Simplex().check("x", x)

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
    def test_the_simplex_takes_batches_of_vectors(self, shape):
        with pytest.raises(DomainError, match=r"^x: got shape .*, expected a batch of vectors \(B, d\)$"):
            Simplex().check("x", torch.zeros(shape))
