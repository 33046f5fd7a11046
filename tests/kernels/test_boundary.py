"""The boundary to C: whatever lies in memory how, it is taken for what it is, or refused."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from lmd import kernels
from lmd.errors import InputError
from lmd.problems import TVDenoising

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

B, C, H, W = 2, 3, 9, 11


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


IMAGES, FIELDS = (B, C, H, W), (B, C, 2, H, W)
CALLS: dict[str, tuple[Callable[..., object], dict[str, Tensor]]] = {
    "dual_steps": (
        lambda x, p, before, noisy, bound, taps: kernels.dual_steps(x, p, before, noisy, bound, 2.0, taps - 0.5),
        {
            "x": random(*IMAGES), "p": random(*FIELDS), "before": random(*FIELDS, seed=1),
            "noisy": random(*IMAGES, seed=2), "bound": random(B), "taps": random(3, 2, 4, 5, 5),
        },
    ),
    "saddle_steps": (
        lambda x, moved, p, dual_moved, noisy, mask, low, high, bound, taps, primal_taps: kernels.saddle_steps(
            (x, moved, p, dual_moved), noisy, mask, (low - 1, high + 1), bound, 2.0, (taps - 0.5, primal_taps - 0.5)
        ),
        {
            "x": random(*IMAGES), "moved": random(*IMAGES, seed=1), "p": random(*FIELDS),
            "dual_moved": random(*FIELDS, seed=1), "noisy": random(*IMAGES, seed=2), "mask": random(*IMAGES).round(),
            "low": random(B, C, 1, 1), "high": random(B, C, 1, 1), "bound": random(B),
            "taps": random(2, 2, 6, 3, 3), "primal_taps": random(2, 2, 3, 5, 5),
        },
    ),
    "tv_sums": (
        kernels.tv_sums,
        {"x": random(*IMAGES), "p": random(*FIELDS), "y": random(*IMAGES, seed=1), "bound": random(B)},
    ),
    "smoothed_gradient": (
        lambda x, y, mask, bound, widths, shares: kernels.smoothed_gradient(x, y, mask, bound, 2.0, widths, shares),
        {
            "x": random(*IMAGES), "y": random(*IMAGES, seed=1), "mask": random(*IMAGES, seed=2).round(),
            "bound": random(B), "widths": random(2) + 0.1, "shares": random(2),
        },
    ),
    "convolve": (kernels.convolve, {"x": random(*IMAGES), "kernel": random(4, C, 3, 3)}),
}  # fmt: skip
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


@pytest.mark.parametrize("name", ["dual_steps", "saddle_steps", "smoothed_gradient", "convolve"])
def test_answers_lie_row_by_row(name: str) -> None:
    call, arguments = CALLS[name]
    for found in flat(call(**{key: next(layouts(x)) for key, x in arguments.items()})):
        assert found.dtype == torch.float32 and found.is_contiguous()


@pytest.mark.parametrize(("name", "argument"), [pair for pair in ARGUMENTS if pair[0] != "convolve"])
def test_what_c_would_misread_is_refused(name: str, argument: str) -> None:
    call, arguments = CALLS[name]
    given = arguments[argument]
    for wrong in (given.double(), given.half(), given.to("meta"), torch.cat([given, given], dim=-1), given[None]):
        with pytest.raises(InputError, match=r"\A[^\n]+ got [^\n]+, expected [^\n]+\Z"):
            call(**{**arguments, argument: wrong})


def test_a_kernel_for_other_channels_is_refused() -> None:
    with pytest.raises(InputError, match=r"\Akernel: got shape \(4, 2, 3, 3\), expected shape \(4, 3, 3, 3\)\Z"):
        kernels.convolve(random(*IMAGES), random(4, 2, 3, 3))


def test_a_refusal_names_the_argument() -> None:
    call, arguments = CALLS["tv_sums"]
    with pytest.raises(InputError, match=r"\Ap: got shape \(2, 3, 9, 11\), expected shape \(2, 3, 2, 9, 11\)\Z"):
        call(**{**arguments, "p": arguments["x"]})
    with pytest.raises(InputError, match=r"\Ay: got torch.float64 on cpu, expected torch.float32 on the CPU"):
        call(**{**arguments, "y": arguments["y"].double()})
    with pytest.raises(InputError, match=r"\Abound: got shape \(9,\), expected shape \(6,\)\Z"):
        call(**{**arguments, "bound": random(3)})


@pytest.mark.parametrize("weight", [0.05, 0.25, 0.5])
def test_a_default_dtype_does_not_reach_c(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    x, arguments = random(*IMAGES), CALLS["dual_steps"][1]
    problem = TVDenoising(x, weight)
    taps = arguments["taps"] - 0.5

    def answers() -> list[Tensor]:
        steps = kernels.dual_steps(x, None, None, problem.noisy, problem.bound, 2.0, taps)
        return [problem.value(x), problem.gap(x, arguments["p"]), *flat(steps)]

    expected = answers()
    torch.set_default_dtype(torch.float64)
    try:
        found = answers()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == torch.float32 and torch.equal(one, two)


def test_without_kernels_a_call_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda: None)
    with pytest.raises(RuntimeError, match="no compiled kernels"):
        kernels.tv_sums(random(*IMAGES), None, None, 1.0)
