import pytest
import torch
from torch.testing import assert_close

from lmd.errors import DomainError, InputError
from lmd.mirrors import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.problems.simplex import uniform_simplex
from lmd.terms.domains import project_simplex
from lmd.testing.mirrors import MirrorConformance


class TestEuclidean(MirrorConformance):
    def make_mirror(self, dtype):
        return Euclidean()

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


class TestEuclideanOnImages(TestEuclidean):
    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, 4, 5, dtype=dtype, generator=generator)


class TestEuclideanBox(MirrorConformance):
    def make_mirror(self, dtype):
        return EuclideanBox(-1.0, 2.0)

    def points(self, batch, dtype, generator):
        return 3 * torch.rand(batch, 2, 4, dtype=dtype, generator=generator) - 1


class TestEuclideanSimplex(MirrorConformance):
    def make_mirror(self, dtype):
        return EuclideanSimplex()

    def points(self, batch, dtype, generator):
        return uniform_simplex(batch, 4, generator, dtype)


def test_both_maps_are_the_identity():
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Euclidean().to_dual(x), x) and torch.equal(Euclidean().to_primal(x), x)


def test_the_inverse_of_the_box_clips():
    y = torch.tensor([[-3.0, 0.5, 3.0]])
    assert_close(EuclideanBox(-1, 2).to_primal(y), torch.tensor([[-1.0, 0.5, 2.0]]))


def test_the_inverse_of_the_simplex_projects():
    y = torch.tensor([[1.0, 1.0, -5.0], [3.0, 0.0, 0.0]])
    assert_close(EuclideanSimplex().to_primal(y), torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
    assert torch.equal(EuclideanSimplex().to_primal(y), project_simplex(y))


def test_far_dual_points_in_float32_come_back_inside():
    y = 1e5 * torch.randn(7, 20, generator=torch.Generator().manual_seed(0))
    mirror = EuclideanSimplex()
    mirror.to_dual(mirror.to_primal(y))  # raises where it is outside


def test_bad_ends():
    with pytest.raises(InputError, match=r"^box: got \(2, 1\)"):
        EuclideanBox(2, 1)


def test_outside_is_named():
    with pytest.raises(DomainError, match=r"^x: got instance 1, which is 1 outside, expected entries between 0 and 1$"):
        EuclideanBox().to_dual(torch.tensor([[0.5], [2.0]]))
