"""Splitting with Fourier transforms: spectra, what a step is, where it ends, what it needs."""

import pytest
import torch

import lmd
from lmd.errors import CapabilityError
from lmd.operators import Blur, Differences, ParallelBeam, gaussian_kernel
from lmd.operators.blur import motion_kernel
from lmd.problems import TVDeblurring, TVTomography
from lmd.solvers import PDHG
from lmd.solvers.classical.admm import CirculantADMM


def deblurring(kind=torch.float64, isotropic=False, border="circular", weight=0.01):
    generator = torch.Generator().manual_seed(0)
    smooth = torch.rand(2, 2, 4, 4, dtype=torch.float64, generator=generator)
    image = torch.nn.functional.interpolate(smooth, size=(20, 23), mode="nearest")
    kernel = motion_kernel(5.0, 0.6)
    noisy = Blur(kernel, 20, 23)(image) + 0.01 * torch.randn(image.shape, dtype=torch.float64, generator=generator)
    return TVDeblurring(noisy.to(kind), kernel, weight, border, isotropic)


def tomography(isotropic=False):
    image = torch.zeros(2, 1, 14, 11, dtype=torch.float64)
    image[:, :, 4:9, 3:7] = torch.tensor([0.5, 1.0], dtype=torch.float64).view(2, 1, 1, 1)
    beams = ParallelBeam(14, 11, 9)
    noise = 0.05 * torch.randn(
        2, 1, 9, beams.detectors, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    return TVTomography(beams(image) + noise, (14, 11), 0.1, isotropic)


@pytest.mark.parametrize("size", [(8, 9), (7, 6), (1, 5)])
def test_spectra_are_those_of_circulant_matrices(size):
    x = torch.rand(1, 1, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    blur = Blur(gaussian_kernel(0.7, 3 if min(size) > 2 else 1), *size)
    shown = torch.fft.irfft2(blur.spectrum * torch.fft.rfft2(x), s=size)
    torch.testing.assert_close(shown, blur.adjoint(blur(x)))
    assert Blur(gaussian_kernel(0.7, 1), *size, border="replicate").spectrum is None
    K = Differences(size, (1.0, 2.0))
    wrapped = torch.fft.irfft2(K.wrapped_spectrum * torch.fft.rfft2(x), s=size)
    around = sum(((x.roll(-1, axis) - x) / h).square().sum() for axis, h in ((-2, 1.0), (-1, 2.0)))
    torch.testing.assert_close((x * wrapped).sum(), around)
    assert float((x * wrapped).sum()) >= float(K(x).square().sum())


@pytest.mark.parametrize("isotropic", [False, True])
def test_it_finds_what_pdhg_finds(isotropic):
    problem = deblurring(isotropic=isotropic)
    found = lmd.solve(problem, 1e-6, solver=CirculantADMM())
    other = lmd.solve(problem, 1e-3, solver=PDHG(0.5, accelerated=False))
    assert {status.name for status in found.status} == {"TOLERANCE_REACHED"}
    assert bool((found.values <= other.values * (1 + 1e-6)).all())


def test_a_solution_stays_where_it_is():
    problem = deblurring()
    found = lmd.solve(problem, 1e-8, solver=CirculantADMM())
    again = lmd.solve(problem, 1e-6, warm=found)
    assert int(again.iterations.max()) <= 10
    torch.testing.assert_close(again.x, found.x, rtol=0, atol=1e-3)


def test_many_steps_at_once_are_as_many_steps():
    problem, solver = deblurring(), CirculantADMM()
    together = solver.advance(problem, solver.init(problem, problem.start()), 7)
    state = solver.init(problem, problem.start())
    for _ in range(7):
        state = solver.step(problem, state)
    torch.testing.assert_close((together.x, together.dual), (state.x, state.dual))


def test_it_is_the_default_where_its_steps_are_exact():
    assert type(lmd.solve(deblurring(), 1e-2).solver) is CirculantADMM
    assert type(lmd.solve(tomography(), 1e-2).solver) is not CirculantADMM
    assert type(lmd.solve(deblurring(border="replicate"), 1e-1).solver) is not CirculantADMM


def test_what_it_lacks_is_named():
    for problem in (deblurring(border="replicate"), tomography()):
        with pytest.raises(CapabilityError, match="beside_spectrum"):
            lmd.solve(problem, 1e-2, solver=CirculantADMM())
