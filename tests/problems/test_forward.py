import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.problems import Blur, ParallelBeam, gaussian_kernel
from lmd.problems.forward import Stacked
from lmd.problems.operators import FiniteDifferences


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


@pytest.mark.parametrize("border", ["circular", "replicated"])
@pytest.mark.parametrize("name", KERNELS)
class TestBlur:
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

    @settings(max_examples=10)
    @given(seed=st.integers(0, 10_000), height=st.integers(5, 9), width=st.integers(5, 9))
    def test_the_adjoint_is_one(self, name, border, seed, height, width):
        operator = Blur(KERNELS[name], height, width, border)
        x, z = random(2, 3, height, width, seed=seed), random(2, 3, height, width, seed=seed + 1)
        assert_close((operator(x) * z).sum(), (x * operator.adjoint(z)).sum())

    def test_float32_and_derivatives(self, name, border):
        operator = Blur(KERNELS[name], 5, 6, border)
        x = random(1, 1, 5, 6)
        assert_close(operator(x.float()), operator(x).float())
        assert torch.autograd.gradcheck(operator, x.requires_grad_())


def test_bad_kernels():
    with pytest.raises(InputError, match="kernel"):
        Blur(torch.zeros(3, 3), 5, 5)
    with pytest.raises(InputError, match="kernel"):
        Blur(torch.ones(3), 5, 5)
    with pytest.raises(InputError, match="at most the size"):
        Blur(torch.ones(7, 1), 5, 5)
    with pytest.raises(InputError, match="circular"):
        Blur(torch.ones(1, 1), 5, 5, "zero")
    with pytest.raises(InputError, match="width"):
        gaussian_kernel(-1.0)


def test_a_gaussian_sums_to_one_and_has_its_deviation():
    kernel = gaussian_kernel(1.5)
    at = torch.arange(len(kernel), dtype=torch.float64) - len(kernel) // 2
    assert_close(kernel.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert float((kernel.sum(1) * at.square()).sum().sqrt()) == pytest.approx(1.5, rel=0.02)


class TestParallelBeam:
    @pytest.mark.parametrize(("height", "width", "angles"), [(6, 7, 5), (1, 8, 3), (1, 1, 1), (5, 5, 2)])
    def test_the_norm_is_a_bound_and_near(self, height, width, angles):
        beams = ParallelBeam(height, width, angles)
        true = float(torch.linalg.matrix_norm(matrix(beams, height, width), 2))
        assert true <= beams.norm <= 1.001 * true

    @settings(max_examples=20)
    @given(seed=st.integers(0, 10_000), height=st.integers(1, 9), width=st.integers(1, 9), angles=st.integers(1, 6))
    def test_the_adjoint_is_one(self, seed, height, width, angles):
        beams = ParallelBeam(height, width, angles)
        x, z = random(2, 2, height, width, seed=seed), random(2, 2, angles, beams.detectors, seed=seed + 1)
        assert_close((beams(x) * z).sum(), (x * beams.adjoint(z)).sum())

    def test_angles_0_and_90_are_the_sums_of_columns_and_rows(self):
        x = random(1, 2, 5, 7)
        seen = ParallelBeam(5, 7, 2)(x) * math.sqrt(2)
        middle = ParallelBeam(5, 7, 2).detectors // 2
        assert_close(seen[0, :, 0, middle - 3 : middle + 4], x[0].sum(1))
        assert_close(seen[0, :, 1, middle - 2 : middle + 3], x[0].sum(2).flip(1))

    def test_every_angle_sees_all_of_the_image(self):
        x = torch.rand(3, 1, 6, 9, dtype=torch.float64)
        seen = ParallelBeam(6, 9, 12)(x) * math.sqrt(12)
        assert_close(seen.sum(3), x.sum((2, 3))[..., None].expand(3, 1, 12))

    def test_a_turned_image_has_a_shifted_sinogram(self):
        x = random(1, 1, 7, 7)
        beams = ParallelBeam(7, 7, 4)
        assert_close(beams(x.rot90(1, (2, 3)))[:, :, 2:], beams(x)[:, :, :2])

    def test_float32_and_derivatives(self):
        beams = ParallelBeam(4, 5, 3)
        x = random(1, 1, 4, 5)
        assert_close(beams(x.float()), beams(x).float())
        assert torch.autograd.gradcheck(beams, x.requires_grad_())

    def test_other_sizes_are_refused(self):
        with pytest.raises(InputError, match="shape"):
            ParallelBeam(4, 5, 3)(random(1, 1, 5, 4))
        with pytest.raises(InputError, match="shape"):
            ParallelBeam(4, 5, 3).adjoint(random(1, 1, 5, 4))


class TestStacked:
    def operator(self):
        beams = ParallelBeam(4, 5, 3)
        return Stacked(FiniteDifferences(4, 5), beams, torch.Size((3, beams.detectors)), 0.7)

    def test_it_holds_both_parts(self):
        operator, x = self.operator(), random(2, 2, 4, 5)
        differences, measurements = operator.split(operator(x))
        assert_close(differences, operator.differences(x))
        assert_close(measurements, 0.7 * operator.forward(x))
        assert_close(operator.join(differences, measurements), operator(x), rtol=0, atol=0)

    def test_adjoint_norm_and_derivatives(self):
        operator, x = self.operator(), random(2, 2, 4, 5)
        z = torch.randn_like(operator(x))
        assert_close((operator(x) * z).sum(), (x * operator.adjoint(z)).sum())
        true = float(torch.linalg.matrix_norm(matrix(operator, 4, 5), 2))
        assert true <= operator.norm
        assert torch.autograd.gradcheck(operator, x.requires_grad_())
        assert torch.autograd.gradcheck(operator.adjoint, z.requires_grad_())
