import pytest
import torch
from scipy.optimize import minimize
from torch.testing import assert_close

from lmd.errors import LmdError
from lmd.guarantees import OptimumCache, minimiser, minimum, optimum
from lmd.operators import Blur, ParallelBeam, gaussian_kernel
from lmd.problems import TVDeblurring, TVTomography


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind, shape=(2, 2, 5, 6), seed=0, **arguments):
    """A problem on a step between 0.1 and 1, so that the box matters, with noise; weights per image."""
    image = (0.1 + 0.9 * torch.linspace(0, 1, shape[3], dtype=torch.float64).round()).expand(shape)
    weight = torch.linspace(0.05, 0.2, shape[0], dtype=torch.float64)
    if kind == "tomography":
        seen = ParallelBeam(*shape[2:], angles=4)(image)
        return TVTomography(seen + 0.1 * random(*seen.shape, seed=seed), shape[2:], weight, **arguments)
    kernel = gaussian_kernel(0.7, 3)
    seen = Blur(kernel, *shape[2:], kind)(image)
    return TVDeblurring(seen + 0.1 * random(*seen.shape, seed=seed), kernel, weight, border=kind, **arguments)


def tv(x, isotropic):
    """Total variation by its formula, for images that are padded with their own border."""
    down = torch.diff(x, dim=2, append=x[:, :, -1:])
    right = torch.diff(x, dim=3, append=x[..., -1:])
    return ((down.square() + right.square()).sqrt() if isotropic else down.abs() + right.abs()).sum((1, 2, 3))


def by_scipy(problem, shape, isotropic):
    """The minimum of the problem over the box, by L-BFGS-B on a smoothed total variation."""

    def function(flat):
        x = torch.from_numpy(flat).reshape(shape).requires_grad_()
        down, right = torch.diff(x, dim=2, append=x[:, :, -1:]), torch.diff(x, dim=3, append=x[..., -1:])
        squares = [down.square() + right.square()] if isotropic else [down.square(), right.square()]
        smooth = sum((square + 1e-10).sqrt().sum() for square in squares)
        value = (problem.forward(x) - problem.noisy).square().sum() + problem.weight[0] * smooth
        value.backward()
        return value.item(), x.grad.flatten().numpy()

    options = {"maxiter": 1000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-9}
    start = problem.start().flatten().numpy()
    found = minimize(function, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options)
    return problem.value(torch.from_numpy(found.x).reshape(shape))[0]


@pytest.mark.parametrize("kind", ["circular", "replicate", "tomography"])
@pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
def test_the_minimiser_is_in_the_box_and_nothing_in_it_is_lower(kind, isotropic):
    problem = make(kind, isotropic=isotropic)
    x = minimiser(problem)
    assert bool(((x >= 0) & (x <= 1)).all())
    assert bool((x == 1).any())  # the box is active on these
    found = optimum(problem)
    assert bool((found.gap <= 1e-5 * found.value).all())
    # An independent method on a smooth function just above F: |t| replaced by (t^2 + 1e-10)^{1/2}.
    for i in range(2):
        expected = by_scipy(problem.select(i), x[i : i + 1].shape, isotropic)
        assert_close(found.value[i], expected, rtol=2e-3, atol=0)
        assert float(found.value[i]) <= float(expected) + 1e-9


def test_it_is_remembered_on_disk_and_proven_again(tmp_path, limit_evaluations):
    problem, cache = make("circular", (1, 1, 5, 6)), OptimumCache(tmp_path)
    first = minimiser(problem, cache)
    assert len(list(tmp_path.iterdir())) == 1
    limit_evaluations(0)  # nothing is solved now
    assert_close(minimiser(problem, cache), first, rtol=0, atol=0)
    for other in (make("replicate", (1, 1, 5, 6)), make("circular", (1, 1, 5, 6), box=(0.0, 0.9))):
        with pytest.raises(LmdError, match="no certified minimiser"):
            minimiser(other, cache)


def test_a_kernel_of_other_numbers_is_another_problem(tmp_path):
    noisy = torch.rand(1, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for kernel in (gaussian_kernel(0.7, 3), gaussian_kernel(0.8, 3), torch.ones(3, 1), torch.ones(1, 3)):
        minimum(TVDeblurring(noisy, kernel), OptimumCache(tmp_path))
    assert len(list(tmp_path.iterdir())) == 4
