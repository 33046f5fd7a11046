import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import Blur, gaussian_kernel, motion_kernel
from lmd.testing.operators import OperatorConformance


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(operator, height, width):
    """The operator on one channel, column by column."""
    unit = torch.eye(height * width, dtype=torch.float64).reshape(-1, 1, height, width)
    return operator(unit).flatten(1).T


def by_loops(kernel, x, border):
    """The formula of the docstring."""
    (h, w), (H, W) = kernel.shape, x.shape
    out = torch.zeros_like(x)
    for i in range(H):
        for j in range(W):
            for a in range(h):
                for b in range(w):
                    row, column = i + h // 2 - a, j + w // 2 - b
                    if border == "circular":
                        row, column = row % H, column % W
                    else:
                        row, column = min(max(row, 0), H - 1), min(max(column, 0), W - 1)
                    out[i, j] += kernel[a, b] * x[row, column]
    return out


KERNELS = {
    "gaussian": gaussian_kernel(0.8, 5),
    "even": torch.rand(2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    "diagonal": torch.eye(3, dtype=torch.float64) / 3,
    "signed": random(3, 3, seed=2),
    "row": random(1, 3, seed=3),
    "one": torch.ones(1, 1, dtype=torch.float64),
}


@pytest.mark.parametrize("border", ["circular", "replicate"])
@pytest.mark.parametrize("name", KERNELS)
class TestAgainstTheFormula:
    def test_it_is_the_formula(self, name, border):
        x = random(2, 2, 5, 6)
        found = Blur(KERNELS[name], 5, 6, border)(x)
        assert_close(found[1, 0], by_loops(KERNELS[name], x[1, 0], border))
        assert_close(found[0, 1], by_loops(KERNELS[name], x[0, 1], border))

    def test_the_norm_is_a_bound_and_near(self, name, border):
        operator = Blur(KERNELS[name], 5, 6, border)
        true = float(torch.linalg.matrix_norm(matrix(operator, 5, 6), 2))
        assert true <= operator.norm
        if name != "signed":
            assert operator.norm <= 1.02 * true


class Blurred(OperatorConformance):
    kernel, border = "gaussian", "circular"

    def make_operator(self, batch, dtype):
        return Blur(KERNELS[self.kernel], 5, 6, self.border)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 5, 6, dtype=dtype, generator=generator)


class TestGaussian(Blurred):
    pass


class TestGaussianReplicate(Blurred):
    border = "replicate"


class TestEven(Blurred):
    kernel, border = "even", "replicate"

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 5, 6, dtype=dtype, generator=generator)


class TestDiagonal(Blurred):
    kernel = "diagonal"


class TestSigned(Blurred):
    kernel, border, norm_is_tight = "signed", "replicate", False  # the norm is that of the absolute entries


class TestOnePixel(Blurred):
    kernel = "one"


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), height=st.integers(5, 9), width=st.integers(5, 9), name=st.sampled_from([*KERNELS]))
@pytest.mark.parametrize("border", ["circular", "replicate"])
def test_the_adjoint_is_one_at_any_size(border, seed, height, width, name):
    operator = Blur(KERNELS[name], height, width, border)
    x, z = random(2, 3, height, width, seed=seed), random(2, 3, height, width, seed=seed + 1)
    assert_close((operator(x) * z).sum(), (x * operator.adjoint(z)).sum())


def test_a_kernel_that_is_nearly_of_rank_one_is_not_taken_for_it():
    kernel, x = gaussian_kernel(0.8, 5) + 1e-13 * random(5, 5), random(1, 1, 9, 9)
    exact = by_loops(kernel, x[0, 0], "circular")
    assert float((Blur(kernel, 9, 9)(x)[0, 0] - exact).abs().max()) < 3e-15


@pytest.mark.parametrize("width", [0.3, 0.8, 1.5, 3.0, 10.0])
def test_gaussians_are_of_rank_one(width):
    assert len(Blur(gaussian_kernel(width), 70, 70)._passes) == 2


def test_leading_axes_do_not_mix():
    operator, x = Blur(KERNELS["diagonal"], 5, 6), random(2, 3, 2, 5, 6)
    assert_close(operator(x)[:, 1], operator(x[:, 1]), rtol=0, atol=0)
    assert_close(operator(x)[:, 1, 0], operator(x[:, 1, 0]), rtol=0, atol=0)


def test_bad_kernels():
    with pytest.raises(InputError, match="kernel"):
        Blur(torch.zeros(3, 3), 5, 5)
    with pytest.raises(InputError, match="kernel"):
        Blur(torch.ones(3), 5, 5)
    with pytest.raises(InputError, match="at most the size"):
        Blur(torch.ones(7, 1), 5, 5)
    with pytest.raises(InputError, match="circular"):
        Blur(torch.ones(1, 1), 5, 5, "zero")
    with pytest.raises(InputError, match="expected one of circular, replicate"):
        Blur(torch.ones(1, 1), 5, 5, "replicated")
    with pytest.raises(InputError, match=r"x: got shape \(1, 1, 6, 6\), expected shape \(B, ..., 5, 5\)"):
        Blur(torch.ones(1, 1), 5, 5)(torch.ones(1, 1, 6, 6))
    with pytest.raises(InputError, match="width"):
        gaussian_kernel(-1.0)


def test_a_gaussian_sums_to_one_and_has_its_deviation():
    kernel = gaussian_kernel(1.5)
    at = torch.arange(len(kernel), dtype=torch.float64) - len(kernel) // 2
    assert_close(kernel.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert float((kernel.sum(1) * at.square()).sum().sqrt()) == pytest.approx(1.5, rel=0.02)


class TestMotion:
    @pytest.mark.parametrize(("length", "angle"), [(0.5, 0.0), (1.0, 1.0), (5.0, 0.3), (9.3, 2.0), (8.0, -1.0)])
    def test_it_sums_to_one_and_is_the_same_forwards_and_backwards(self, length, angle):
        kernel = motion_kernel(length, angle)
        assert_close(kernel.sum(), torch.tensor(1.0, dtype=torch.float64))
        assert_close(kernel, kernel.flip(0, 1))
        assert float(kernel.min()) >= 0 and kernel.shape == (2 * math.ceil(length / 2) + 1,) * 2

    def test_rightwards_is_a_row_and_upwards_a_column(self):
        right, up = motion_kernel(5.0, 0.0), motion_kernel(5.0, math.pi / 2)
        assert_close(right[3], torch.tensor([0.1, 1, 1, 1, 1, 1, 0.1], dtype=torch.float64) / 5, atol=0.08, rtol=0)
        assert not right[:3].any() and not right[4:].any()
        assert_close(up, right.T)

    def test_angles_turn_from_rightwards_to_upwards(self):
        kernel = motion_kernel(7.0, math.pi / 4)
        assert float(kernel.flip(0).diagonal().sum()) > 0.6 > 0.2 > float(kernel.diagonal().sum())  # row 0 is the top

    def test_its_length_is_what_was_asked_for(self):
        kernel = motion_kernel(12.0, 0.0)
        at = torch.arange(-6, 7, dtype=torch.float64)
        deviation = float((kernel.sum(0) * at.square()).sum().sqrt())
        assert deviation == pytest.approx(math.sqrt(12**2 / 12 + 1 / 6), rel=0.01)  # of the line, and of the sharing

    def test_bad_arguments(self):
        with pytest.raises(InputError, match=r"^length: got 0"):
            motion_kernel(0.0, 1.0)
        with pytest.raises(InputError, match=r"^angle: got nan"):
            motion_kernel(3.0, math.nan)
