"""The boundary to C: whatever lies in memory how, it is taken for what it is, or refused."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from lmd import kernels
from lmd.errors import InputError

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

B, C, H, W = 2, 3, 9, 11


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


IMAGES = (B, C, H, W)
CALLS: dict[str, tuple[Callable[..., object], dict[str, Tensor]]] = {
    "convolve": (kernels.convolve, {"x": random(*IMAGES), "kernel": random(4, C, 3, 3)}),
}
ARGUMENTS = [(name, argument) for name, (_, arguments) in CALLS.items() for argument in arguments]


def layouts(x: Tensor) -> Iterator[Tensor]:
    """The same numbers in other places of memory."""
    order = list(reversed(range(x.ndim)))
    yield x.permute(order).contiguous().permute(order)
    yield x.repeat_interleave(2, dim=-1)[..., ::2]
    yield torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape)
    if x.ndim == 4:
        yield x.to(memory_format=torch.channels_last)
    if x.ndim > 1:
        yield x.transpose(0, 1).contiguous().transpose(0, 1)
    yield torch._neg_view(-x)  # as the imaginary part of a conjugate: negated when it is read, not in memory


def flat(found: object) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    assert isinstance(found, tuple)
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_every_layout_is_read_as_it_is_meant(name: str, argument: str) -> None:
    call, arguments = CALLS[name]
    expected = flat(call(**arguments))
    for other in layouts(arguments[argument]):
        assert torch.equal(other, arguments[argument])
        for one, two in zip(flat(call(**{**arguments, argument: other})), expected, strict=True):
            assert torch.equal(one, two)


def test_answers_lie_row_by_row() -> None:
    call, arguments = CALLS["convolve"]
    for found in flat(call(**{key: next(layouts(x)) for key, x in arguments.items()})):
        assert found.dtype == torch.float32 and found.is_contiguous()


def test_what_c_would_misread_is_refused() -> None:
    x = random(*IMAGES)
    for wrong in (x.double(), x.half(), x.to("meta"), torch.cat([x, x], dim=-1), x[None]):
        with pytest.raises(InputError, match=r"\Ax: got [^\n]+, expected [^\n]+\Z"):
            kernels.as_rows("x", wrong, IMAGES)


def test_a_kernel_for_other_channels_is_refused() -> None:
    with pytest.raises(InputError, match=r"\Akernel: got shape \(4, 2, 3, 3\), expected shape \(4, 3, 3, 3\)\Z"):
        kernels.convolve(random(*IMAGES), random(4, 2, 3, 3))
