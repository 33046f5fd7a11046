import os
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from lmd.errors import FileError, InputError
from lmd.reproduction.datasets import image_data, images, read_images
from lmd.reproduction.datasets.images import read_image


def bytes_image(height=5, width=7, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


class TestReadImage:
    @pytest.mark.parametrize("suffix", [".png", ".tif", ".PNG"])
    def test_colours_come_back_as_they_were(self, tmp_path, suffix):
        array = bytes_image()
        Image.fromarray(array).save(tmp_path / f"a{suffix}")
        found = read_image(tmp_path / f"a{suffix}")
        assert found.dtype == torch.uint8
        assert_close(found, torch.from_numpy(array).permute(2, 0, 1))
        found.zero_()  # memory of its own

    def test_jpeg(self, tmp_path):
        Image.fromarray(np.full((8, 9, 3), (200, 100, 50), dtype=np.uint8)).save(tmp_path / "a.jpg", quality=95)
        expected = torch.tensor([200, 100, 50], dtype=torch.uint8).reshape(3, 1, 1).expand(3, 8, 9)
        assert_close(read_image(tmp_path / "a.jpg"), expected, rtol=0, atol=3)

    def test_grey_transparent_and_palette_images_become_colour(self, tmp_path):
        grey = bytes_image(channels=1)[..., 0]
        Image.fromarray(grey).save(tmp_path / "grey.png")
        assert_close(read_image(tmp_path / "grey.png"), torch.from_numpy(grey).expand(3, 5, 7))
        alpha = bytes_image(channels=4)
        Image.fromarray(alpha).save(tmp_path / "alpha.png")
        assert_close(read_image(tmp_path / "alpha.png"), torch.from_numpy(alpha[..., :3]).permute(2, 0, 1))
        Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
        assert read_image(tmp_path / "palette.png").shape == (3, 5, 7)

    @pytest.mark.parametrize("suffix", [".png", ".tif"])
    def test_16_bits_become_8(self, tmp_path, suffix):
        grey = np.array([[0, 257, 65535], [128 * 257, 300, 40000]], dtype=np.uint16)
        Image.fromarray(grey).save(tmp_path / f"a{suffix}")
        expected = torch.tensor([[0, 1, 255], [128, 1, 156]], dtype=torch.uint8)
        assert_close(read_image(tmp_path / f"a{suffix}"), expected.expand(3, 2, 3))

    def test_a_camera_on_its_side(self, tmp_path):
        array = bytes_image()
        image = Image.fromarray(array)
        exif = image.getexif()
        exif[0x0112] = 6  # turn by 90 degrees clockwise
        image.save(tmp_path / "a.png", exif=exif)
        assert_close(read_image(tmp_path / "a.png"), torch.from_numpy(np.rot90(array, -1).copy()).permute(2, 0, 1))

    def test_what_is_not_an_image(self, tmp_path):
        for name, content, words in (
            ("text.png", b"not at all", "text.png, not an image"),
            ("empty.jpg", b"", "empty.jpg, an empty file"),
        ):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(FileError, match=words + ", expected a PNG, JPEG or TIFF image") as caught:
                read_image(tmp_path / name)
            assert "\n" not in str(caught.value)
        with pytest.raises(FileError, match=r"no file .*none\.png"):
            read_image(tmp_path / "none.png")
        with pytest.raises(FileError, match=r"which is a folder"):
            read_image(tmp_path)

    @pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif"])
    def test_a_file_cut_short(self, tmp_path, suffix):
        path = tmp_path / f"a{suffix}"
        Image.fromarray(bytes_image(64, 64)).save(path)
        path.write_bytes(path.read_bytes()[:-1500])
        with pytest.raises(FileError, match=rf"a{suffix}, (damaged|not an image)"):
            read_image(path)


class TestReadImages:
    def test_a_folder_by_name_and_only_its_images(self, tmp_path):
        folder = tmp_path / "mine"
        (folder / "sub.png").mkdir(parents=True)
        (folder / "notes.txt").write_text("not an image")
        for name, shape in (("b.png", (6, 5)), ("a.tiff", (4, 9))):
            Image.fromarray(bytes_image(*shape)).save(folder / name)
        found = read_images(folder)
        assert found.name == "mine"
        assert [tuple(image.shape) for image in found.images] == [(3, 4, 9), (3, 6, 5)]
        crops = found.crops(4)
        assert crops.shape == (2, 3, 4, 4)
        assert_close(crops[1], found.images[1][:, 1:5, 0:4])
        with pytest.raises(FileError, match="an image of 4 x 9 pixels in mine, expected images of at least 5 x 5"):
            found.crops(5)

    def test_a_folder_without_images_or_with_a_bad_one(self, tmp_path):
        with pytest.raises(FileError, match="which has no images in it"):
            read_images(tmp_path)
        (tmp_path / "bad.png").write_bytes(b"zzz")
        with pytest.raises(FileError, match=r"bad\.png, not an image"):
            read_images(tmp_path)

    def test_one_image(self, tmp_path):
        Image.fromarray(bytes_image()).save(tmp_path / "cat.png")
        found = read_images(str(tmp_path / "cat.png"))
        assert (found.name, len(found.images)) == ("cat", 1)

    def test_an_npz(self, tmp_path):
        array = np.random.default_rng(0).integers(0, 256, (4, 3, 6, 8), dtype=np.uint8)
        np.savez(tmp_path / "some.npz", images=array)
        found = read_images(tmp_path / "some.npz")
        assert found.name == "some"
        assert_close(torch.stack(found.images), torch.from_numpy(array))

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"pictures": np.zeros(3)}, "which holds pictures, expected an .npz with `images`"),
            ({}, "which holds nothing"),
            ({"images": np.zeros((2, 3, 4, 4))}, r"`images` of float64 \(2, 3, 4, 4\)"),
            ({"images": np.zeros((2, 4, 4, 3), dtype=np.uint8)}, r"`images` of uint8 \(2, 4, 4, 3\)"),
            ({"images": np.zeros((0, 3, 4, 4), dtype=np.uint8)}, r"`images` of uint8 \(0, 3, 4, 4\)"),
            ({"images": np.zeros((3, 4, 4), dtype=np.uint8)}, r"`images` of uint8 \(3, 4, 4\)"),
            ({"images": np.array([{}], dtype=object)}, r"`images` of object \(1,\)"),
        ],
    )
    def test_other_arrays(self, tmp_path, arrays, words):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(FileError, match=words) as caught:
            read_images(tmp_path / "a.npz")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "content", [b"", b"text", b"PK\x03\x04 cut short", b"\x80\x04N.", b"\x93NUMPY\x01"], ids=repr
    )
    def test_other_files_that_are_called_npz(self, tmp_path, content):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(FileError, match=r"a\.npz, damaged or not an \.npz, expected an \.npz with"):
            read_images(tmp_path / "a.npz")
        with pytest.raises(FileError, match="no file"):
            read_images(tmp_path / "none.npz")

    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            ("(1000000000, 3, 20000, 20000)", "which needs about .* GB of memory"),
            ("(1, 3, 2000, 2000)", "damaged or not an .npz"),
            ("(-1, 3, 4, 4)", "of uint8"),
            ("(((((", "damaged or not an .npz"),
        ],
    )
    def test_an_npz_that_declares_what_it_has_not(self, tmp_path, shape, words):
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as packed:
            packed.writestr("images.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"few")
        with pytest.raises(InputError, match=rf"^images: got .*a\.npz.*{words}") as caught:
            read_images(tmp_path / "a.npz")
        assert "\n" not in str(caught.value)

    def test_a_pipe_that_is_called_npz(self, tmp_path):
        os.mkfifo(tmp_path / "a.npz")
        with pytest.raises(FileError, match=r"a\.npz, which is no plain file"):
            read_images(tmp_path / "a.npz")

    def test_an_npz_of_columns_first(self, tmp_path):
        array = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 8), dtype=np.uint8)
        np.savez(tmp_path / "a.npz", images=np.asfortranarray(array))
        assert_close(torch.stack(read_images(tmp_path / "a.npz").images), torch.from_numpy(array))

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_an_npz_with_a_damaged_middle(self, tmp_path, save):
        save(tmp_path / "a.npz", images=np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8))
        content = bytearray((tmp_path / "a.npz").read_bytes())
        content[3000:3100] = bytes(100)
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(FileError, match=r"a\.npz, damaged or not an \.npz"):
            read_images(tmp_path / "a.npz")


class TestPhotographs:
    def test_no_photograph_is_in_both_folds_and_all_are_there(self):
        assert not set(images.TRAIN_PHOTOGRAPHS) & set(images.TEST_PHOTOGRAPHS)
        data = image_data("photographs")
        for fold, photographs in (
            (data.train_images, images.TRAIN_PHOTOGRAPHS),
            (data.test_images, images.TEST_PHOTOGRAPHS),
        ):
            assert fold.dtype == torch.uint8 and fold.shape[1:] == (3, 96, 96)
            assert len(fold) >= 20 * len(photographs)
            assert len(fold.flatten(1).unique(dim=0)) == len(fold)  # none twice
        assert data.name == "photographs"

    def test_the_first_crops_are_one_of_each_photograph_shrunk_whole(self):
        crops = image_data("photographs").test_images
        for crop, place in zip(crops, images.TEST_PHOTOGRAPHS, strict=False):
            whole = read_image(images.bundled(*place)).float()
            small = torch.nn.functional.interpolate(
                whole[None], size=(96, round(96 * whole.shape[2] / whole.shape[1])), mode="area"
            )
            left = (small.shape[3] - 96) // 2
            assert float((crop - small[0, :, :, left : left + 96]).abs().mean()) < 4

    def test_auto_without_stl10_are_the_photographs(self):
        assert image_data().name == "photographs"

    def test_a_missing_package_is_named(self):
        with pytest.raises(FileError, match="no package no_such_package"):
            images.bundled("no_such_package", "a.png")

    def test_bad_name(self):
        with pytest.raises(InputError, match=r"^name: got 'stl', expected one of auto, photographs, stl10"):
            image_data("stl")
