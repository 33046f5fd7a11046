"""What holds of every term for any numbers: data, weights, points and steps over many orders of magnitude."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from lmd.terms import L1, Absolute, Box, GroupNorm, Hinge, Huber, KullbackLeibler, Shifted, Simplex, Squares
from lmd.terms.base import inner, size_of
from lmd.terms.domains import project_simplex
from lmd.terms.squares import MaskedSquares
from lmd.terms.wrappers import Stacked

F64 = torch.float64
SHAPE = (3, 2, 4)


class Draw:
    """Random arrays of a seed whose instances have sizes of their own, from 10^-low to 10^high."""

    def __init__(self, seed, low=4, high=4, offset=0.0):
        self.generator, self.low, self.high = torch.Generator().manual_seed(seed), low, high
        self.offset = offset

    def sizes(self):
        exponents = self.low + (self.low + self.high) * (torch.rand(3, 1, 1, generator=self.generator) - 1)
        return 10**exponents

    def signed(self):
        return self.sizes() * torch.randn(SHAPE, generator=self.generator)

    def positive(self):
        return self.sizes().flatten() * (0.1 + torch.rand(3, generator=self.generator))

    def data(self):
        return self.offset + self.signed()

    def mask(self):
        return (torch.rand(SHAPE, generator=self.generator) > 0.3).float()


def squares(draw):
    y = draw.data()
    return Squares(y, draw.positive(), 0.1 + draw.mask()), y + draw.signed()


def masked_squares(draw):
    y = draw.data()
    return Squares(y, draw.positive(), draw.mask()), y + draw.signed()


def boxed_squares(draw):
    y, mask = draw.data(), draw.mask()
    mask[..., 0] = 1
    term = MaskedSquares(y, mask, float(draw.positive()[0]))
    return term, term.nearest(y + draw.signed())


def absolute(draw):
    y = draw.data()
    return Absolute(y, draw.positive()), y + draw.signed()


def l1(draw):
    return L1(draw.mask() * draw.positive()[:, None, None]), draw.signed()


def group_norm(draw):
    return GroupNorm(draw.positive(), 1), draw.signed()


def huber(draw):
    y = draw.data()
    return Shifted(Huber(draw.positive(), draw.positive(), (1, 2)), y), y + draw.signed()


def hinge(draw):
    return Hinge(draw.positive()), 1 + draw.signed()


def kullback_leibler(draw):
    background = draw.positive()
    y = (draw.mask() * draw.signed()).abs().round()
    return KullbackLeibler(y, background), draw.signed().abs() - background[:, None, None] / 2


def box(draw):
    low = draw.data()
    high = low + draw.signed().abs()
    return Box(low, high), torch.minimum(torch.maximum(low + draw.signed(), low), high)


def box_of_numbers(draw):
    return Box(-0.1, 0.7), draw.signed().clamp(-0.1, 0.7)


def half_line(draw):
    return Box(0.1, math.inf), draw.signed().clamp(min=0.1)


def simplex(draw):
    return Simplex(), project_simplex(draw.signed())


def stacked(draw):
    parts = [Squares(draw.signed()[:, 0], draw.positive()), L1(draw.positive())]
    return Stacked(parts, ((4,), (2, 2)), (0.3, 7.0)), draw.signed().flatten(1)


EVERY = [
    squares,
    masked_squares,
    boxed_squares,
    absolute,
    l1,
    group_norm,
    huber,
    hinge,
    kullback_leibler,
    box,
    box_of_numbers,
    half_line,
    simplex,
    stacked,
]
every_term = pytest.mark.parametrize("make", EVERY, ids=lambda make: make.__name__)
seeds = st.integers(0, 2**31)
offsets = st.sampled_from([0.0, 100.0, 2.0**24])


def dual_points(term, z, draw):
    """Random, near a subgradient, and at a prox: all in the domain of h*."""
    noise = draw.signed().reshape(z.shape)
    near = torch.where(term.value(z).isfinite().reshape(-1, *(1,) * (z.ndim - 1)), term.subgradient(z), 0)
    return [term.project(p) for p in (noise, near, near + 1e-3 * noise, 0 * z)]


@every_term
@settings(max_examples=15)
@given(seed=seeds, offset=offsets)
def test_the_residual_is_not_negative_and_within_its_rounding(make, seed, offset):
    draw = Draw(seed, offset=offset)
    term, z = make(draw)
    whole, none = term.double(), z.new_zeros(len(z))
    for p in dual_points(term, z, draw):
        computed = term.residual(z, p)
        true = whole.residual(z.double(), whole.project(p.double()))
        allowed = term.rounding(z, p, none, none, computed).double()
        assert bool((computed >= 0).all()) and not bool(allowed.isnan().any())
        assert bool((true <= computed.double() + allowed).all()), (true, computed, allowed)


@every_term
@settings(max_examples=15)
@given(seed=seeds, exponent=st.floats(-12, 0))
def test_points_that_are_off_are_within_rounding(make, seed, exponent):
    draw = Draw(seed)
    term, z = make(draw)
    term, z = term.double(), z.double()
    w = z.lerp(term.prox(z + draw.signed().reshape(z.shape), 1e-9), 10**exponent)
    for p in (x.double() for x in dual_points(term, z, draw)):
        q = term.project(p + 10**exponent * draw.signed().reshape(z.shape))
        p = term.project(p)
        computed, moved = term.residual(z, p), term.residual(w, q)
        allowed = term.rounding(z, p, size_of(w - z), size_of(q - p), computed)
        assert bool((moved <= computed + allowed).all()), (moved, computed, allowed)


@every_term
@settings(max_examples=15)
@given(seed=seeds, exponent=st.floats(-8, 8))
def test_proxes_are_firmly_nonexpansive(make, seed, exponent):
    """<Px - Py, x - y> >= ||Px - Py||^2, which with Moreau's identity is what makes a map a prox's."""
    draw = Draw(seed)
    term, z = make(draw)
    term, x, step = term.double(), z.double() + draw.signed().reshape(z.shape), 10**exponent
    y = x + draw.signed().reshape(z.shape)
    for method in (term.prox, term.conjugate_prox):
        answers = method(x, step), method(y, step)
        moved = answers[0] - answers[1]
        sizes = size_of(x) + size_of(y) + size_of(answers[0]) + size_of(answers[1])
        assert bool((inner(moved, moved - (x - y)) <= 1e-12 * sizes.square()).all())
    v = term.prox(x, step)
    off = v + step * term.conjugate_prox(x / step, 1 / step) - x
    assert bool((size_of(off) <= 1e-12 * (size_of(x) + size_of(v) + 1)).all())
