"""The compiled blur: the numbers of the eager one, for any kernel, border, size and number of threads."""

import pytest
import torch
from torch.testing import assert_close

from lmd import kernels
from lmd.operators import Blur, gaussian_kernel, motion_kernel

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels here")

KERNELS = {
    "separable": gaussian_kernel(1.5),
    "motion": motion_kernel(9.0, 0.6),
    "even sides": torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.3,
    "a row": torch.rand(1, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)),
    "a column": torch.rand(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3)),
    "a point": torch.full((1, 1), 2.0, dtype=torch.float64),
    "off its middle": torch.nn.functional.pad(torch.ones(1, 1, dtype=torch.float64), (0, 4, 3, 0)),
}


@pytest.mark.parametrize("size", [(11, 11), (12, 64), (40, 70), (13, 150)], ids=str)
@pytest.mark.parametrize("border", ["circular", "replicate"])
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_eager_blur(name, border, size):
    blur, generator = Blur(KERNELS[name], *size, border), torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, *size, generator=generator)
    for of in (blur, blur.adjoint):
        assert_close(of(x), of(x.double()).float(), atol=5e-6, rtol=0)


@pytest.mark.parametrize("size", [(11, 11), (6, 5)], ids=str)
@pytest.mark.parametrize("border", ["circular", "replicate"])
def test_kernels_as_large_as_the_image(border, size):
    kernel = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    blur, x = Blur(kernel, *size, border), torch.randn(1, 1, *size, generator=torch.Generator().manual_seed(0))
    for of in (blur, blur.adjoint):
        assert_close(of(x), of(x.double()).float(), atol=2e-5, rtol=0)


def test_the_number_of_threads_changes_nothing():
    blur = Blur(KERNELS["motion"], 96, 97, "replicate")
    x, threads = torch.rand(3, 1, 96, 97, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append((blur(x), blur.adjoint(x)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0]) and torch.equal(found[0][1], other[1])


def test_gradients_and_other_layouts_go_the_eager_way_or_are_right():
    blur, x = Blur(KERNELS["motion"], 16, 24), torch.rand(1, 16, 24, 3, generator=torch.Generator().manual_seed(0))
    assert_close(blur(x.movedim(3, 1)), blur(x.movedim(3, 1).contiguous()))
    asked = x.movedim(3, 1).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(blur(asked).square().sum(), asked)
    with torch.no_grad():
        assert_close(gradient, 2 * blur.adjoint(blur(asked)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # PyTorch's own, of its jvp
def test_functions_of_functions_go_the_eager_way():
    blur, x = Blur(KERNELS["motion"], 16, 24), torch.rand(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    assert_close(torch.vmap(lambda one: blur(one[None])[0])(x), blur(x))
    assert_close(torch.func.jvp(blur, (x,), (2 * x,))[1], 2 * blur(x))
