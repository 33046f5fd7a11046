"""Pictures through solvers: every kind of picture, what is proven about it, and that nothing of it is lost."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import lmd
from lmd.data import image_files, memory
from lmd.data.image_files import Header, Picture, read_mask, read_picture, write_picture
from lmd.errors import FileError, InputError
from lmd.mirrors import ConvPair
from lmd.pictures import PictureSolver, Proof, solve, solve_file
from lmd.problems import TVDenoising, TVInpainting
from lmd.solvers import GradientDescent, LearnedMirrorDescent, save

TASKS = ("denoise", "inpaint")


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
    @pytest.mark.parametrize("isotropic", [False, True])
    @pytest.mark.parametrize(("channels", "dtype", "alpha"), [(1, np.uint8, False), (3, np.uint16, True)])
    def test_the_answer_is_the_minimiser_to_a_grey_level(self, name, isotropic, channels, dtype, alpha):
        before = noisy(channels, dtype, alpha)
        solver = PictureSolver("denoise", name, weight=0.1, tolerance=1e-5, isotropic=isotropic)
        after, summary = solver.solve(before)
        # What is solved, and proven, is the problem in single precision.
        problem = TVDenoising(tensor(before).float().double(), float(torch.tensor(0.1)), isotropic)
        assert_close(tensor(after), lmd.reference.minimiser(problem), rtol=0, atol=0.01)
        assert after.colours.dtype == dtype
        assert after.alpha is before.alpha
        assert summary.value_before == pytest.approx(float(problem.value(problem.start())), rel=1e-5)
        assert summary.value_after == pytest.approx(float(lmd.reference.minimum(problem)), rel=1e-4)
        assert summary.proof.lower_bound <= float(lmd.reference.minimum(problem)) * (1 + 1e-9)
        assert summary.proof.relative_bound < 5e-5
        apart = (tensor(after) - lmd.reference.minimiser(problem)).square().mean().sqrt()
        assert float(apart) <= summary.proof.distance + 1 / after.most  # and rounding
        assert summary.notes == ()

    def test_inpainting_ignores_what_is_lost(self):
        before = noisy()
        kept = np.random.default_rng(1).random(before.size) > 0.3
        spoilt = Picture(np.where(kept, before.colours, 255).astype(np.uint8))
        solver = PictureSolver("inpaint", "pdhg", tolerance=1e-4)
        after, summary = solver.solve(spoilt, kept)
        problem = TVInpainting(tensor(before), torch.from_numpy(kept), 0.3)
        assert summary.value_after == pytest.approx(float(lmd.reference.minimum(problem)), rel=3e-4)
        assert summary.proof.relative_bound < 3e-4
        assert summary.proof.distance == math.inf  # the minimiser need not be unique
        assert int(after.colours.max()) < 255

    @pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 2)])
    def test_the_smallest_pictures(self, size):
        after, summary = PictureSolver("denoise", "pdhg").solve(noisy(size=size))
        assert after.size == size
        assert math.isfinite(summary.proof.bound)

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
        monkeypatch.setattr(solve, "ENDLESS", 3)
        _, short = PictureSolver("denoise", "pdhg", tolerance=1e-6).solve(before)
        assert short.notes == ("the tolerance of 1e-06 was not reached in 3 iterations",)
        _, usual = PictureSolver("denoise", "pdhg").solve(before)
        assert usual.proof.relative_bound < 1.1 * solve.TOLERANCE


class TestNetworks:
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("picture_channels", [1, 3])
    def test_any_picture_goes_through_a_network_of_any_channels(self, tmp_path, channels, picture_channels):
        before = noisy(picture_channels)
        solver = PictureSolver("denoise", conv_folder(tmp_path / "mine", channels))
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

    def test_tiles_leave_no_seam(self, tmp_path, monkeypatch):
        before, folder = noisy(size=(50, 70)), conv_folder(tmp_path / "mine", 3)
        whole, _ = PictureSolver("denoise", folder).solve(before)
        monkeypatch.setattr("lmd.mirrors.tiles.TILE", 16)
        tiled, _ = PictureSolver("denoise", folder).solve(before)
        assert int(np.abs(tiled.colours.astype(int) - whole.colours).max()) <= 1  # a tie may round either way
        assert float((tiled.colours != whole.colours).mean()) < 1e-3

    def test_a_tolerance_asks_for_a_solver_that_can_tell(self, tmp_path):
        with pytest.raises(
            InputError, match=r"^solver: got .*mine, which does not know how near .* such as fgp or pdhg"
        ):
            PictureSolver("denoise", str(save(GradientDescent(0.01), tmp_path / "mine")), tolerance=1e-3)
        _, summary = PictureSolver("denoise", conv_folder(tmp_path / "network", 3), tolerance=1e-2).solve(noisy())
        assert summary.proof.relative_bound < 0.011

    def test_a_solver_of_something_else(self, tmp_path):
        with pytest.raises(InputError, match=r"^solver: got 'svm-pair-10', expected one of fgp, pdhg"):
            PictureSolver("denoise", "svm-pair-10")
        with pytest.raises(InputError, match=r"^solver: got 'fgp', expected one of pdhg"):
            PictureSolver("inpaint", "fgp")
        folder = str(save(lmd.zoo.load("svm-pair-10"), tmp_path / "svm"))
        with pytest.raises(InputError, match=r"svm, which does not denoise images, expected the folder of a solver"):
            PictureSolver("denoise", folder)


class TestDefaults:
    @pytest.mark.parametrize("task", TASKS)
    def test_a_learned_solver_is_taken_as_soon_as_it_ships(self, task, monkeypatch):
        assert PictureSolver(task).name == f"{task}-20"
        assert PictureSolver(task, tolerance=0.1).name == f"{task}-7-fast", "what lmd.solve would take"
        monkeypatch.setattr("lmd.zoo.shipped", lambda name: False)
        assert PictureSolver(task).name == "pdhg"

    def test_an_old_name_is_known(self):
        lmd.zoo._say_once.cache_clear()
        with pytest.warns(FutureWarning, match="tv-denoising-20 is called denoise-20 now"):
            assert PictureSolver("denoise", "tv-denoising-20").name == "denoise-20"

    @pytest.mark.parametrize("task", TASKS)
    def test_the_default_solves_its_task(self, task):
        before = noisy()
        kept = np.ones(before.size, dtype=bool) if task == "inpaint" else None
        _, summary = PictureSolver(task).solve(before, kept)
        assert summary.value_after < 0.5 * summary.value_before
        assert summary.solver == f"{task}-20"

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


class TestProof:
    def test_in_words(self):
        nothing = Proof(1.0, -math.inf, "none", 4, None)
        assert "nothing of use is proven" in str(nothing)
        assert "nothing of use is proven" in str(Proof(1.0, -0.1, "a theorem", 4, 2.0))
        assert "within 600% of" in str(Proof(7.0, 1.0, "a theorem", 4, None))
        assert nothing.as_json() == {"bound": None, "relative_bound": None, "lower_bound": None, "theorem": "none"}
        assert str(Proof(1.01, 1.0, "a theorem", 4, None)) == "within 1% of the minimum, by a theorem"
        assert str(Proof(0.0, -1.0, "a theorem", 4, None)) == "at most 1 above the minimum, by a theorem"
        near = Proof(2.0, 1.0, "a theorem", 100, 2.0)
        assert near.distance == pytest.approx(0.1)  # 1 >= ||x - x*||^2, over 100 numbers
        assert "26 of 255 grey levels" in str(near)


class TestMask:
    def test_white_is_kept(self, tmp_path):
        array = np.where(np.random.default_rng(0).random((20, 30)) > 0.5, 255, 0).astype(np.uint8)
        for name in ("a.png", "a.tif"):
            write_picture(tmp_path / name, Picture(array[None]))
            np.testing.assert_array_equal(read_mask(tmp_path / name, (20, 30)), array > 0)
        write_picture(tmp_path / "colour.png", Picture(np.stack([array] * 3), np.full_like(array, 255)))
        np.testing.assert_array_equal(read_mask(tmp_path / "colour.png", (20, 30)), array > 0)
        Image.fromarray(array > 0).save(tmp_path / "1.png")
        np.testing.assert_array_equal(read_mask(tmp_path / "1.png", (20, 30)), array > 0)
        deep = Picture(array[None].astype(np.uint16) * 257)
        write_picture(tmp_path / "deep.png", deep)
        np.testing.assert_array_equal(read_mask(tmp_path / "deep.png", (20, 30)), array > 0)

    @pytest.mark.parametrize(
        ("mask", "words"),
        [
            (Picture(np.zeros((1, 20, 30), np.uint8)), "all black, expected at least one white pixel"),
            (Picture(np.full((1, 20, 30), 128, np.uint8)), "100.0% of which is grey, expected an image of black"),
            (Picture(np.eye(20, 30, dtype=np.uint8)[None]), "of zeros and ones, expected .*: 0 and 255"),
            (Picture(np.stack([np.full((20, 30), v, np.uint8) for v in (255, 0, 0)])), "in colour"),
            (Picture(np.full((1, 20, 30), 255, np.uint8), np.eye(20, 30, dtype=np.uint8)), "partly transparent"),
            (Picture(np.full((1, 30, 20), 255, np.uint8)), "of 20 x 30 pixels, expected 30 x 20 pixels, as the image"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_what_is_no_mask(self, tmp_path, mask, words):
        write_picture(tmp_path / "m.png", mask)
        with pytest.raises(FileError, match=rf"^mask: got .*m\.png,? {words}"):
            read_mask(tmp_path / "m.png", (20, 30))

    def test_another_size_is_seen_before_anything_is_decoded(self, tmp_path, monkeypatch):
        write_picture(tmp_path / "in.png", noisy())
        Image.new("1", (60_000, 2)).save(tmp_path / "m.png")
        for place in (solve, image_files):
            monkeypatch.setattr(place, "read_picture", lambda *_: pytest.fail("it is not even read"))
        words = r"^mask: got .*m\.png of 60000 x 2 pixels, expected 26 x 20 pixels, as the image has$"
        with pytest.raises(FileError, match=words):
            read_mask(tmp_path / "m.png", (20, 26))
        with pytest.raises(FileError, match=words):
            solve_file("inpaint", tmp_path / "in.png", tmp_path / "out.png", mask=tmp_path / "m.png")

    def test_a_mask_that_has_to_be_turned(self, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(np.eye(30, 20, dtype=bool)).save(tmp_path / "m.png", exif=exif)
        np.testing.assert_array_equal(read_mask(tmp_path / "m.png", (20, 30)), np.eye(30, 20, dtype=bool).T[:, ::-1])


class TestFiles:
    @pytest.mark.parametrize("suffix", [".png", ".tif"])
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    @pytest.mark.parametrize("alpha", [False, True])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_depth_channels_and_transparency_stay(self, tmp_path, suffix, dtype, alpha, channels):
        before = noisy(channels, dtype, alpha)
        write_picture(tmp_path / f"in{suffix}", before)
        written, summary = solve_file("denoise", tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", iterations=5)
        after = read_picture(tmp_path / f"out{suffix}")
        assert (after.mode, after.bits) == (before.mode, before.bits)
        np.testing.assert_array_equal(after.colours, written.colours)
        if alpha:
            np.testing.assert_array_equal(after.alpha, before.alpha)
        assert summary.notes == ()
        assert summary.value_after < summary.value_before

    def test_jpeg_says_what_it_loses(self, tmp_path):
        write_picture(tmp_path / "in.png", noisy(dtype=np.uint16, alpha=True))
        _, summary = solve_file("denoise", tmp_path / "in.png", tmp_path / "out.jpg", iterations=5)
        assert [note.split(":")[0] for note in summary.notes] == ["JPEG holds no transparency", "JPEG holds 8 bits"]
        assert "note" in summary.text()

    def test_a_turned_photograph_is_upright(self, tmp_path):
        image = Image.fromarray(noisy(size=(20, 30)).samples())
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(tmp_path / "in.jpg", exif=exif)
        solve_file("denoise", tmp_path / "in.jpg", tmp_path / "out.jpg", iterations=2)
        with Image.open(tmp_path / "out.jpg") as out:
            assert out.size == (20, 30)
            assert out.getexif().get(0x0112, 1) == 1

    def test_too_large_for_the_memory_there_is(self, tmp_path, monkeypatch):
        write_picture(tmp_path / "in.png", noisy(size=(100, 200)))
        monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
        monkeypatch.setattr(solve, "read_picture", lambda path: pytest.fail("it is not even read"))
        with pytest.raises(InputError, match=r"^image: got .*in\.png of 200 x 100 pixels, which needs about"):
            solve_file("denoise", tmp_path / "in.png", tmp_path / "out.png")

    def test_twelve_megapixels_are_said_to_need_less_than_four_gigabytes(self, monkeypatch):
        monkeypatch.setattr(memory, "available_memory", lambda: 4 * 10**9)
        PictureSolver("denoise", "fgp").check_memory("photo", Header(3000, 4000, 4, 16))

    def test_a_failed_solve_leaves_nothing_behind(self, tmp_path, monkeypatch):
        write_picture(tmp_path / "in.png", noisy())

        def broken(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(solve, "run", broken)
        with pytest.raises(KeyboardInterrupt):
            solve_file("denoise", tmp_path / "in.png", tmp_path / "out.png")
        assert [path.name for path in tmp_path.iterdir()] == ["in.png"]

    def test_mask_and_task_belong_together(self, tmp_path):
        for task, mask in (("inpaint", None), ("denoise", "mask.png")):
            with pytest.raises(InputError, match=rf"^mask: got .* expected (a file|nothing) for {task}"):
                solve_file(task, "in.png", "out.png", mask=mask)
