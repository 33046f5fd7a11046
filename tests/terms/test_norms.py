import pytest
import torch

from lmd.errors import InputError
from lmd.problems import TVDenoising
from lmd.terms import L1, GroupNorm
from lmd.testing.terms import TermConformance, normal


class TestL1(TermConformance):
    def make_term(self, batch, dtype, generator):
        return L1(0.7)

    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator)


class TestL1PerInstance(TestL1):
    def make_term(self, batch, dtype, generator):
        return L1(torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype))


class TestL1PerEntry(TestL1):
    def make_term(self, batch, dtype, generator):
        weight = torch.rand(batch, 1, 3, dtype=torch.float64, generator=generator).to(dtype)
        weight[..., 1] = 0
        return L1(weight)


class TestGroupNorm(TermConformance):
    def make_term(self, batch, dtype, generator):
        return GroupNorm(0.7, axes=2)

    def points(self, term, batch, dtype, generator):
        return normal(batch, 3, 2, 2, 3, dtype=dtype, generator=generator)


class TestCoupledGroupNorm(TestGroupNorm):
    def make_term(self, batch, dtype, generator):
        return GroupNorm(torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype), axes=(1, 2))


class TestGroupNormPerGroup(TestGroupNorm):
    def make_term(self, batch, dtype, generator):
        weight = torch.rand(batch, 3, 1, 2, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.1
        return GroupNorm(weight, axes=2)


@pytest.mark.parametrize("isotropic", [False, True])
def test_norms_are_the_regulariser_of_denoising(isotropic):
    generator = torch.Generator().manual_seed(0)
    x, z, p = (torch.randn(2, 3, *more, 5, 4, generator=generator, dtype=torch.float64) for more in ((), (2,), (2,)))
    weight = torch.tensor([0.3, 0.8], dtype=torch.float64)
    problem = TVDenoising(x, weight, isotropic=isotropic)
    term = GroupNorm(weight, axes=2) if isotropic else L1(weight)
    p, q = term.project(p), problem.g.project(p)
    assert torch.equal(p, q)
    torch.testing.assert_close(term.value(z), problem.g.value(z))


def test_what_is_inside_is_not_touched():
    p = torch.tensor([[0.1, 0.7], [0.3, -0.4]])
    assert torch.equal(GroupNorm(0.75, axes=1).project(p), p)
    assert torch.equal(L1(0.75).project(p), p)


def test_lengths_have_the_derivative_0_at_0():
    z = torch.zeros(1, 2, requires_grad=True)
    for term in (L1(1.0), GroupNorm(1.0, axes=1)):
        (slope,) = torch.autograd.grad(term.value(z).sum(), z)
        assert torch.equal(slope, torch.zeros(1, 2))


def test_an_entry_without_weight_has_no_feasible_multiple():
    term = L1(torch.tensor([[1.0, 0.0]]))
    assert term.gauge(torch.tensor([[2.0, 0.0]])) == 2
    assert term.gauge(torch.tensor([[2.0, 1.0]])) == torch.inf


@pytest.mark.parametrize("axes", [0, (1, 0), -1, ("a",)])
def test_axes_do_not_mix_instances(axes):
    with pytest.raises(
        InputError, match=r"\Aaxes: got [^\n]+, expected numbers of 1 or more: axis 0 is the instance\Z"
    ):
        GroupNorm(1.0, axes)


@pytest.mark.parametrize("weight", [0.0, -1.0, torch.tensor([1.0, 0.0])])
def test_groups_need_positive_weights(weight):
    with pytest.raises(InputError, match=r"\Aweight: got [^\n]+, expected a? ?positive numbers?\Z"):
        GroupNorm(weight, 1)
