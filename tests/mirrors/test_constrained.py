import torch
from torch.testing import assert_close

import lmd
from lmd.mirrors import DiagonalBox, DiagonalQuadratic, DiagonalSimplex, EuclideanBox, EuclideanSimplex
from lmd.mirrors.base import norm_of
from lmd.problems import SimplexFamily
from lmd.problems.simplex import uniform_simplex
from lmd.testing.mirrors import MirrorConformance

DIAGONAL = (0.2, 1.0, 5.0, 2.0)


def diagonal(dtype=torch.float64):
    return torch.tensor(DIAGONAL, dtype=dtype)


class TestDiagonalBox(MirrorConformance):
    def make_mirror(self, dtype):
        return DiagonalBox(4, -1, 2, diagonal=diagonal(dtype))

    def points(self, batch, dtype, generator):
        return 3 * torch.rand(batch, 4, dtype=dtype, generator=generator) - 1


class TestDiagonalSimplex(MirrorConformance):
    def make_mirror(self, dtype):
        return DiagonalSimplex(4, diagonal=diagonal(dtype))

    def points(self, batch, dtype, generator):
        return uniform_simplex(batch, 4, generator, dtype)


def dual_points():
    return 3 * torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_with_equal_weights_they_are_the_euclidean_ones():
    y, ones = dual_points(), torch.ones(4, dtype=torch.float64)
    assert_close(DiagonalSimplex(4, diagonal=ones).to_primal(y), EuclideanSimplex().to_primal(y))
    assert_close(DiagonalBox(4, diagonal=ones).to_primal(y), EuclideanBox().to_primal(y))


def test_to_primal_is_the_bregman_projection_of_the_free_inverse():
    """argmin B(x, z) over the domain with z the free inverse, found by projected gradient; and it is never farther
    from a point of the domain than z is: the remark after the first theorem of section 3.
    """
    y, free = dual_points(), DiagonalQuadratic(4, diagonal=diagonal())
    z = free.to_primal(y)
    for mirror in (DiagonalBox(4, diagonal=diagonal()), DiagonalSimplex(4, diagonal=diagonal())):
        x = mirror.domain.nearest(z)
        for _ in range(600):
            x = mirror.domain.nearest(x - (free.to_dual(x) - y) / max(DIAGONAL))
        found = mirror.to_primal(y)
        assert_close(found, x)
        inside = mirror.domain.nearest(dual_points().flip(0))
        assert bool((free.divergence(inside, found) <= free.divergence(inside, z) + 1e-12).all())


def test_mirror_descent_on_a_weighted_simplex_finds_the_minimiser():
    problem, x0 = SimplexFamily("least-squares", 4).sample(7, torch.Generator().manual_seed(0))
    result = lmd.run(lmd.solvers.MirrorDescent(DiagonalSimplex(4, diagonal=diagonal()), 0.1), problem, x0, 300)
    assert bool((norm_of(result.x - problem.minimiser(), "l2") < 1e-6).all())
