import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.mirrors import DiagonalQuadratic, Euclidean, Mirror
from lmd.mirrors.base import DUAL_NORM, NORMS, norm_of
from lmd.terms.base import inner

X = torch.tensor([[[3.0, -4.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]])


@pytest.mark.parametrize(("norm", "expected"), [("l1", [7.0, 4.0]), ("l2", [5.0, 2.0]), ("linf", [4.0, 1.0])])
def test_norms_are_per_instance(norm, expected):
    assert_close(norm_of(X, norm), torch.tensor(expected))


@pytest.mark.parametrize("norm", NORMS)
def test_hoelder_with_the_dual_norm(norm):
    x, y = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0))
    assert bool((inner(x, y) <= norm_of(x, norm) * norm_of(y, DUAL_NORM[norm]) + 1e-6).all())
    assert DUAL_NORM[DUAL_NORM[norm]] == norm


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match=r"^norm: got 'L1', expected one of l1, l2, linf"):
        norm_of(X, "L1")


def test_inner_is_per_instance():
    assert_close(inner(X, X), torch.tensor([25.0, 4.0]))


class Quarter(Mirror):
    """Psi(x) = 1/4 sum x^4: a mirror that says only what it must."""

    def potential(self, x):
        return (x**4).flatten(1).sum(dim=1) / 4

    def to_dual(self, x):
        return x**3

    def to_primal(self, y, tolerance=None):
        return y.sign() * y.abs() ** (1 / 3)

    @property
    def strong_convexity(self):
        return torch.tensor(0.0)


def test_what_a_mirror_has_by_default():
    mirror, x, z = Quarter(), torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert mirror.is_exact and mirror.norm == "l2" and mirror.domain is None and mirror.config() == {}
    assert mirror.clipped(x) is None
    assert_close(mirror.divergence(x, z), torch.tensor([4.0 - 0.5 - (1 - 1)]))
    assert_close(mirror.inconsistency(x), torch.zeros(1), atol=1e-6, rtol=0)


def test_check_compares_with_the_parameters():
    mirror, x = DiagonalQuadratic(2), torch.zeros(1, 2)
    assert mirror.check("x0", x) is x
    assert Euclidean().check("x0", x.double()).dtype == torch.float64
    with pytest.raises(
        InputError, match=r"^x0: got torch.float64 on cpu, expected torch.float32 on cpu, as the mirror is"
    ):
        mirror.check("x0", x.double())
    with pytest.raises(InputError, match=r"^x0: got torch.float32 on meta, expected torch.float32 on cpu"):
        mirror.check("x0", x.to("meta"))
