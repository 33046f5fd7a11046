"""The smoothest minimiser: a minimiser, smoother than others, the same from any of them, and the known one by hand."""

import pytest
import torch

from lmd.errors import LmdError
from lmd.guarantees import OptimumCache, minimiser, minimum, reference
from lmd.guarantees.reference import smoothest_minimiser
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.image_families import random_masks


def problem_of(isotropic: bool = False, dtype: torch.dtype = torch.float64) -> TVInpainting:
    generator = torch.Generator().manual_seed(0)
    noisy, mask = torch.rand(2, 1, 7, 6, generator=generator).to(dtype), random_masks(2, 7, 6, 0.7, generator)
    return TVInpainting(noisy, mask, torch.tensor([0.3, 0.1], dtype=dtype), isotropic)


@pytest.mark.parametrize("isotropic", [False, True])
def test_it_is_a_minimiser_and_smoother_than_another(isotropic: bool, tmp_path) -> None:
    problem, cache = problem_of(isotropic), OptimumCache(tmp_path)
    x, other = smoothest_minimiser(problem, cache), minimiser(problem, cache)
    rough, others = (problem.differences(point).square().flatten(1).sum(dim=1) for point in (x, other))
    assert bool((problem.value(x) <= minimum(problem, cache) * (1 + 1e-5)).all()) and bool(
        (rough <= others + 1e-4).all()
    )
    if not isotropic:
        assert bool((rough < 0.999 * others).any())


def test_it_does_not_depend_on_where_the_second_stage_begins() -> None:
    problem = problem_of().select([1])
    x = smoothest_minimiser(problem)
    other = minimiser(reference.smoothest_problem(problem, x, 0.5))
    torch.testing.assert_close(other, x, atol=1e-3, rtol=0)


def test_a_lost_pixel_is_the_mean_of_its_neighbours_within_the_middle_two() -> None:
    """Neighbours far from each other and hardly any weight: their mean is 0.4, the middle two are 0.5 and 0.6."""
    noisy = torch.tensor([[0.0, 0.0, 0.0], [0.5, 9.0, 0.5], [0.0, 0.6, 0.0]], dtype=torch.float64)[None, None]
    mask = torch.ones(3, 3, dtype=torch.float64)
    mask[1, 1] = 0
    x = smoothest_minimiser(TVInpainting(noisy, mask, 1e-3))
    assert x[0, 0, 1, 1].item() == pytest.approx(0.5, abs=2e-3)
    noisy[0, 0, 0, 1] = 1.0  # now the mean is 0.65, the middle two 0.5 and 0.6
    assert smoothest_minimiser(TVInpainting(noisy, mask, 1e-3))[0, 0, 1, 1].item() == pytest.approx(0.6, abs=2e-3)


def test_a_unique_minimiser_is_it_in_the_dtype_of_the_problem() -> None:
    problem = TVDenoising(torch.rand(1, 1, 6, 6), 0.2)
    assert torch.equal(smoothest_minimiser(problem), minimiser(problem))
    assert smoothest_minimiser(problem_of(dtype=torch.float32)).dtype == torch.float32


def test_what_is_not_proven_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PULLS", (100.0,))
    with pytest.raises(LmdError, match=r"\ATVInpainting: no certified smoothest minimiser"):
        smoothest_minimiser(problem_of())
