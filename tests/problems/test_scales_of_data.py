"""Data and weights whose squares and products a dtype cannot hold are refused; those that it can hold are solved."""

import math

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.problems import SecondOrderModel, TVDeblurring, TVDenoising, TVInpainting, TVModel
from lmd.solvers import Status
from lmd.terms import Absolute, Squares

MODELS = {
    "denoising": lambda y, unit: TVDenoising(y, 0.3 * unit),
    "inpainting": lambda y, unit: TVInpainting(y, torch.ones(6, 5), 0.3 * unit),
    "deblurring": lambda y, unit: TVDeblurring(y, torch.ones(3, 3) / 9, 0.3 * unit, box=(0.0, unit)),
    "model": lambda y, unit: TVModel(Squares(y), 0.3 * unit, huber=0.1 * unit),
    "absolute": lambda y, unit: TVModel(Absolute(y), 0.3),
    "second order": lambda y, unit: SecondOrderModel(Squares(y), 0.3 * unit),
}


def data(unit, dtype):
    return (unit * torch.rand(2, 1, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).to(dtype)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_cannot_be_squared_is_refused(name, dtype):
    exponents = (-30, -20, 18.5, 30) if dtype == torch.float32 else (-170, 155)
    for exponent in exponents:
        with pytest.raises(InputError, match=r"got a range of .*expected 0 or"):
            MODELS[name](data(10.0**exponent, dtype), 10.0**exponent)


@pytest.mark.parametrize("name", MODELS)
def test_what_can_be_squared_is_solved(name):
    for unit in (1e-12, 1e12):
        result = lmd.solve(MODELS[name](data(unit, torch.float32), unit), 1e-3)
        assert set(result.status) == {Status.TOLERANCE_REACHED}
        assert bool((result.certificate.bound <= 1.01e-3 * result.values).all())


def test_one_instance_of_a_batch_is_enough():
    y = data(1.0, torch.float32)
    y[1] *= 1e-30
    with pytest.raises(InputError, match="noisy"):
        TVDenoising(y, 0.3)
    y[1] = 7e-31  # constant: nothing is squared
    assert lmd.solve(TVDenoising(y, 0.3), 1e-3).status[1] is Status.TOLERANCE_REACHED


@pytest.mark.parametrize("weight", [1e-38, 1e38])
def test_weights_whose_products_cannot_be_held_are_refused(weight):
    with pytest.raises(InputError, match="weight: got"):
        TVDenoising(data(0.1 if weight < 1 else 10.0, torch.float32), weight)


def test_lost_pixels_do_not_count():
    y = data(1.0, torch.float32)
    y[0, 0, 0, 0] = 1e30
    mask = torch.ones(6, 5)
    mask[0, 0] = 0
    TVInpainting(y, mask, 0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("isotropic", [False, True])
def test_second_order_models_end_on_planes(dtype, isotropic):
    """A weight so large that planes are minimisers: they are proven in a few looks, whatever rounding costs."""
    y = data(1.0, dtype)
    result = lmd.solve(
        SecondOrderModel(Squares(y), 1e3 if dtype == torch.float64 else 2.0, isotropic=isotropic), 1e-4, iterations=4000
    )
    assert set(result.status) == {Status.TOLERANCE_REACHED} and int(result.iterations.max()) < 1000
    constant = lmd.solve(SecondOrderModel(Squares(torch.full_like(y, math.pi)), 0.3), 1e-4)
    assert set(constant.status) == {Status.TOLERANCE_REACHED} and not constant.certificate.bound.any()


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float32, 3e4), (torch.float64, 1e12)], ids=str)
def test_inpainting_ends_flat_where_the_weight_is_large(dtype, weight):
    y = (250 * data(1.0, torch.float64)).to(dtype)
    mask = torch.rand(6, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    result = lmd.solve(TVInpainting(y, mask, weight), 1e-4)
    assert set(result.status) == {Status.TOLERANCE_REACHED}
