"""Coarser grids: the problem on squares of pixels is the problem among images that are constant on them."""

import pytest
import torch
from torch.testing import assert_close

from lmd.problems import TVDenoising
from lmd.problems.tv import average_squares, refine_dual


def numbers(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_values_of_images_that_are_constant_on_squares():
    fine = TVDenoising(numbers(2, 1, 18, 20), torch.tensor([0.3, 0.1], dtype=torch.float64))
    coarse = fine.coarser()
    x = numbers(3, 2, 1, 9, 10)
    offsets = [fine.value(each.repeat_interleave(2, 2).repeat_interleave(2, 3)) - 4 * coarse.value(each) for each in x]
    assert_close(offsets[0], offsets[1])
    assert_close(offsets[0], offsets[2])


@pytest.mark.parametrize("size", [(18, 20), (17, 21)])
def test_a_dual_field_that_is_spread_moves_the_means_as_before(size):
    fine = TVDenoising(numbers(1, 2, *size), 0.3)
    coarse = fine.coarser()
    p = coarse.g.project(numbers(1, 2, 2, *coarse.noisy.shape[2:]) - 0.5)
    whole = tuple(slice(0, n // 2) for n in size)  # squares that are cut off by the border have fewer pixels
    means = average_squares(fine.differences.adjoint(refine_dual(p, *size)))[(..., *whole)]
    assert_close(means, coarse.differences.adjoint(p)[(..., *whole)])


@pytest.mark.parametrize("isotropic", [False, True])
def test_it_is_feasible(isotropic):
    fine = TVDenoising(numbers(1, 1, 17, 33), 0.3, isotropic)
    coarse = fine.coarser()
    p = fine.from_coarser(coarse.g.project(10 * numbers(1, 1, 2, *coarse.noisy.shape[2:]) - 5))
    assert_close(fine.g.project(p), p)


def test_few_pixels_and_other_axes_are_not_made_coarser():
    for shape in ((1, 1, 15, 40), (1, 1, 40), (1, 1, 16, 16, 15)):
        assert TVDenoising(numbers(*shape), 0.3).coarser() is None


def test_volumes_and_spacings_are_made_coarser_as_images_are():
    fine = TVDenoising(numbers(1, 1, 16, 18, 17), 0.3, spacing=(2.0, 1.0, 0.5))
    coarse = fine.coarser()
    x = numbers(2, 1, 1, 8, 9, 8)
    whole = [each.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat_interleave(2, 4) for each in x]
    cut = TVDenoising(fine.noisy[..., :16], 0.3, spacing=(2.0, 1.0, 0.5))
    offsets = [cut.value(one) - 8 * cut.coarser().value(each) for one, each in zip(whole, x, strict=True)]
    assert_close(*offsets)
    p = coarse.g.project(numbers(1, 1, 3, 8, 9, 9) - 0.5)
    means = average_squares(fine.differences.adjoint(refine_dual(p, 16, 18, 17)))[..., :8]
    assert_close(means, coarse.differences.adjoint(p)[..., :8])
