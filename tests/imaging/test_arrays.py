"""Arrays of every kind, dtype and layout, there and back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmd.errors import InputError, PictureWarning
from lmd.imaging.arrays import Units, as_batch, find_axes

SHAPES = {
    (7,): (1, 1, 7),
    (5, 6): (1, 1, 5, 6),
    (5, 6, 3): (1, 3, 5, 6),
    (5, 6, 4): (1, 3, 5, 6),
    (5, 6, 7): (1, 1, 5, 6, 7),
    (2, 3, 5, 6): (2, 3, 5, 6),
    (2, 5, 6, 3): (2, 3, 5, 6),
    (2, 4, 5, 6): (2, 4, 5, 6),
    (2, 1, 4, 5, 6): (2, 1, 4, 5, 6),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_axes_of_numpy_arrays(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape)
    batch = as_batch("image", array)
    assert tuple(batch.images.shape) == SHAPES[shape]
    np.testing.assert_allclose(batch.back(batch.images), array, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_channel_axis_that_is_named(axis: int) -> None:
    array = np.random.default_rng(0).random((7, 5, 6))
    batch = as_batch("image", array, axis)
    assert batch.images.shape[1] == array.shape[axis]
    torch.testing.assert_close(batch.images[0, 1], torch.tensor(array.take(1, axis)).float())
    assert batch.back(batch.images).shape == array.shape


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", ">f4"]
)
def test_numbers_come_back_as_they_were(dtype: str) -> None:
    array = (np.random.default_rng(0).random((6, 7)) * 200).astype(dtype)
    out = as_batch("image", array).back
    batch = as_batch("image", array, dtype=torch.float64)
    assert batch.back(batch.images).dtype == array.dtype
    np.testing.assert_array_equal(batch.back(batch.images), array)
    assert out(torch.full((1, 1, 6, 7), 1e9)).dtype == array.dtype


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_whole_numbers_are_rounded_to_the_nearest_one(dtype: str) -> None:
    batch = as_batch("image", np.array([[-9, 0, 8]], dtype), dtype=torch.float64)
    assert batch.back(torch.tensor([[[[-8.6, 0.6, 7.4]]]], dtype=torch.float64)).tolist() == [[-9, 1, 7]]


def test_bytes_are_numbers_from_0_to_1() -> None:
    batch = as_batch("image", np.array([[0, 255]], np.uint8))
    assert batch.exact.tolist() == batch.pixels(batch.images).tolist() == [[[[0.0, 1.0]]]]
    assert batch.back(torch.tensor([[[[-0.5, 1.7]]]])).tolist() == [[0, 255]]


@pytest.mark.parametrize(("dtype", "low", "high"), [("uint8", 0, 256), ("uint16", 0, 65536), ("uint16", 60001, 60500)])
def test_whole_numbers_of_pictures_have_no_rounding_in_float32(dtype: str, low: int, high: int) -> None:
    array = np.arange(low, high).astype(dtype)
    batch = as_batch("image", array)
    assert batch.images.dtype == torch.float32 and batch.is_exact
    numbers = batch.images.double().flatten() * batch.units.unit + batch.units.centre
    assert torch.equal(numbers, torch.arange(low, high, dtype=torch.float64))


def test_booleans_and_layouts() -> None:
    array = np.asfortranarray(np.arange(12).reshape(3, 4) % 2 == 0)[::-1, ::2]
    batch = as_batch("image", array)
    np.testing.assert_array_equal(batch.back(batch.images), array)
    assert not array.flags.c_contiguous


@pytest.mark.parametrize("permutation", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_torch_tensors_are_batches(permutation: tuple[int, ...]) -> None:
    x = torch.rand(3, 3, 3, 3).permute(permutation)
    batch = as_batch("image", x)
    assert batch.images.is_contiguous()
    torch.testing.assert_close(batch.back(batch.images), x)


@settings(max_examples=30, deadline=None)
@given(st.floats(-1e30, 1e30), st.floats(1e-30, 1e30))
def test_images_of_any_scale_have_digits(centre: float, width: float) -> None:
    y = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64) * width + centre
    if float(y.max() - y.min()) < 1e-6 * abs(centre):
        return
    units = Units.of(float(y.min()), float(y.max()))
    z = units.to_solver(y).float().double()
    assert float((units.to_pixels(z) - y).abs().max()) <= 4e-6 * float(y.max() - y.min())
    assert float(z.abs().max()) <= 101


def test_nothing_is_copied_where_nothing_changes() -> None:
    x = torch.rand(1, 1, 4, 4)
    batch = as_batch("image", x)
    assert batch.exact is batch.images and batch.images.data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    ("array", "axis", "named"),
    [
        ("text", "auto", "image"),
        (np.zeros((0, 4)), "auto", "image"),
        (np.zeros((4, 4), complex), "auto", "image"),
        (np.zeros((2, 2, 2, 2, 2, 2)), "auto", "image"),
        (np.zeros((4, 9, 5, 5)), "auto", "image"),
        (np.zeros((4, 4)), 2, "channel_axis"),
        (np.zeros((4, 4)), "last", "channel_axis"),
        (np.zeros(4), 0, "image"),
        (np.zeros((3, 9, 9)), "auto", "image"),
        (np.zeros((9, 9, 2)), "auto", "image"),
        (np.full((4, 4), np.nan), "auto", "image"),
        (np.full((4, 4), 2**60), "auto", "image"),
        (np.full((4, 4), 2**63, np.uint64), "auto", "image"),
        (torch.ones(1, 1, 4, 4, requires_grad=True), "auto", "image"),
        (np.broadcast_to(np.float32(0), (1 << 14, 1 << 14, 1 << 10)), "auto", "image"),
    ],
)
def test_what_cannot_be_used_is_named(array: object, axis: object, named: str) -> None:
    with pytest.raises(InputError) as caught:
        as_batch("image", array, axis)  # type: ignore[arg-type]
    assert caught.value.argument == named
    assert "\n" not in str(caught.value)


def test_nan_pixels_get_the_advice_of_a_mask() -> None:
    with pytest.raises(InputError, match=r"1 of 4 numbers.*lmd\.inpaint"):
        as_batch("image", np.array([[0.0, np.nan], [1.0, 1.0]]))


def test_axes_of_a_batch_of_signals() -> None:
    assert find_axes("image", (8, 2, 50), True, "auto") == find_axes("image", (8, 2, 5, 5), True, "auto")


@pytest.mark.filterwarnings("error")
def test_arrays_that_may_not_be_written_to_are_taken_and_left_alone() -> None:
    array = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    array.setflags(write=False)
    batch = as_batch("image", array)
    batch.images.zero_()
    assert array.max() == 1.0


def test_masked_entries_get_the_advice_of_inpainting() -> None:
    array = np.ma.masked_array(np.ones((4, 4)), mask=np.eye(4, dtype=bool))
    with pytest.raises(InputError, match=r"lmd\.inpaint"):
        as_batch("image", array)
    assert as_batch("image", np.ma.masked_array(np.ones((4, 4)))).images.shape == (1, 1, 4, 4)


def test_an_axis_of_one_entry_may_go_backwards() -> None:
    x = np.arange(6.0).reshape(2, 3)[:1][::-1]
    assert as_batch("image", x).exact.flatten().tolist() == [0.0, 1.0, 2.0]


LAYOUTS = {
    (3, 9, 8): (1, 3, 9, 8),
    (1, 9, 8): (1, 1, 9, 8),
    (9, 8, 3): (1, 3, 9, 8),
    (4, 9, 8): (1, 3, 9, 8),
    (2, 9, 8, 3): (2, 3, 9, 8),
    (2, 3, 9, 8): (2, 3, 9, 8),
    (5, 2, 30): (5, 2, 30),
}


@pytest.mark.parametrize("shape", LAYOUTS)
def test_axes_of_torch_tensors(shape: tuple[int, ...]) -> None:
    tensor = torch.rand(shape)
    batch = as_batch("image", tensor)
    assert tuple(batch.images.shape) == LAYOUTS[shape]
    torch.testing.assert_close(batch.back(batch.images), tensor)


def test_layouts_that_are_guessed_are_named() -> None:
    with pytest.warns(PictureWarning, match=r"\(5, 9, 8\).*5 signals of 9 channels.*channel_axis") as caught:
        as_batch("image", torch.zeros(5, 9, 8))
    assert caught[0].filename == __file__
    with pytest.raises(InputError, match=r"channel_axis=0 .*channel_axis=None"):
        as_batch("image", np.zeros((3, 9, 9)))


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_alpha_is_kept_as_it_is(make: Callable[[np.ndarray], Any]) -> None:
    array = np.random.default_rng(0).integers(0, 256, size=(9, 8, 4)).astype(np.uint8)
    for axis in (2, 0):
        given = make(np.moveaxis(array, 2, axis))
        batch = as_batch("image", given, axis)
        back = np.moveaxis(np.asarray(batch.back(torch.zeros_like(batch.images))), axis, 2)
        np.testing.assert_array_equal(back[..., 3], array[..., 3])
        assert batch.images.shape == (1, 3, 9, 8) and not back[..., :3].any()
        assert batch.as_map(torch.ones(tuple(given.shape))).shape == (1, 3, 9, 8)
