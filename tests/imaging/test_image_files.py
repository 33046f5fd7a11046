import os
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageCms, ImageOps

from lmd.core import checks, memory
from lmd.errors import FileError, InputError
from lmd.imaging import image_files
from lmd.imaging.image_files import Header, Picture, check_out, losses, read_header, read_picture, write_picture

RGB = {"photometric": "rgb"}
SMALL = Header((5, 7), 3, 8)


def numbers(*shape, dtype=np.uint8, seed=0):
    most = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, most, shape, dtype=dtype, endpoint=True)


def picture(channels=3, alpha=False, dtype=np.uint8, size=(5, 7), **extra):
    return Picture(
        numbers(channels, *size, dtype=dtype), numbers(*size, dtype=dtype, seed=1) if alpha else None, **extra
    )


def assert_same(found, expected):
    assert found.colours.dtype == expected.colours.dtype
    np.testing.assert_array_equal(found.colours, expected.colours)
    assert (found.alpha is None) == (expected.alpha is None)
    if expected.alpha is not None:
        np.testing.assert_array_equal(found.alpha, expected.alpha)


def profile_of(space):
    return ImageCms.ImageCmsProfile(ImageCms.createProfile(space)).tobytes()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".TIFF"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
class TestRoundTrip:
    def test_every_sample_comes_back(self, tmp_path, suffix, dtype, alpha, channels):
        path, before = tmp_path / f"a{suffix}", picture(channels, alpha, dtype)
        write_picture(path, before)
        assert_same(read_picture(path), before)
        assert losses(path, before) == []
        assert read_header(path) == Header((5, 7), channels + alpha, before.bits)
        assert os.listdir(tmp_path) == [path.name]

    def test_the_colour_profile_comes_back(self, tmp_path, suffix, dtype, alpha, channels):
        grey = b"\0" * 16 + b"GRAY" + b"\0" * 108
        profile = profile_of("sRGB") if channels == 3 else grey
        write_picture(tmp_path / f"a{suffix}", picture(channels, alpha, dtype, profile=profile))
        assert read_picture(tmp_path / f"a{suffix}").profile == profile
        write_picture(tmp_path / f"b{suffix}", picture(4 - channels, alpha, dtype, profile=profile))
        assert read_picture(tmp_path / f"b{suffix}").profile is None  # it speaks of other channels

    def test_other_programs_read_the_same(self, tmp_path, suffix, dtype, alpha, channels):
        path, before = tmp_path / f"a{suffix}", picture(channels, alpha, dtype)
        write_picture(path, before)
        if suffix != ".png":
            np.testing.assert_array_equal(tifffile.imread(path), before.samples())
        elif dtype == np.uint8 or before.mode == "grey":
            with Image.open(path) as image:
                np.testing.assert_array_equal(np.asarray(image), before.samples())
        else:
            with Image.open(path) as image:  # Pillow has the upper bytes
                image.load()
                np.testing.assert_array_equal(np.asarray(image)[..., -1], (before.samples() >> 8)[..., -1])


class TestPillow:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_jpeg(self, tmp_path, channels):
        flat = np.full((channels, 16, 16), 180, dtype=np.uint8)
        write_picture(tmp_path / "a.jpg", Picture(flat))
        found = read_picture(tmp_path / "a.jpg")
        assert found.colours.shape == flat.shape and found.alpha is None
        assert int(np.abs(found.colours.astype(int) - 180).max()) <= 1

    def test_jpeg_loses_transparency_and_depth_and_says_so(self, tmp_path):
        deep = Picture(np.full((3, 8, 8), 40000, dtype=np.uint16), numbers(8, 8, dtype=np.uint16))
        assert [line.split(":")[0] for line in losses(tmp_path / "a.jpeg", deep)] == [
            "JPEG holds no transparency",
            "JPEG holds 8 bits",
        ]
        write_picture(tmp_path / "a.jpeg", deep)
        found = read_picture(tmp_path / "a.jpeg")
        assert (found.mode, found.bits) == ("RGB", 8)
        assert int(np.abs(found.colours.astype(int) - 156).max()) <= 1

    def test_palettes_and_bilevel(self, tmp_path):
        colours = Image.fromarray(numbers(5, 7, 3)).quantize(8)
        colours.save(tmp_path / "p.png")
        found = read_picture(tmp_path / "p.png")
        assert found.mode == "RGB"
        np.testing.assert_array_equal(found.samples(), np.asarray(colours.convert("RGB")))
        colours.save(tmp_path / "t.png", transparency=0)
        found = read_picture(tmp_path / "t.png")
        assert found.mode == "RGBA"
        np.testing.assert_array_equal(found.alpha, np.where(np.asarray(colours) == 0, 0, 255))
        Image.fromarray(numbers(5, 7) > 100).save(tmp_path / "1.tif")
        np.testing.assert_array_equal(read_picture(tmp_path / "1.tif").colours[0], 255 * (numbers(5, 7) > 100))

    def test_one_colour_that_stands_for_transparent(self, tmp_path):
        grey = numbers(5, 7)
        Image.fromarray(grey).save(tmp_path / "g.png", transparency=int(grey[2, 3]))
        assert read_picture(tmp_path / "g.png").mode == "greyA"
        np.testing.assert_array_equal(read_picture(tmp_path / "g.png").alpha, np.where(grey == grey[2, 3], 0, 255))

    def test_cmyk_becomes_rgb_without_its_profile(self, tmp_path):
        inks = Image.fromarray(numbers(8, 8, 3)).convert("CMYK")
        inks.save(tmp_path / "a.tif", icc_profile=b"\0" * 16 + b"CMYK" + b"\0" * 108)
        found = read_picture(tmp_path / "a.tif")
        assert (found.mode, found.profile) == ("RGB", None)

    @pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation(self, tmp_path, orientation, suffix):
        image = Image.fromarray(np.kron(numbers(3, 4, 3), np.ones((8, 8, 1), dtype=np.uint8)))
        exif = image.getexif()
        exif[0x0112] = orientation
        exif[0x010F] = "a maker of cameras"
        image.save(
            tmp_path / f"a{suffix}", exif=exif, **({"quality": 100, "subsampling": 0} if suffix == ".jpg" else {})
        )
        with Image.open(tmp_path / f"a{suffix}") as opened:
            expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
        found = read_picture(tmp_path / f"a{suffix}")
        np.testing.assert_array_equal(found.samples(), expected)
        assert (expected.shape[0] > expected.shape[1]) == (orientation >= 5)  # indeed turned
        write_picture(tmp_path / "again.png", found)
        assert_same(read_picture(tmp_path / "again.png"), found)  # it is not turned twice
        if suffix != ".tif":
            with Image.open(tmp_path / "again.png") as opened:
                assert opened.getexif()[0x010F] == "a maker of cameras"
            write_picture(tmp_path / "again.jpg", found)
            with Image.open(tmp_path / "again.jpg") as opened:
                assert dict(opened.getexif()) == {0x010F: "a maker of cameras"}


class TestDeep:
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_as_pillow_has_it(self, tmp_path, orientation):
        image = Image.fromarray(numbers(5, 7, 3))
        image.getexif()[0x0112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(image))
        tag = [(0x0112, "H", 1, orientation, True)]
        tifffile.imwrite(tmp_path / "a.tif", numbers(5, 7, 3).astype(np.uint16) * 257, photometric="rgb", extratags=tag)
        np.testing.assert_array_equal(read_picture(tmp_path / "a.tif").samples(), 257 * expected.astype(np.uint16))
        exif = Image.Exif()
        exif[0x0112] = orientation
        deep = Picture(np.moveaxis(numbers(5, 7, 3), -1, 0).astype(np.uint16) * 257, exif=exif.tobytes())
        write_picture(tmp_path / "a.png", deep)
        np.testing.assert_array_equal(read_picture(tmp_path / "a.png").samples(), 257 * expected.astype(np.uint16))

    @pytest.mark.parametrize("compression", [None, "lzw", "zlib", "packbits"])
    def test_how_other_programs_pack_tiff(self, tmp_path, compression):
        array = numbers(5, 7, 3, dtype=np.uint16)
        tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", compression=compression, byteorder=">")
        np.testing.assert_array_equal(read_picture(tmp_path / "a.tif").samples(), array)
        tifffile.imwrite(tmp_path / "b.tif", np.moveaxis(array, -1, 0), photometric="rgb", planarconfig="separate")
        np.testing.assert_array_equal(read_picture(tmp_path / "b.tif").samples(), array)

    def test_white_is_zero(self, tmp_path):
        array = numbers(5, 7, dtype=np.uint16)
        tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite")
        np.testing.assert_array_equal(read_picture(tmp_path / "a.tif").colours[0], 65535 - array)

    @pytest.mark.parametrize(
        ("array", "options", "words"),
        [
            (np.ones((3, 3), dtype=np.uint32), {}, "an image of 32 bits per channel"),
            (
                np.ones((4, 6, 5), dtype=np.uint16),
                {"planarconfig": "contig"} | RGB,
                r"of 5 channels of 16 bits \(RGB\)",
            ),
            (np.ones((3, 3, 4), dtype=np.uint16), {"photometric": "separated"}, r"of 4 channels of 16 bits \(SEP.*"),
        ],
    )
    def test_what_is_not_taken(self, tmp_path, array, options, words):
        tifffile.imwrite(tmp_path / "a.tif", array, **options)
        with pytest.raises(FileError, match=rf"^image: got .*a\.tif, {words}, expected grey, RGB or RGBA of 8 or 16"):
            read_picture(tmp_path / "a.tif")

    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_several_pages_are_a_volume(self, tmp_path, channels, dtype):
        layers = numbers(3, 5, 7, channels).astype(dtype)
        samples = layers if channels > 1 else layers[..., 0]
        options = RGB if channels > 1 else {"photometric": "minisblack"}
        tifffile.imwrite(tmp_path / "a.tif", samples, **options)
        assert read_header(tmp_path / "a.tif") == Header((3, 5, 7), channels, 8 * samples.itemsize, dtype == np.float32)
        found = read_picture(tmp_path / "a.tif")
        np.testing.assert_array_equal(found.colours, np.moveaxis(layers, -1, 0))
        write_picture(tmp_path / "b.tif", found)
        np.testing.assert_array_equal(tifffile.imread(tmp_path / "b.tif"), samples)
        assert_same(read_picture(tmp_path / "b.tif"), found)

    def test_pages_of_several_sizes(self, tmp_path):
        with tifffile.TiffWriter(tmp_path / "a.tif") as file:
            for height in (5, 6):
                file.write(numbers(height, 7), photometric="minisblack")
        with pytest.raises(FileError, match="of 2 pages of several sizes or kinds, expected pages that are alike"):
            read_picture(tmp_path / "a.tif")


class TestArrays:
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64, ">f4"])
    @pytest.mark.parametrize(
        ("shape", "colours", "alpha"),
        [
            ((5, 7), 1, False),
            ((5, 7, 3), 3, False),
            ((5, 7, 4), 3, True),
            ((4, 5, 7), 1, False),
            ((4, 5, 7, 3), 3, False),
        ],
    )
    def test_every_sample_comes_back(self, tmp_path, dtype, shape, colours, alpha):
        array = numbers(*shape).astype(dtype)
        np.save(tmp_path / "a.npy", array)
        header, found = read_header(tmp_path / "a.npy"), read_picture(tmp_path / "a.npy")
        assert found.size == header.size and len(found.colours) == colours and header.channels == colours + alpha
        assert header.floating == (array.dtype.kind == "f") and header.bits == 8 * array.itemsize
        assert (found.alpha is not None) == alpha
        write_picture(tmp_path / "b.npy", found)
        again = np.load(tmp_path / "b.npy")
        assert again.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(again, array)

    def test_true_is_white(self, tmp_path):
        np.save(tmp_path / "a.npy", np.eye(4, dtype=bool))
        np.testing.assert_array_equal(read_picture(tmp_path / "a.npy").colours[0], 255 * np.eye(4, dtype=np.uint8))

    @pytest.mark.parametrize(
        ("array", "words"),
        [
            (np.zeros(5), r"an array of shape \(5,\), expected an image \(H, W\)"),
            (np.zeros((2, 3, 4, 5)), "an array of shape"),
            (np.zeros((0, 5)), "an array of shape"),
            (np.zeros((4, 5), dtype=np.int64), "of int64, expected numbers of 8 or 16 bits"),
            (np.zeros((4, 5), dtype=complex), "of complex128, expected"),
        ],
    )
    def test_what_is_not_taken(self, tmp_path, array, words):
        np.save(tmp_path / "a.npy", array)
        for read in (read_header, read_picture):
            with pytest.raises(FileError, match=rf"^image: got .*a\.npy, {words}"):
                read(tmp_path / "a.npy")

    def test_nothing_that_could_run_code(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(FileError, match=r"^image: got .*a\.npy, damaged"):
            read_picture(tmp_path / "a.npy")


def test_threads_that_read_at_once_leave_stderr_as_it_was(tmp_path, capfd):
    write_picture(tmp_path / "a.png", picture())
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(read_picture, [tmp_path / "a.png"] * 40))) == 40
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"


class TestBadFiles:
    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("text.png", b"not at all", "not an image"),
            ("empty.jpg", b"", "an empty file"),
            ("short.tif", b"II*\0", "damaged"),
            ("gif.png", b"GIF89a\1\0\1\0\0\0\0;", "not an image"),
        ],
    )
    def test_one_line(self, tmp_path, name, content, words):
        (tmp_path / name).write_bytes(content)
        for read in (read_picture, read_header):
            with pytest.raises(FileError, match=rf"^photo: got .*{name}, {words}.*, expected a PNG, JPEG or") as caught:
                read(tmp_path / name, "photo")
            assert "\n" not in str(caught.value)

    def test_no_file_and_a_folder(self, tmp_path):
        with pytest.raises(FileError, match=r"got no file .*none\.png"):
            read_picture(tmp_path / "none.png")
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(FileError, match=r"got no file"):
            read_picture(tmp_path / "file" / "below.png")
        with pytest.raises(FileError, match="which is a folder"):
            read_picture(tmp_path)

    @pytest.mark.parametrize("name", ["8.png", "16.png", "8.jpg", "8.tif", "16.tif"])
    def test_damage_anywhere_is_one_line_or_harmless(self, tmp_path, name):
        path = tmp_path / name
        dtype = np.uint16 if name.startswith("16") else np.uint8
        write_picture(path, picture(dtype=dtype, size=(24, 24), profile=profile_of("sRGB")))
        whole, generator = path.read_bytes(), np.random.default_rng(0)
        for _ in range(100):
            content = bytearray(whole)
            for place in generator.integers(0, min(len(whole), 400), 4):
                content[place] = generator.integers(256)
            path.write_bytes(content if generator.random() < 0.7 else content[: generator.integers(1, len(whole))])
            with suppress(InputError):
                read_picture(path)

    @pytest.mark.parametrize("name", ["8.png", "16.png", "8.jpg", "8.tif", "16.tif"])
    def test_a_file_cut_short(self, tmp_path, name):
        path = tmp_path / name
        dtype = np.uint16 if name.startswith("16") else np.uint8
        write_picture(path, picture(dtype=dtype, size=(64, 64)))
        path.write_bytes(path.read_bytes()[:-1500])
        with pytest.raises(FileError, match=rf"{name}, (damaged|not an image)"):
            read_picture(path)

    @pytest.mark.parametrize("name", ["8.png", "16.png", "16.tif"])
    def test_more_pixels_than_memory_holds_are_refused_before_they_are_decoded(self, tmp_path, name, monkeypatch):
        path = tmp_path / name
        write_picture(path, picture(dtype=np.uint16 if name.startswith("16") else np.uint8, size=(200, 300)))
        monkeypatch.setattr(checks, "UNCHECKED", 0)
        monkeypatch.setattr(memory, "available_memory", lambda: 100_000)
        with pytest.raises(InputError, match=r"of 300 x 200 pixels, which needs about 0\.. GB of memory, expected one"):
            read_picture(path)

    def test_pillows_own_limit_is_off_here_and_nowhere_else(self, tmp_path, monkeypatch):
        write_picture(tmp_path / "a.png", picture(size=(20, 20)))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        assert read_picture(tmp_path / "a.png").size == (20, 20)
        assert Image.MAX_IMAGE_PIXELS == 100


class TestOut:
    def test_what_can_be_written(self, tmp_path):
        for name in ("a.png", "b.JPG", "c.jpeg", "d.tif", "e.tiff"):
            assert check_out(tmp_path / name, SMALL, tmp_path / "in.png") == tmp_path / name
        (tmp_path / "old.png").write_bytes(b"an older output")
        assert check_out(str(tmp_path / "old.png"), SMALL, overwrite=True).name == "old.png"

    def test_what_cannot(self, tmp_path):
        source = tmp_path / "in.png"
        source.write_bytes(b"x")
        (tmp_path / "link.png").symlink_to(source)
        (tmp_path / "hard.png").hardlink_to(source)
        (tmp_path / "folder.png").mkdir()
        (tmp_path / "there.png").write_bytes(b"an older output")
        for name, words in (
            ("folder.png", "which is a folder, expected the name of a file"),
            ("a.gif", r"expected a name that ends in \.png, \.jpg"),
            ("a", "expected a name that ends in"),
            ("none/a.png", "in a folder that does not exist"),
            ("a" * 300 + ".png", "File name too long"),
            ("in.png/a.png", "in a folder that does not exist"),
            ("in.png", "which is an input too, expected another name"),
            ("there.png", "which exists already, expected a new name"),
            ("link.png", "which is an input too"),
            ("hard.png", "which is an input too"),
            ("folder.png/../in.png", "which is an input too"),
        ):
            with pytest.raises(FileError, match=f"^out: got .*{words}"):
                check_out(tmp_path / name, SMALL, tmp_path / "other.png", source)

    def test_a_side_too_long_for_jpeg(self, tmp_path):
        long = Header((4, 70000), 1, 8)
        with pytest.raises(FileError, match=r"for 70000 x 4 pixels, expected \.png or \.tif"):
            check_out(tmp_path / "a.jpg", long)
        assert check_out(tmp_path / "a.png", long)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_cannot_be_written(self, tmp_path):
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(FileError, match="in a folder that is read-only"):
            check_out(locked / "a.png", SMALL)

    @pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
    def test_an_output_is_whole_or_not_there(self, tmp_path, suffix):
        path, before = tmp_path / f"a{suffix}", picture()
        path.write_bytes(b"what was there")
        broken = Picture(before.colours, numbers(3, 3))  # alpha of another size
        writes = {".jpg": lambda: write_picture(path, Picture(numbers(2, 5, 7)))}  # no format of two colours
        with pytest.raises((ValueError, TypeError)):
            writes.get(suffix, lambda: write_picture(path, broken))()
        assert path.read_bytes() == b"what was there"
        assert os.listdir(tmp_path) == [path.name]


class TestDamagedTiff:
    """Libraries complain about a damaged TIFF at length; a user gets one line or a picture, and nothing else."""

    @pytest.fixture(autouse=True)
    def listen(self, caplog):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
        assert caplog.get_records("call") == [] and said == []

    def flipped(self, folder, place):
        tifffile.imwrite(folder / "a.tif", numbers(12, 14, 3, dtype=np.uint16), **RGB)
        data = bytearray((folder / "a.tif").read_bytes())
        data[place] ^= 0x40
        (folder / "a.tif").write_bytes(data)
        return folder / "a.tif"

    @pytest.mark.parametrize("place", [4, 5, 12, 31, 36, 39, 43, 66, 82, 86])
    def test_nothing_is_said_but_the_error(self, tmp_path, place):
        with pytest.raises(FileError, match=r"^image: got .*a\.tif, ") as caught:
            read_picture(self.flipped(tmp_path, place))
        assert "\n" not in str(caught.value)

    def test_libraries_in_c_are_silent_too(self, tmp_path, capfd):
        Image.fromarray(numbers(12, 14, 3)).save(tmp_path / "a.tif", compression="tiff_deflate")
        data = bytearray((tmp_path / "a.tif").read_bytes())
        data[8 : len(data) // 2] = bytes(len(data) // 2 - 8)
        (tmp_path / "a.tif").write_bytes(data)
        with pytest.raises(FileError, match=r"^image: got .*a\.tif, damaged"):
            read_picture(tmp_path / "a.tif")
        assert capfd.readouterr() == ("", "")
        os.write(2, b"heard")
        assert capfd.readouterr().err == "heard", "afterwards all is as it was"

    def test_nothing_is_said_of_what_does_not_matter(self, tmp_path):
        assert read_picture(self.flipped(tmp_path, 72)).size == (12, 14)  # the type of the description

    def test_rows_that_are_missing_are_not_black(self, tmp_path):
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, numbers(12, 14, dtype=np.uint16), compression="zlib", rowsperstrip=12)
        data = bytearray(path.read_bytes())
        with tifffile.TiffFile(path) as whole:
            data[whole.pages.first.tags["ImageLength"].valueoffset] = 36
        path.write_bytes(data)
        with pytest.raises(FileError, match=r"damaged \(pixels are missing\)"):
            read_picture(path)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_a_header_that_promises_more_than_the_file_can_hold(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    Image.new("L", (30, 30)).save(path)
    data = bytearray(path.read_bytes())
    if suffix == ".png":
        data[16:24] = (30_000).to_bytes(4, "big") * 2
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    else:
        place = data.index(b"\xff\xc0") + 5
        data[place : place + 4] = (30_000).to_bytes(2, "big") * 2
    path.write_bytes(data)
    for read in (read_header, read_picture):
        with pytest.raises(FileError, match=r"damaged \(it is too short to hold 30000 x 30000 pixels\)"):
            read(path)


def test_the_densest_png_there_is(tmp_path):
    Image.new("1", (20_000, 2000)).save(tmp_path / "a.png", compress_level=9)
    assert read_header(tmp_path / "a.png") == Header((2000, 20_000), 1, 8)


@pytest.mark.parametrize("place", ["pipe", "/dev/zero"])
def test_what_is_no_plain_file(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="which is no plain file"):
        read_header(tmp_path / place)


class TestMemory:
    def test_this_machine(self):
        there = memory.available_memory()
        assert there is None or there > 1e6

    def test_the_tightest_limit_counts(self, monkeypatch):
        monkeypatch.setattr(memory, "_of_machine", lambda: 5_000_000_000)
        monkeypatch.setattr(memory, "_of_container", lambda _: 2_000_000_000)
        monkeypatch.setattr(memory, "_of_process", lambda: None)
        assert memory.available_memory() == 2_000_000_000
        checks.check_memory("image", "one", 2_000_000_000)
        expected = "^image: got one, which needs about 2.1 GB of memory, expected one that fits into the 2.0 GB that"
        with pytest.raises(InputError, match=expected):
            checks.check_memory("image", "one", 2_100_000_000)

    def test_a_container(self, tmp_path):
        assert memory._of_container(tmp_path) is None
        (tmp_path / "memory.max").write_text("max\n")
        (tmp_path / "memory.current").write_text("900\n")
        assert memory._of_container(tmp_path) is None
        (tmp_path / "memory.max").write_text("1000\n")
        assert memory._of_container(tmp_path) == 100
        (tmp_path / "memory.stat").write_text("anon 500\nfile 400\nfile_mapped 7\n")
        assert memory._of_container(tmp_path) == 500

    @pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux alone says how much is in use")
    def test_a_limit_of_the_process(self, monkeypatch):
        import resource

        monkeypatch.setattr(resource, "getrlimit", lambda _: (10**13, 10**13))
        left = memory._of_process()
        assert left is not None and 10**13 - 10**12 < left < 10**13 - 10**7
        monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert memory._of_process() is None


def test_formats_and_suffixes_agree():
    from lmd.reproduction.datasets import images

    assert {*images.SUFFIXES, ".npy"} == set(image_files.FORMATS)
