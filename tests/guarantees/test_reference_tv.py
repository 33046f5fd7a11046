import math
import os

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError, LmdError
from lmd.guarantees import OptimumCache, minimiser, minimum, optimum, reference
from lmd.problems import TVDenoising, TVInpainting
from lmd.solvers import FGP, PDHG

FORMS = pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
KINDS = pytest.mark.parametrize("kind", ["denoising", "inpainting"])


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def make(kind, shape=(2, 3, 5, 6), seed=0, **arguments):
    """A problem on a step with noise, so that flat parts and edges both occur; weights and masks per image."""
    step = torch.linspace(0, 1, shape[3], dtype=torch.float64).round()
    noisy = step + 0.2 * random(*shape, seed=seed)
    weight = torch.linspace(0.2, 0.5, shape[0], dtype=torch.float64)
    if kind == "denoising":
        return TVDenoising(noisy, weight, **arguments)
    mask = torch.rand(shape[0], 1, *shape[2:], generator=torch.Generator().manual_seed(seed + 1)) < 0.7
    mask[:, :, 0, 0] = True
    return TVInpainting(noisy, mask, weight, **arguments)


@KINDS
@FORMS
class TestMinimiser:
    def test_its_certificate_holds_by_an_independent_dual_method(self, kind, isotropic):
        problem = make(kind, (2, 1, 6, 7), isotropic=isotropic)
        value = problem.value(minimiser(problem))
        for i in range(2):
            assert float(value[i]) - independent_bound(problem.select(i)) <= 1e-6 * float(value[i])

    def test_optima_are_certified_and_the_batch_does_not_matter(self, kind, isotropic):
        problem = make(kind, (2, 1, 6, 7), isotropic=isotropic)
        found = optimum(problem)
        assert bool((found.gap >= 0).all()) and bool((found.gap <= 1e-6 * found.value).all())
        for i in range(2):
            assert_close(minimiser(problem.select(i))[0], found.x[i], rtol=0, atol=0)
        assert_close(minimum(problem), problem.value(minimiser(problem)))
        assert minimiser(problem).dtype == torch.float64

    def test_a_flat_image_is_its_own_minimiser(self, kind, isotropic):
        flat = torch.full((1, 2, 4, 5), 0.3)
        problem = TVDenoising(flat, 0.3, isotropic) if kind == "denoising" else TVInpainting(flat, flat[0, 0] > 0, 0.3)
        assert_close(minimiser(problem), flat)
        assert float(minimum(problem)) < 1e-12

    @pytest.mark.parametrize("size", [(1, 1), (1, 7), (6, 1)], ids=str)
    def test_one_pixel_wide(self, kind, isotropic, size):
        problem = make(kind, (2, 2, *size), isotropic=isotropic)
        found = minimiser(problem)
        other = found + 0.01 * random(2, 2, *size, seed=9)
        assert bool((problem.value(other) >= minimum(problem) * (1 - 1e-6)).all())


def independent_bound(problem):
    """A lower bound on the minimum of one instance with one channel, from another method and by another formula.

    The dual point comes from FGP or PDHG; the bound that it proves is worked out here pixel by pixel, from the saddle
    form, which shares nothing with the duality gap that certifies the minimiser.
    """
    solver = PDHG(0.2) if problem.mask is not None else FGP(restart=True)
    down, right = lmd.run(solver, problem, iterations=2500).dual[0, 0]
    y, s, b = problem.noisy[0, 0], problem.scale, float(problem.weight) * problem.scale
    kept = problem.mask[0, 0] > 0 if problem.mask is not None else torch.ones_like(y, dtype=torch.bool)
    low, high = float(y[kept].min()), float(y[kept].max())
    bound = 0.0
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            length = (
                math.hypot(down[i, j], right[i, j]) if problem.isotropic else max(abs(down[i, j]), abs(right[i, j]))
            )
            assert length <= b * (1 + 1e-12)
            u = 0.0  # what multiplies the pixel in <Kx, p>
            u += float(down[i - 1, j]) if i > 0 else 0.0
            u -= float(down[i, j]) if i + 1 < y.shape[0] else 0.0
            u += float(right[i, j - 1]) if j > 0 else 0.0
            u -= float(right[i, j]) if j + 1 < y.shape[1] else 0.0
            if kept[i, j]:
                x = min(max(float(y[i, j]) - u / (2 * s), low), high)
                bound += s * (x - float(y[i, j])) ** 2 + u * x
            else:
                bound += min(u * low, u * high)
    return bound


class TestCache:
    @pytest.fixture
    def solved(self, monkeypatch):
        """The shapes of the problems that were solved, one after the other."""
        found, solve = [], reference._solve_composite
        monkeypatch.setattr(
            reference, "_solve_composite", lambda one, *rest: found.append(one.noisy.shape) or solve(one, *rest)
        )
        return found

    def test_an_optimum_is_solved_once_for_each_content(self, solved, tmp_path):
        problem, cache = make("denoising", (3, 1, 4, 5)), OptimumCache(tmp_path)
        first = minimiser(problem, cache)
        assert len(solved) == len(list(tmp_path.iterdir())) == 3
        assert_close(minimiser(make("denoising", (3, 1, 4, 5)), OptimumCache(tmp_path)), first, rtol=0, atol=0)
        assert len(solved) == 3
        for other in (
            TVDenoising(problem.noisy, problem.weight + 0.01),
            TVDenoising(problem.noisy + 1e-9, problem.weight),
            TVDenoising(problem.noisy, problem.weight, isotropic=True),
            TVInpainting(problem.noisy, torch.eye(4, 5), problem.weight),
        ):
            before = len(solved)
            minimiser(other, cache)
            assert len(solved) == before + 3

    def test_without_one_nothing_is_written(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LMD_CACHE", str(tmp_path))
        minimum(make("denoising", (1, 1, 4, 5)))
        assert list(tmp_path.iterdir()) == []
        minimum(make("denoising", (1, 1, 4, 5)), OptimumCache())
        assert [path.name for path in tmp_path.iterdir()] == ["optima"]

    @pytest.mark.parametrize("damage", ["truncated", "empty", "wrong numbers", "wrong shape", "not a number"])
    def test_a_damaged_file_is_solved_again(self, solved, tmp_path, damage):
        problem, cache = make("denoising", (1, 1, 4, 5)), OptimumCache(tmp_path)
        first = minimiser(problem, cache)
        (path,) = tmp_path.iterdir()
        tensors = lmd.core.files.read_tensors(path)
        if damage in ("truncated", "empty"):
            path.write_bytes(path.read_bytes()[: 100 if damage == "truncated" else 0])
        else:
            wrong = {"wrong numbers": tensors["x"] + 0.1, "wrong shape": tensors["x"][..., :3]}
            lmd.core.files.write_tensors(path, {**tensors, "x": wrong.get(damage, tensors["x"] * math.nan)})
        assert_close(minimiser(problem, cache), first, rtol=0, atol=0)
        assert len(solved) == 2
        assert_close(minimiser(problem, cache), first, rtol=0, atol=0)
        assert len(solved) == 2  # the damaged file has been replaced

    def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        assert minimiser(make("denoising", (1, 1, 4, 5)), OptimumCache(tmp_path / "file")).shape == (1, 1, 4, 5)

    def test_the_oldest_go_when_it_is_full(self, solved, tmp_path):
        problem = make("denoising", (6, 1, 4, 5))
        for i in range(6):
            minimum(problem.select(i), OptimumCache(tmp_path))
            for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda path: -path.stat().st_mtime_ns)):
                os.utime(path, ns=(0, 10**15 - age))  # clocks of file systems may be coarse
        size = max(path.stat().st_size for path in tmp_path.iterdir())
        minimum(make("inpainting", (1, 1, 4, 5)), OptimumCache(tmp_path, limit=3 * size))
        assert len(list(tmp_path.iterdir())) == 3
        minimum(problem.select(slice(4, 6)), OptimumCache(tmp_path))
        assert len(solved) == 7  # the last two are still there
        minimum(problem.select(3), OptimumCache(tmp_path))
        assert len(solved) == 8

    @pytest.mark.parametrize("limit", [0, -1, 2.5])
    def test_a_limit_is_a_number_of_bytes(self, limit):
        with pytest.raises(InputError, match=r"^limit: got"):
            OptimumCache(limit=limit)


def test_giving_up_says_how_far_it_came(limit_evaluations):
    limit_evaluations(1)
    with pytest.raises(LmdError, match=r"^TVDenoising: no certified minimiser, the relative duality gap stays at \d"):
        minimum(make("denoising", (1, 1, 9, 9)))
