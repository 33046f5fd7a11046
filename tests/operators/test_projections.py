import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import ParallelBeam
from lmd.testing.operators import OperatorConformance


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix(operator, height, width):
    """The operator on one channel, column by column."""
    unit = torch.eye(height * width, dtype=torch.float64).reshape(-1, 1, height, width)
    return operator(unit).flatten(1).T


class TestParallelBeam(OperatorConformance):
    def make_operator(self, batch, dtype):
        return ParallelBeam(4, 5, 3)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 4, 5, dtype=dtype, generator=generator)


class TestProjections:
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

    def test_leading_axes_do_not_mix(self):
        beams, x = ParallelBeam(4, 5, 3), random(2, 3, 2, 4, 5)
        assert_close(beams(x)[:, 1], beams(x[:, 1]))
        assert_close(beams(x)[:, 1, 0], beams(x[:, 1, 0]))

    def test_other_sizes_are_refused(self):
        with pytest.raises(InputError, match="shape"):
            ParallelBeam(4, 5, 3)(random(1, 1, 5, 4))
        with pytest.raises(InputError, match="shape"):
            ParallelBeam(4, 5, 3).adjoint(random(1, 1, 5, 4))
