"""Pictures through solvers: every kind of picture, what is proven about it, and that nothing of it is lost."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.core import memory
from lmd.errors import InputError
from lmd.imaging import files
from lmd.imaging.files import PictureSolver, Summary
from lmd.imaging.models import DenoisingModel
from lmd.imaging.picture import Header, Picture
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

    def test_iterations_and_tolerance(self, monkeypatch):
        before = noisy()
        assert PictureSolver("denoise", "pdhg", iterations=7).solve(before)[1].iterations == 7
        _, short = PictureSolver("denoise", "pdhg", iterations=2, tolerance=1e-6).solve(before)
        assert short.iterations == 2
        assert short.notes == ("the tolerance of 1e-06 was not reached in 2 iterations",)
        _, usual = PictureSolver("denoise").solve(before)
        assert usual.relative_bound < 1.1 * files.DEFAULT_TOLERANCE
        monkeypatch.setattr(files, "DEFAULT_ITERATIONS", 3)
        _, short = PictureSolver("denoise", "pdhg").solve(before)
        assert short.notes == ("the tolerance of 0.001 was not reached in 3 iterations",)

    def test_channels_one_after_the_other_give_the_same(self, monkeypatch):
        together, whole = PictureSolver("denoise", coupled=False).solve(noisy())
        monkeypatch.setattr(files, "MAX_TOGETHER", 0)
        shares = []
        apart, parts = PictureSolver("denoise", coupled=False).solve(noisy(), None, shares.append)
        assert shares == [1 / 3] * 3
        assert int(np.abs(apart.colours.astype(int) - together.colours).max()) <= 1
        assert parts.weight == pytest.approx(whole.weight) and parts.mode == "RGB"
        assert parts.value_before == pytest.approx(whole.value_before)
        assert parts.grey_levels == pytest.approx(255 * math.sqrt(2 * parts.bound / (2 * 3 * 20 * 26)), rel=1e-3)


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

    def test_words_are_for_denoising(self):
        with pytest.raises(InputError, match=r"^data: got given with inpaint, expected none of them"):
            PictureSolver("inpaint", data="poisson")

    def test_to_fill_in_and_to_sharpen(self):
        before = noisy(size=(40, 40))
        kept = torch.from_numpy(np.random.default_rng(1).random(before.size) > 0.3)
        assert 1e-3 < PictureSolver("inpaint").solve(before, kept)[1].weight < 0.3
        kernel = torch.ones(3, 3, dtype=torch.float64) / 9
        assert 1e-4 < PictureSolver("deblur", iterations=20).solve(before, kernel)[1].weight < 0.3

    def test_a_large_picture_is_sampled(self):
        colours = np.arange(3 * 1100 * 700).reshape(3, 1100, 700)
        sample = files._sample(colours)
        assert sample.shape == (3, 512, 512)
        np.testing.assert_array_equal(sample[:, :256, :256], colours[:, 168:424, 88:344])
        assert files._sample(colours[:, :500, :500]).shape == (3, 500, 500)

    @pytest.mark.parametrize("kept", [0.7, 0.3])
    def test_lost_pixels_of_a_large_picture(self, monkeypatch, kept):
        monkeypatch.setattr(files, "MAX_TOGETHER", 0)
        monkeypatch.setattr(files, "SAMPLE", {2: 24})
        before = noisy(size=(40, 44))
        mask = np.random.default_rng(1).random(before.size) < kept
        after, summary = PictureSolver("inpaint").solve(before, mask)
        assert 1e-3 < summary.weight < 0.3 and summary.relative_bound <= 1.01e-3 and after.size == before.size

    def test_a_word_that_is_none(self):
        with pytest.raises(InputError, match=r"^weight: got 'best', expected a positive number, or auto"):
            PictureSolver("denoise", weight="best")


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
    @pytest.mark.parametrize("picture_channels", [1, 3])
    def test_any_picture_goes_through_a_network_of_any_channels(self, tmp_path, channels, picture_channels):
        before = noisy(picture_channels)
        solver = PictureSolver("denoise", conv_folder(tmp_path / "mine", channels), weight=0.3)
        after, summary = solver.solve(before)
        assert summary.iterations == 3  # what it was made for
        assert after.colours.shape == before.colours.shape
        problem = TVDenoising(tensor(before).float(), 0.3)
        copies = channels if picture_channels == 1 else 1
        start = problem.noisy.expand(1, copies * picture_channels, -1, -1)
        if channels == 1:
            parts = [lmd.run(solver.solver, TVDenoising(part, 0.3), part, 3).x for part in start.split(1, dim=1)]
            expected = torch.cat(parts, dim=1)
        else:
            expected = lmd.run(solver.solver, TVDenoising(start.contiguous(), 0.3), start.contiguous(), 3).x
        if copies > 1:
            expected = expected.mean(dim=1, keepdim=True)
        assert_close(tensor(after).float(), expected.clamp(0, 1), rtol=0, atol=0.51 / 255)
        assert summary.value_after == pytest.approx(float(problem.value(expected)), rel=1e-5)
        assert summary.value_before == pytest.approx(float(problem.value(problem.noisy)), rel=1e-5)

    def test_a_tolerance_asks_for_a_solver_that_can_tell(self, tmp_path):
        with pytest.raises(
            InputError, match=r"^solver: got .*mine, which does not know how near .* such as fgp or pdhg"
        ):
            PictureSolver("denoise", str(save(GradientDescent(0.01), tmp_path / "mine")), tolerance=1e-3)
        _, summary = PictureSolver("denoise", conv_folder(tmp_path / "network", 3), tolerance=1e-2).solve(noisy())
        assert summary.relative_bound < 0.011

    def test_a_solver_of_something_else(self, tmp_path):
        with pytest.raises(InputError, match=r"^solver: got 'svm-pair-10', expected one of fgp, pdhg"):
            PictureSolver("denoise", "svm-pair-10")
        with pytest.raises(InputError, match=r"^solver: got 'fgp', expected one of pdhg"):
            PictureSolver("inpaint", "fgp")
        folder = str(save(lmd.zoo.load("svm-pair-10"), tmp_path / "svm"))
        with pytest.raises(InputError, match=r"svm, which does not denoise images, expected the folder of a solver"):
            PictureSolver("denoise", folder)


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
        assert summary.value_after == summary.value_before and "the start is kept" in summary.notes[0]
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
        _, summary = PictureSolver(task, coupled=False).solve(noisy(), extra)
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

    @pytest.mark.parametrize("weight", [1e300, 1e-300, 2e6])
    def test_a_weight_that_single_precision_has_no_use_for(self, weight):
        with pytest.raises(InputError, match=r"^weight: got .*, expected a number from 1e-06 to 1e\+06$"):
            PictureSolver("denoise", weight=weight)

    @pytest.mark.parametrize("tolerance", [1e-8, 1e-300])
    def test_a_tolerance_that_single_precision_cannot_tell(self, tolerance):
        with pytest.raises(InputError, match=r"^tolerance: got 1e-.*, expected 1e-07 or more"):
            PictureSolver("denoise", "pdhg", tolerance=tolerance)

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
        def summary(value, lower, grey_levels=math.inf):
            return replace(base, value_after=value, lower_bound=lower, grey_levels=grey_levels)

        base = Summary(
            task="denoise", solver="fgp", model=DenoisingModel(), size=(2, 2), mode="grey", bits=8, weight=1.0,
            value_before=9.0, value_after=1.0, lower_bound=-math.inf, theorem="a theorem", grey_levels=math.inf,
            iterations=1, seconds=0.0,
        )  # fmt: skip
        assert "nothing of use is proven" in base.proven
        assert "nothing of use is proven" in summary(1.0, -0.1, 2.0).proven
        assert "within 600% of" in summary(7.0, 1.0).proven
        nothing = {"bound": None, "relative_bound": None, "lower_bound": None, "theorem": "a theorem"}
        assert base.as_json()["certificate"] == nothing
        assert summary(1.01, 1.0).proven == "within 1% of the minimum, by a theorem"
        assert summary(0.0, -1.0).proven == "at most 1 above the minimum, by a theorem"
        assert "26 of 255 grey levels" in summary(2.0, 1.0, 25.5).proven

    def test_grey_levels_are_those_of_the_bound(self):
        _, summary = PictureSolver("denoise", weight=0.2).solve(noisy())
        assert summary.grey_levels == pytest.approx(255 * math.sqrt(2 * summary.bound / (2 * 3 * 20 * 26)), rel=1e-3)


def test_twelve_megapixels_are_said_to_need_less_than_four_gigabytes(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * 10**9)
    PictureSolver("denoise").check("photo", Header((3000, 4000), 4, 16))
