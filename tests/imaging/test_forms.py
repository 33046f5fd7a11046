"""The models that `lmd.denoise` takes by words: what they minimise, in any unit, and the weight from the data."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import LmdError
from lmd.imaging.models import DenoisingModel
from lmd.problems import SecondOrderModel, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares


def picture(size=24, seed=0):
    """Blocks of grey."""
    blocks = np.random.default_rng(seed).integers(2, 9, (size // 8, size // 8)) / 10
    return np.kron(blocks, np.ones((8, 8)))


def counts(peak=30.0):
    return np.random.default_rng(1).poisson(peak * picture()).astype(np.float64)


def impulses():
    clean, drawn = picture(), np.random.default_rng(1).random((24, 24))
    return np.where(drawn < 0.1, 0.0, np.where(drawn > 0.9, 1.0, clean))


CASES = {
    "poisson": (counts, {"data": "poisson"}, lambda y: TVModel(KullbackLeibler(y), 0.3)),
    "absolute": (
        impulses,
        {"data": "absolute", "isotropic": True},
        lambda y: TVModel(Absolute(y), 0.3, isotropic=True),
    ),
    "second order": (impulses, {"order": 2}, lambda y: SecondOrderModel(Squares(y), 0.3)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_minimises_what_it_says(name):
    make, words, model = CASES[name]
    y = make()
    found, info = lmd.denoise(y, 0.3, **words, info=True)
    problem = model(torch.from_numpy(y)[None, None])
    assert found.shape == y.shape and found.dtype == y.dtype and info.relative <= 1.01e-3
    best = lmd.solve(problem, 3e-4)
    assert float(info.result.values) <= float(best.values) * (1 + 1.1e-3)
    assert_close(float(problem.value(info.result.x)), float(info.result.values))


@pytest.mark.parametrize("name", CASES)
def test_it_knows_no_unit(name):
    make, words, _ = CASES[name]
    y, unit, weight = make(), 512.0, 0.3
    linear = words.get("data") is not None
    one = lmd.denoise(y, weight, **words)
    other = lmd.denoise(unit * y, weight if linear else unit * weight, **words)
    assert_close(other / unit, one, atol=2e-3 * float(y.max()), rtol=0)


def test_weights_from_the_data_are_near_the_best():
    def error(y, weight, clean, data):
        return float(np.square(lmd.denoise(y, weight, data=data) - clean).mean())

    best = min(error(counts(), weight, 30 * picture(), "poisson") for weight in (0.1, 0.2, 0.3, 0.4, 0.6))
    assert error(counts(), "auto", 30 * picture(), "poisson") <= 1.3 * best
    assert error(impulses(), "auto", picture(), "absolute") < 0.02 * float(np.square(impulses() - picture()).mean())


def test_counts_of_bytes_are_counts():
    whole = lmd.denoise(counts().astype(np.uint8), data="poisson")
    plain = lmd.denoise(counts(), data="poisson")
    assert whole.dtype == np.uint8 and np.abs(whole - plain).max() <= 0.6


def test_a_map_of_equal_weights_is_their_weight_and_one_that_is_large_on_the_left_flattens_it():
    y = impulses()
    even = lmd.denoise(y, 0.3)
    for shape in ((24, 24), (2, 24, 24)):
        assert_close(lmd.denoise(y, np.full(shape, 0.3)), even, atol=0.02, rtol=0)
    colours = np.stack([y, y, y], axis=2)
    for shape in ((24, 24), (24, 24, 3), (2, 24, 24), (2, 24, 24, 3)):
        assert_close(lmd.denoise(colours, np.full(shape, 0.3), coupled=False)[..., 0], even, atol=0.02, rtol=0)
    left = np.full((24, 24), 1e-3)
    left[:, :12] = 10
    found, info = lmd.denoise(y, left, info=True)
    assert np.ptp(found[:, :11]) < 0.05 < np.ptp(found[:, 13:]) and "0.001 to 10" in str(info)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"data": "gauss"}, "data: got .* squares, poisson, absolute"),
        ({"order": 3}, "order: got 3, expected 1, or 2"),
        ({"order": 2, "huber": 0.1}, "huber: got 0.1 with order=2"),
        ({"data": "poisson", "noise": 0.1}, "noise: got a number with data='poisson'"),
        ({"weight": np.ones((3, 3))}, r"weight: got an array of shape \(3, 3\)"),
        ({"weight": -np.ones((24, 24))}, "weight: got an array from -1"),
        (
            {"weight": np.array([["much"]])},
            "weight: got ndarray, expected a positive number, an array of them or 'auto'",
        ),
        ({"weight": np.ones((2, 24, 24)), "isotropic": True}, "weight: got shape"),
        ({"weight": np.ones((24, 24)), "order": 2}, "weight: got"),
    ],
)
def test_what_does_not_fit_is_said(words, said):
    with pytest.raises(LmdError, match=said):
        lmd.denoise(impulses(), **words)


def test_counts_below_zero_are_refused():
    with pytest.raises(
        LmdError, match="image: got counts down to -1 with data='poisson', expected counts of 0 or more"
    ):
        lmd.denoise(counts() - 1 - counts().min(), data="poisson")


def test_the_second_order_takes_the_weight_of_the_first():
    y = torch.from_numpy(impulses())[None, None].float()
    assert torch.equal(DenoisingModel(order=2).choose(y).weight, DenoisingModel().choose(y).weight)
