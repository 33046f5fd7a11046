from dataclasses import replace

import pytest
import torch

import lmd
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
