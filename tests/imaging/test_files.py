"""Picture files through solvers: every kind of file, many of them, and that nothing of them is lost."""

import math
import shutil
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from lmd.cli.program import main
from lmd.core import checks, memory
from lmd.errors import FileError, InputError
from lmd.imaging import PictureSolver, files, functions, image_files, solve_file, solve_many
from lmd.imaging.files import Job, find_jobs, read_kernel
from lmd.imaging.image_files import Picture, read_mask, read_picture, write_picture
from lmd.operators import gaussian_kernel, motion_kernel


def noisy(channels=3, dtype=np.uint8, alpha=False, size=(20, 26)):
    """Two flat halves and noise."""
    generator = np.random.default_rng(0)
    most = np.iinfo(dtype).max
    flat = np.where(np.arange(size[1]) < size[1] // 2, 0.3, 0.7) * np.ones((channels, *size))
    colours = (flat + 0.05 * generator.standard_normal(flat.shape)).clip(0, 1)
    opaque = generator.integers(0, most, size, dtype=dtype, endpoint=True) if alpha else None
    return Picture((colours * most).round().astype(dtype), opaque)


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
        monkeypatch.setattr(image_files, "_picture", lambda *_: pytest.fail("it is not even read"))
        words = r"^mask: got .*m\.png of 60000 x 2 pixels, expected 26 x 20 pixels, as the image has$"
        with pytest.raises(FileError, match=words):
            read_mask(tmp_path / "m.png", (20, 26))
        with pytest.raises(FileError, match=words):
            solve_file("inpaint", tmp_path / "in.png", tmp_path / "out.png", extra=tmp_path / "m.png")

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
        done = solve_file("denoise", tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", iterations=5)
        after = read_picture(tmp_path / f"out{suffix}")
        assert (after.mode, after.bits) == (before.mode, before.bits)
        assert (done.summary.size, done.summary.mode, done.summary.bits) == (before.size, before.mode, before.bits)
        assert float(np.abs(after.colours - before.colours.astype(float)).mean()) < 0.1 * before.most
        if alpha:
            np.testing.assert_array_equal(after.alpha, before.alpha)
        assert done.summary.notes == ()
        assert done.summary.value_after < done.summary.value_before

    def test_jpeg_says_what_it_loses(self, tmp_path):
        write_picture(tmp_path / "in.png", noisy(dtype=np.uint16, alpha=True))
        summary = solve_file("denoise", tmp_path / "in.png", tmp_path / "out.jpg", iterations=5).summary
        assert [note.split(":")[0] for note in summary.notes] == ["JPEG holds no transparency", "JPEG holds 8 bits"]
        assert "note" in str(summary)

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
        monkeypatch.setattr(checks, "UNCHECKED", 0)
        monkeypatch.setattr(memory, "available_memory", lambda: 1_000_000)
        monkeypatch.setattr(image_files, "_picture", lambda *_: pytest.fail("it is not even read"))
        with pytest.raises(InputError, match=r"^image: got .*in\.png of 200 x 100 pixels, which needs about"):
            solve_file("denoise", tmp_path / "in.png", tmp_path / "out.png")

    def test_a_failed_solve_leaves_nothing_behind(self, tmp_path, monkeypatch):
        write_picture(tmp_path / "in.png", noisy())

        def broken(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(functions, "solve", broken)
        with pytest.raises(KeyboardInterrupt):
            solve_file("denoise", tmp_path / "in.png", tmp_path / "out.png")
        assert [path.name for path in tmp_path.iterdir()] == ["in.png"]

    def test_ctrl_c_in_a_folder_waits_for_no_picture(self, tmp_path, monkeypatch):
        """Whatever the workers are doing: no file is begun, none half-written, and it is over at once."""
        (tmp_path / "in").mkdir()
        for name in ("a.png", "b.png", "c.png"):
            write_picture(tmp_path / "in" / name, noisy())
        solver = PictureSolver("denoise", weight=0.1, coupled=True)
        working, go_on = threading.Event(), threading.Event()
        solved, threads = solver.solve, []

        def slowly(*arguments):
            threads.append(threading.current_thread())
            working.set()
            go_on.wait(60)
            return solved(*arguments)

        def press():
            working.wait(60)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        monkeypatch.setattr(solver, "solve", slowly)
        jobs = find_jobs([str(tmp_path / "in")], str(tmp_path / "out"))
        for workers in (1, 2):
            threads.clear(), working.clear(), go_on.clear()
            threading.Thread(target=press).start()
            with pytest.raises(KeyboardInterrupt):
                list(solve_many(solver, jobs, workers=workers))
            assert all(thread.is_alive() for thread in threads), "it did not wait for them"
            go_on.set()
            for thread in threads:
                thread.join(60)
            assert len(threads) <= workers and list((tmp_path / "out").iterdir()) == []

    def test_mask_and_task_belong_together(self, tmp_path):
        for task, extra, name in (
            ("inpaint", None, "mask"),
            ("denoise", "mask.png", "extra"),
            ("deblur", None, "kernel"),
        ):
            with pytest.raises(InputError, match=rf"^{name}: got .* expected (one|nothing) for {task}"):
                solve_file(task, "in.png", "out.png", extra=extra)

    @pytest.mark.parametrize("suffix", [".tif", ".npy"])
    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
    def test_volumes(self, tmp_path, suffix, channels, dtype):
        values = np.random.default_rng(0).random((channels, 3, 6, 7))
        before = Picture((values * (1 if dtype == np.float32 else np.iinfo(dtype).max)).astype(dtype))
        write_picture(tmp_path / f"in{suffix}", before)
        done = solve_file("denoise", tmp_path / f"in{suffix}", tmp_path / f"out{suffix}", weight=0.1)
        after = read_picture(tmp_path / f"out{suffix}")
        assert after.colours.shape == before.colours.shape and after.colours.dtype == dtype
        assert done.as_json()["depth"] == 3
        for name in ("out.png", "out.jpg"):
            with pytest.raises(FileError, match=r"expected a name that ends in .tif or .npy"):
                solve_file("denoise", tmp_path / f"in{suffix}", tmp_path / name)


class TestKernel:
    def test_by_name_and_by_file(self, tmp_path):
        assert_close(read_kernel("gaussian:1.5"), gaussian_kernel(1.5))
        assert_close(read_kernel("motion:9"), motion_kernel(9.0, 0.0))
        assert_close(read_kernel("motion:9:90"), motion_kernel(9.0, math.pi / 2))
        taps = np.array([[0, 1, 0], [1, 4, 1], [0, 1, 0]], np.uint8)
        write_picture(tmp_path / "k.png", Picture(taps[None]))
        np.save(tmp_path / "k.npy", taps / 2.0)
        for name in ("k.png", "k.npy"):
            assert_close(read_kernel(str(tmp_path / name)), torch.from_numpy(taps / 8.0))

    @pytest.mark.parametrize(
        "text", ["gaussian", "gaussian:", "gaussian:x", "gaussian:1:2", "motion:1:2:3", "motion:0"]
    )
    def test_what_is_none(self, text):
        with pytest.raises(InputError, match=r"^kernel: got .*, expected gaussian:WIDTH, motion:LENGTH"):
            read_kernel(text)

    def test_a_file_that_holds_none(self, tmp_path):
        write_picture(tmp_path / "k.png", Picture(np.zeros((1, 3, 3), np.uint8)))
        with pytest.raises(FileError, match=r"^kernel: got .*k.png, of sum 0, expected a kernel of a positive sum"):
            read_kernel(str(tmp_path / "k.png"))
        write_picture(tmp_path / "c.png", Picture(np.ones((3, 3, 3), np.uint8)))
        with pytest.raises(FileError, match=r"^kernel: got .*c.png, in colour or a volume"):
            read_kernel(str(tmp_path / "c.png"))


class TestMany:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "in" / "deeper").mkdir(parents=True)
        for place, name in enumerate(("a.png", "b.tif", "deeper/c.png")):
            write_picture(tmp_path / "in" / name, noisy(size=(20 + place, 26)))
        (tmp_path / "in" / "notes.txt").write_text("no picture")
        return tmp_path

    def test_which_go_where(self, folder):
        files = ["a.png", "b.tif", "deeper/c.png"]
        assert [str(job.out) for job in find_jobs(["in"], "out")] == [f"out/{name}" for name in files]
        assert [str(job.image) for job in find_jobs(["in"], "out")] == [f"in/{name}" for name in files]
        assert [str(job.out) for job in find_jobs(["in/*.png"], "out")] == ["out/a.png"]
        assert [str(job.out) for job in find_jobs(["in/**/*.png"], "out")] == ["out/a.png", "out/c.png"]
        assert [str(job.out) for job in find_jobs(["in/a.png", "in/b.tif"], "out")] == ["out/a.png", "out/b.tif"]
        assert find_jobs(["in/a.png"], "new.png") == [Job(Path("in/a.png"), Path("new.png"))]
        assert [str(job.out) for job in find_jobs(["in/a.png"], "in/deeper")] == ["in/deeper/a.png"]
        assert [str(job.out) for job in find_jobs(["in"], "in/out")] == [f"in/out/{name}" for name in files]
        write_picture("in/out/a.png", noisy())
        assert len(find_jobs(["in"], "in/out", overwrite=True)) == 3, "what was written is not read"

    def test_what_cannot_be(self, folder):
        (folder / "empty").mkdir()
        with pytest.raises(FileError, match=r"^image: got empty, a folder with no pictures in it"):
            find_jobs(["empty"], "out")
        with pytest.raises(FileError, match=r"^image: got \*\.gif, which matches no file"):
            find_jobs(["*.gif"], "out")
        write_picture(folder / "a.png", noisy())
        with pytest.raises(FileError, match=r"^image: got in/a.png and a.png, both for out/a.png"):
            find_jobs(["in/a.png", "a.png"], "out")
        with pytest.raises(FileError, match=r"^out: got in, where the pictures are, expected another folder"):
            find_jobs(["in"], "in", overwrite=True)
        (folder / "link").symlink_to("in")
        for same in ("link", str(folder / "in"), "in/deeper/.."):
            with pytest.raises(FileError, match=r"^out: got .*, where the pictures are"):
                find_jobs(["in"], same, overwrite=True)
        shutil.copytree("in", "there")
        with pytest.raises(FileError, match=r"^out: got there/a.png and 2 more, which exist already, .* --overwrite"):
            find_jobs(["in"], "there")
        assert find_jobs(["a.png", "a.png"], "elsewhere") == [Job(Path("a.png"), Path("elsewhere/a.png"))]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_one_that_fails_leaves_the_others(self, folder, workers):
        (folder / "in" / "broken.png").write_bytes(b"no picture")
        found = {
            str(done.job.out): done
            for done in solve_many(PictureSolver("denoise"), find_jobs(["in"], "out"), workers=workers)
        }
        assert sorted(found) == ["out/a.png", "out/b.tif", "out/broken.png", "out/deeper/c.png"]
        assert [name for name, done in found.items() if done.summary is None] == ["out/broken.png"]
        assert "in/broken.png, not an image" in found["out/broken.png"].line
        assert found["out/broken.png"].as_json()["error"] == found["out/broken.png"].error
        assert "out/a.png: 26 x 20 pixels, RGB, 8 bits, weight" in found["out/a.png"].line
        assert not Path("out/broken.png").exists()
        assert sorted(str(path) for path in Path("out").rglob("*.*")) == ["out/a.png", "out/b.tif", "out/deeper/c.png"]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_what_nobody_thought_of_costs_one_file(self, folder, monkeypatch, workers):
        def broken(path):
            if path.name == "b.tif":
                raise IndexError("out of\nbounds")
            return image_files.open_picture(path)

        monkeypatch.setattr(files, "open_picture", broken)
        jobs = find_jobs(["in"], "out")
        found = {done.job.image.name: done for done in solve_many(PictureSolver("denoise"), jobs, workers=workers)}
        assert [name for name, done in found.items() if done.summary is None] == ["b.tif"]
        assert found["b.tif"].error == f"{Path('in/b.tif')}: IndexError, out of bounds"

    def test_any_number_of_workers_gives_the_same_bytes(self, folder):
        for workers in (1, 3):
            jobs = find_jobs(["in"], f"out{workers}")
            assert all(done.summary for done in solve_many(PictureSolver("denoise"), jobs, workers=workers))
        for name in ("a.png", "b.tif", "deeper/c.png"):
            assert Path("out1", name).read_bytes() == Path("out3", name).read_bytes()

    def test_inputs_are_never_written_over(self, folder):
        before = Path("in/a.png").read_bytes()
        jobs = [Job(Path("in/a.png"), Path("in/a.png"))]
        (done, *_) = solve_many(PictureSolver("denoise"), jobs, overwrite=True)
        assert "inputs are never overwritten" in done.error
        assert Path("in/a.png").read_bytes() == before

    def test_a_mask_for_each(self, folder):
        (folder / "masks").mkdir()
        for name, size in (("a", (20, 26)), ("b", (21, 26))):
            write_picture(folder / "masks" / f"{name}.png", Picture(np.full((1, *size), 255, np.uint8)))
        jobs = find_jobs(["in"], "out")
        found = {done.job.image.name: done for done in solve_many(PictureSolver("inpaint"), jobs, "masks", workers=1)}
        assert found["a.png"].summary and found["b.tif"].summary
        assert "masks, with 0 files for c.png" in found["c.png"].error


def test_an_inverted_mask_ends_with_code_2(tmp_path, capsys):
    image = np.random.default_rng(0).integers(0, 255, (20, 21, 3)).astype(np.uint8)
    scratch = np.zeros((20, 21), np.uint8)
    scratch[5:7], image[5:7] = 255, 255
    Image.fromarray(image).save(tmp_path / "in.png")
    Image.fromarray(scratch).save(tmp_path / "mask.png")
    mask = str(tmp_path / "mask.png")
    with pytest.raises(SystemExit) as caught:
        main(["solve", "inpaint", *(str(tmp_path / name) for name in ("in.png", "o.png")), "--mask", mask])
    assert caught.value.code == 2 and "inverted" in capsys.readouterr().err and not (tmp_path / "o.png").exists()
