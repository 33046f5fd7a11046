"""Pictures through solvers: every kind of picture, what is proven about it, and that nothing of it is lost."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.core import memory
from lmd.errors import InputError
from lmd.imaging import files
from lmd.imaging.files import PictureSolver
from lmd.imaging.image_files import Header, Picture
from lmd.mirrors import ConvPair
from lmd.problems import TVDenoising, TVInpainting
from lmd.solvers import FGP, GradientDescent, LearnedMirrorDescent, save


def noisy(channels=3, dtype=np.uint8, alpha=False, size=(20, 26)):
    """Two flat halves and noise."""
    generator = np.random.default_rng(0)
    most = np.iinfo(dtype).max
    flat = np.where(np.arange(size[1]) < size[1] // 2, 0.3, 0.7) * np.ones((channels, *size))
    colours = (flat + 0.05 * generator.standard_normal(flat.shape)).clip(0, 1)
    opaque = generator.integers(0, most, size, dtype=dtype, endpoint=True) if alpha else None
    return Picture((colours * most).round().astype(dtype), opaque)


def tensor(picture):
    return torch.tensor(picture.colours, dtype=torch.float64)[None] / picture.most


def conv_folder(folder, channels):
    """A learned solver of images, not trained."""
    solver = LearnedMirrorDescent(ConvPair(channels=channels, filters=4), iterations=3, initial_step=0.05)
    return str(save(solver, folder))


class TestSolve:
    @pytest.mark.parametrize("name", ["fgp", "pdhg"])
    @pytest.mark.parametrize(
        ("isotropic", "channels", "dtype", "alpha"), [(False, 3, np.uint16, True), (True, 1, np.uint8, False)]
    )
    def test_the_answer_is_the_minimiser_to_a_grey_level(self, name, isotropic, channels, dtype, alpha):
        before = noisy(channels, dtype, alpha)
        solver = PictureSolver("denoise", name, weight=0.1, tolerance=1e-5, isotropic=isotropic)
        after, summary = solver.solve(before)
        # What is solved, and proven, is the problem in single precision.
        problem = TVDenoising(tensor(before).float().double(), float(torch.tensor(0.1)), isotropic)
        assert_close(tensor(after), lmd.guarantees.minimiser(problem), rtol=0, atol=0.01)
        assert after.colours.dtype == dtype
        assert after.alpha is before.alpha
        assert summary.value_before == pytest.approx(float(problem.value(problem.start())), rel=1e-5)
        assert summary.value_after == pytest.approx(float(lmd.guarantees.minimum(problem)), rel=1e-4)
        assert summary.lower_bound <= float(lmd.guarantees.minimum(problem)) * (1 + 1e-9)
        assert summary.relative_bound < 5e-5
        apart = (tensor(after) - lmd.guarantees.minimiser(problem)).square().mean().sqrt()
        assert float(apart) <= summary.grey_levels / 255 + 1 / after.most  # and rounding
        assert summary.notes == ()

    def test_inpainting_ignores_what_is_lost(self):
        before = noisy()
        kept = np.random.default_rng(1).random(before.size) > 0.3
        spoilt = Picture(np.where(kept, before.colours, 255).astype(np.uint8))
        solver = PictureSolver("inpaint", "pdhg", weight=0.3, tolerance=1e-4)
        after, summary = solver.solve(spoilt, torch.from_numpy(kept))
        problem = TVInpainting(tensor(before), torch.from_numpy(kept), 0.3)
        assert summary.value_after == pytest.approx(float(lmd.guarantees.minimum(problem)), rel=3e-4)
        assert summary.relative_bound < 3e-4
        assert summary.grey_levels == math.inf  # the minimiser need not be unique
        assert int(after.colours.max()) < 255

    @pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2)])
    def test_the_smallest_pictures(self, size):
        after, summary = PictureSolver("denoise", "pdhg").solve(noisy(size=size))
        assert after.size == size
        assert math.isfinite(summary.bound)

    def test_a_flat_picture_stays_as_it_is(self):
        flat = Picture(np.full((3, 8, 8), 100, dtype=np.uint8))
        after, summary = PictureSolver("denoise").solve(flat)
        np.testing.assert_array_equal(after.colours, flat.colours)
        assert summary.value_after <= 1e-6
        json.dumps(summary.as_json(), allow_nan=False)

    def test_iterations_and_tolerance(self):
        before = noisy()
        assert PictureSolver("denoise", "pdhg", iterations=7).solve(before)[1].iterations == 7
        _, short = PictureSolver("denoise", "pdhg", iterations=2, tolerance=1e-6).solve(before)
        assert short.iterations == 2
        assert short.notes == ("the tolerance of 1e-06 was not reached in 2 iterations",)
        _, usual = PictureSolver("denoise").solve(before)
        assert usual.relative_bound < 1.1 * files.DEFAULT_TOLERANCE


class TestAutomaticWeight:
    def test_it_follows_the_noise_and_is_said(self):
        solver = PictureSolver("denoise")
        _, summary = solver.solve(noisy(size=(60, 70)))
        assert 0.03 < summary.weight < 0.3 and float(summary.choice.noise) == pytest.approx(0.05, rel=0.3)
        assert "(automatic, for noise of 5" in str(summary) or "(automatic, for noise of 4" in str(summary)
        said = summary.as_json()["automatic"]
        assert len(said["weights"]) == len(said["risks"]) >= 3
        assert "automatic" not in str(PictureSolver("denoise", weight=0.3).solve(noisy())[1])

    @pytest.mark.parametrize("form", [{"data": "poisson"}, {"data": "absolute", "coupled": True}, {"order": 2}])
    def test_words_make_other_models_as_they_do_of_arrays(self, form):
        before = noisy()
        after, summary = PictureSolver("denoise", weight=0.4, tolerance=1e-3, **form).solve(before)
        same, info = lmd.denoise(np.moveaxis(before.colours, 0, 2), 0.4, **form, info=True)
        assert_close(summary.value_after, float(info.result.values), rtol=2e-3, atol=0)
        assert np.abs(np.moveaxis(after.colours, 0, 2) - same.astype(float)).mean() < 3
        assert summary.relative_bound <= 1.01e-3 and PictureSolver("denoise", **form).solve(before)[1].choice

    def test_to_fill_in_and_to_sharpen(self):
        before = noisy(size=(40, 40))
        kept = torch.from_numpy(np.random.default_rng(1).random(before.size) > 0.3)
        assert 1e-3 < PictureSolver("inpaint").solve(before, kept)[1].weight < 0.3
        kernel = torch.ones(3, 3, dtype=torch.float64) / 9
        assert 1e-4 < PictureSolver("deblur", iterations=20).solve(before, kernel)[1].weight < 0.3

    def test_a_word_that_is_none(self):
        with pytest.raises(InputError, match=r"^weight: got 'best', expected a positive number or 'auto'"):
            PictureSolver("denoise", weight="best").solve(noisy())


class TestVolumes:
    @pytest.mark.parametrize("offset", [0.0, 1000.0])
    def test_numbers_of_any_size(self, offset):
        generator = np.random.default_rng(0)
        volume = (offset + 50 * (generator.random((1, 5, 12, 14)) + (np.arange(14) > 6))).astype(np.float32)
        after, summary = PictureSolver("denoise", weight=20.0).solve(Picture(volume))
        assert after.colours.dtype == np.float32 and after.size == (5, 12, 14)
        problem = TVDenoising(torch.tensor(volume, dtype=torch.float64)[None], 20.0)
        assert summary.value_before == pytest.approx(float(problem.value(problem.start())), rel=1e-4)
        value = float(problem.value(torch.tensor(after.colours, dtype=torch.float64)[None]))
        assert value == pytest.approx(summary.value_after, rel=1e-4)
        assert summary.lower_bound <= value * (1 + 1e-6)

    def test_numbers_that_are_not_finite(self):
        colours = np.ones((1, 6, 7))
        colours[0, 2, 3] = np.nan
        with pytest.raises(
            InputError, match=r"^image: got 1 of 42 numbers that are not finite, .* `lmd solve inpaint`"
        ):
            PictureSolver("denoise").solve(Picture(colours))
        after, _ = PictureSolver("inpaint", weight=0.1).solve(Picture(colours), torch.from_numpy(colours[0] == 1))
        np.testing.assert_allclose(after.colours, 1, atol=1e-3)

    def test_numbers_far_from_0_keep_their_digits(self):
        generator = np.random.default_rng(0)
        colours = np.where(np.arange(40) < 20, -0.5, 0.5) + 0.1 * generator.normal(size=(1, 40, 40))
        near, far = (PictureSolver("denoise").solve(Picture(colours + level)) for level in (0.0, 1e7))
        assert far[1].weight == pytest.approx(near[1].weight, rel=1e-3)
        np.testing.assert_allclose(far[0].colours - 1e7, near[0].colours, atol=1e-2)
        np.testing.assert_allclose(far[0].colours, lmd.denoise(1e7 + colours[0])[None], rtol=0, atol=1e-3)

    def test_pixels_lost_far_from_0(self):
        generator = np.random.default_rng(0)
        colours = (np.where(np.arange(40) < 20, -50.0, 50.0) + 2 * generator.normal(size=(1, 40, 40))).round(2)
        kept = generator.random((40, 40)) > 0.3
        told = []
        for level in (0.0, 1e5):
            spoilt = Picture(np.where(kept, colours + level, np.nan))
            after, summary = PictureSolver("inpaint").solve(spoilt, torch.from_numpy(kept))
            assert summary.relative_bound <= 1.001e-3 and summary.choice is not None
            told.append((float(summary.choice.noise), summary.weight, *(after.colours - level)[0, 0, :20]))
        np.testing.assert_allclose(*told, rtol=1e-2)


class TestNetworks:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_a_network_is_for_pictures_of_its_channels(self, tmp_path, channels):
        before = noisy(channels)
        solver = PictureSolver("denoise", conv_folder(tmp_path / "mine", channels), weight=0.3)
        after, summary = solver.solve(before)
        assert summary.iterations == 3  # what it was made for
        problem = TVDenoising(tensor(before).float(), 0.3)
        expected = lmd.run(solver.solver, problem, problem.noisy, 3).x
        assert_close(tensor(after).float(), expected.clamp(0, 1), rtol=0, atol=0.51 / 255)
        assert summary.value_after == pytest.approx(float(problem.value(expected)), rel=1e-5)
        assert summary.value_before == pytest.approx(float(problem.value(problem.noisy)), rel=1e-5)
        with pytest.raises(InputError, match=r"^solver: got .*mine to denoise .*images \(B, [13], H, W\)"):
            solver.solve(noisy(4 - channels))

    def test_a_tolerance_asks_for_a_solver_that_can_tell(self, tmp_path):
        with pytest.raises(
            InputError, match=r"^solver: got .*mine to denoise .* keeps no dual point.* such as pdhg, or none"
        ):
            PictureSolver("denoise", str(save(GradientDescent(0.01), tmp_path / "mine"))).solve(noisy())
        _, summary = PictureSolver("denoise", conv_folder(tmp_path / "network", 3), tolerance=1e-2).solve(noisy())
        assert summary.relative_bound < 0.011

    def test_a_solver_of_something_else(self):
        with pytest.raises(InputError, match=r"^solver: got svm-pair-10 to denoise .*, expected one that can"):
            PictureSolver("denoise", "svm-pair-10").solve(noisy())
        with pytest.raises(InputError, match=r"^solver: got fgp to inpaint .*, expected one that can, such as pdhg"):
            PictureSolver("inpaint", "fgp").solve(noisy(), torch.ones(20, 26) > 0)
        with pytest.raises(InputError, match=r"^solver: got 'pdgh', expected one of fgp, pdhg.*did you mean pdhg"):
            PictureSolver("denoise", "pdgh")


class TestNoWorseThanStart:
    def test_the_start_is_kept_where_few_iterations_end_above_it(self):
        class Worse(FGP):
            """A solver whose answers are worse than where they start."""

            def step(self, problem, state):
                return replace(super().step(problem, state), x=state.x + 1)

        solver = PictureSolver("denoise", "fgp", iterations=1, weight=0.1)
        solver.solver, solver.tolerance = Worse(), None
        before = noisy()
        after, summary = solver.solve(before)
        assert summary.value_after == pytest.approx(summary.value_before, rel=1e-6)  # the bytes are rounded to float32
        assert (after.colours == before.colours).all()
        problem = TVDenoising(tensor(before).double(), 0.1)
        least = float(lmd.solve(problem, 1e-6).certificate.lower_bound)
        true = float(problem.value(tensor(before).double())) - least
        assert summary.bound >= 0.999 * true


class TestDefaults:
    @pytest.mark.parametrize(
        ("task", "extra", "name"),
        [("denoise", None, "learned-fgp"), ("inpaint", torch.ones(20, 26) > 0, "relaxedpdhg")],
    )
    def test_what_lmd_solve_takes(self, task, extra, name):
        _, summary = PictureSolver(task).solve(noisy(), extra)
        assert summary.solver == name
        assert summary.value_after < 0.8 * summary.value_before

    def test_colours_are_coupled(self):
        before = noisy()
        coupled, plain = (
            PictureSolver("denoise", weight=0.2, **form).solve(before)[1] for form in ({}, {"coupled": False})
        )
        _, info = lmd.denoise(np.moveaxis(before.colours, 0, 2), 0.2, info=True)
        assert_close(coupled.value_after, float(info.result.values), rtol=2e-3, atol=0)
        assert coupled.value_after < 0.99 * plain.value_after
        grey = replace(before, colours=before.colours[:1])
        assert PictureSolver("denoise", weight=0.2).solve(grey)[1].solver == "learned-fgp"

    @pytest.mark.parametrize("weight", [1e300, 1e-300])
    def test_a_weight_that_single_precision_has_no_use_for(self, weight):
        with pytest.raises(InputError, match=r"^weight: got"):
            PictureSolver("denoise", weight=weight).solve(noisy())

    @pytest.mark.parametrize("weight", [1e-6, 1e6])
    def test_the_extreme_weights(self, weight):
        solved, summary = PictureSolver("denoise", weight=weight).solve(noisy())
        assert math.isfinite(summary.value_after) and summary.value_after <= summary.value_before
        assert solved.size == noisy().size

    def test_bad_task(self):
        with pytest.raises(InputError, match=r"^task: got 'denoising', expected one of denoise, inpaint"):
            PictureSolver("denoising")


class TestSummary:
    def test_what_is_proven_in_words(self):
        _, summary = PictureSolver("denoise", weight=0.2).solve(noisy())
        assert re.match(r"within 0\.\d+% of the minimum, [\d.]+ of 255 grey levels from the minimiser", summary.proven)
        _, summary = PictureSolver("denoise", "pdhg", iterations=1, weight=2.0, tolerance=1e-5).solve(noisy())
        assert re.match(r"within \d{2,}% of the minimum|nothing of use is proven", summary.proven)
        json.dumps(summary.as_json(), allow_nan=False)

    def test_grey_levels_are_those_of_the_bound(self):
        _, summary = PictureSolver("denoise", weight=0.2).solve(noisy())
        assert summary.grey_levels == pytest.approx(255 * math.sqrt(2 * summary.bound / (2 * 3 * 20 * 26)), rel=1e-3)


def test_twelve_megapixels_are_said_to_need_less_than_four_gigabytes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * 10**9)
    PictureSolver("denoise").check("photo", Header((3000, 4000), 4, 16))
