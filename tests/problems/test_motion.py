from dataclasses import replace

import pytest
import torch

import lmd
from lmd import kernels
from lmd.problems import TVDenoising
from lmd.problems.motion import followed, motion, moved


def scene(side=160):
    """Smooth, with edges."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, 3, 16, 16, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")[0]
    return smooth + 0.3 * (smooth > 0.6)


@pytest.mark.parametrize("by", [(0, 0), (2, -3), (-5, 0), (11, 7)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_it_finds_how_far_a_window_moved_over_a_scene(by, noise):
    whole, generator = scene(), torch.Generator().manual_seed(1)
    frames = []
    for top, left in ((30, 30), (30 - by[0], 30 - by[1])):
        frame = whole[:, top : top + 96, left : left + 90]
        frames.append(frame + noise * torch.randn(frame.shape, generator=generator))
    assert motion(*frames) == by


def test_nothing_is_found_where_there_is_nothing():
    assert motion(torch.ones(1, 32, 32), torch.ones(1, 32, 32)) == (0, 0)
    assert motion(torch.rand(1, 4, 40), torch.rand(1, 4, 40)) == (0, 0)


def test_frames_with_noise_of_their_own_are_not_alike():
    generator = torch.Generator().manual_seed(0)
    whole, field = scene(), torch.ones(3, 2, 96, 96)
    one, other = whole[:, 10:106, 10:106], whole[:, 12:108, 13:109]
    assert torch.equal(followed(field, one, other), moved(field, (-2, -3)))
    noisy = [frame + 0.1 * torch.randn(frame.shape, generator=generator) for frame in (one, other)]
    assert followed(field, *noisy) is None


def test_what_moves_in_is_zero():
    field = torch.arange(6.0).reshape(1, 2, 3)
    assert moved(field, (1, -1)).tolist() == [[[0, 0, 0], [1, 2, 0]]]
    assert moved(field, (0, 0)).tolist() == field.tolist() and moved(field, (-1, 2)).tolist() == [
        [[0, 0, 3], [0, 0, 0]]
    ]


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
@pytest.mark.parametrize("isotropic", [False, True])
def test_a_moving_picture_takes_fewer_iterations_from_the_frame_before(isotropic):
    whole = scene()
    frames = [whole[None, :, 20 + 2 * t : 116 + 2 * t, 20 + 3 * t : 116 + 3 * t] for t in range(2)]
    before, now = (TVDenoising(frame, 0.1, isotropic) for frame in frames)
    warm, cold = lmd.solve(now, 1e-3, warm=lmd.solve(before, 1e-3)), lmd.solve(now, 1e-3)
    assert warm.status[0].name == "TOLERANCE_REACHED" and 2 * warm.iterations <= cold.iterations
    assert bool(warm.certificate.lower_bound <= lmd.solve(now.double(), 1e-6).values)


def test_frames_of_noise_start_as_if_there_were_none_before():
    generator = torch.Generator().manual_seed(0)
    one, other = (TVDenoising(torch.randn(1, 1, 32, 32, generator=generator), 0.3) for _ in range(2))
    assert torch.equal(lmd.solve(other, 1e-3, warm=lmd.solve(one, 1e-3)).x, lmd.solve(other, 1e-3).x)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_each_frame_of_a_batch_starts_as_it_would_alone():
    """One that is alike, and one that is not."""
    whole, generator = scene(), torch.Generator().manual_seed(0)
    noise = torch.randn(2, 3, 96, 96, generator=generator)
    one = torch.stack([whole[:, 20:116, 20:116], whole[:, 20:116, 20:116] + 0.2 * noise[0]])
    other = torch.stack([whole[:, 22:118, 23:119], whole[:, 22:118, 23:119] + 0.2 * noise[1]])
    before, now = TVDenoising(one, 0.1), TVDenoising(other, 0.1)
    cold = lmd.solve(before, 1e-3)
    both = lmd.solve(now, 1e-3, warm=cold)
    for n in range(2):
        alone = lmd.solve(now.select(n), 1e-3, warm=lmd.solve(before.select(n), 1e-3))
        assert torch.equal(both.x[n], alone.x[0]) and int(both.iterations[n]) == int(alone.iterations)
    fresh = lmd.solve(now, 1e-3)
    assert int(both.iterations[0]) < int(fresh.iterations[0]) and torch.equal(both.x[1], fresh.x[1])


def test_a_warm_start_that_is_nothing_is_left():
    """Dual points that are not finite, or far outside of their bound, change nothing about what is proven."""
    problem = TVDenoising(scene(96)[None], 0.1)
    result = lmd.solve(problem, 1e-3)
    for dual in (torch.full_like(result.dual, torch.nan), 1e6 * torch.ones_like(result.dual)):
        again = lmd.solve(problem, 1e-3, warm=replace(result, dual=dual))
        assert again.status[0].name == "TOLERANCE_REACHED"
        value, gap = problem.certified_gap(again.x, again.dual)
        assert bool(gap <= 1.001e-3 * value)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("weight", "tolerance"), [(1e-2, 1e-9), (1e-2, 1e-7), (3e-3, 1e-6)])
def test_a_start_that_is_left_for_plain_iterations_leaves_nothing_behind(dtype, weight, tolerance):
    """Where y is so rough that nothing was learned for it, and what is given proves too little."""
    y = torch.rand(1, 1, 40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    problem = TVDenoising(y, weight)
    warm = lmd.solve(problem, tolerance, warm=lmd.solve(TVDenoising(y, 1e-5), 1e-3))
    cold = lmd.solve(problem, tolerance)
    assert torch.equal(warm.x, cold.x) and torch.equal(warm.dual, cold.dual)
    value, gap = problem.double().certified_gap(warm.x.double(), warm.dual.double())
    assert bool((warm.certificate.value - value).abs() <= 1e-6 * value) and bool(gap <= 1.01 * warm.certificate.bound)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_where_nothing_can_be_told_nothing_has_moved():
    """The middle is constant, or constant along its columns: every motion would fit."""
    flat = torch.zeros(1, 256, 256)
    flat[..., :40] = 1.0
    stripes = torch.arange(256.0).remainder(16).expand(1, 256, 256)
    for frame in (flat, stripes):
        assert motion(frame, frame + 1e-3) == (0, 0)
    before, now = (TVDenoising(flat[None] + shift, 0.1) for shift in (0.0, 1e-3))
    assert int(lmd.solve(now, 1e-3, warm=lmd.solve(before, 1e-3)).iterations) == 0


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_frames_far_from_0_are_followed_as_others_are():
    whole = scene(200).numpy().transpose(1, 2, 0)
    frames = [whole[20 + 2 * t : 148 + 2 * t, 20 + 3 * t : 148 + 3 * t] for t in range(2)]
    counts = []
    for scale, offset in ((1.0, 0.0), (1000.0, 0.0), (1.0, 500.0)):
        options = {"weight": 0.1 * scale, "tolerance": 1e-3, "info": True}
        one, other = (scale * frame.astype("float64") + offset for frame in frames)
        _, told = lmd.denoise(one, **options)
        counts.append(int(lmd.denoise(other, warm=told, **options)[1].result.iterations))
        assert 2 * counts[-1] <= int(lmd.denoise(other, **options)[1].result.iterations)
    assert max(counts) <= 2 * min(counts)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
@pytest.mark.parametrize("by", [(0, 4), (-3, 0), (2, -3), (-6, 5)])
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_work_along_the_border_is_nearly_all_that_a_moved_picture_needs(by, isotropic, dtype):
    """And what is proven of it holds for the problem itself, whatever the number of threads."""
    whole = scene(300).to(dtype)[None]
    (top, left), (down, right) = (20, 20), by
    frames = [whole[..., a : a + 256, b : b + 240] for a, b in ((top, left), (top + down, left + right))]
    before, now = (TVDenoising(frame, 0.1, isotropic) for frame in frames)
    start, cold = lmd.solve(before, 1e-3), lmd.solve(now, 1e-3)
    warm = lmd.solve(now, 1e-3, warm=start)
    assert warm.status[0].name == "TOLERANCE_REACHED" and 4 * warm.iterations <= cold.iterations
    value, gap = now.double().certified_gap(warm.x.double(), warm.dual.double())
    assert bool(gap <= 1e-3 * value) and bool((gap <= 1.01 * warm.certificate.bound).all())
    assert torch.equal(now.project_dual(warm.dual), warm.dual)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(threads, 2))
        assert torch.equal(lmd.solve(now, 1e-3, warm=start).x, warm.x)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_a_start_that_is_near_enough_in_float_goes_on_from_there_in_double():
    """Of float32 frames to a tolerance that their numbers cannot prove: the border mended, nothing left to iterate."""
    whole = scene(300)[None]
    before, now = (TVDenoising(whole[..., n : 256 + n, 20:276], 0.05, isotropic=True) for n in (20, 22))
    start = lmd.solve(before, 1e-7)
    for tolerance in (2e-5, 1e-7):
        warm = lmd.solve(now, tolerance, warm=start)
        value, gap = now.double().certified_gap(warm.x.double(), warm.dual.double())
        assert warm.status[0].name == "TOLERANCE_REACHED" and bool(gap <= 1.01 * tolerance * value)
