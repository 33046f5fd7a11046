"""Shared parts of the conformance suites: comparisons, derivatives, tests of batches, dtypes and memory layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close


def at_most(small: Tensor | float, large: Tensor | float, what: str) -> None:
    """Assert that each entry of `small` is at most the same entry of `large`."""
    assert bool(torch.as_tensor(small <= large).all()), f"{what}: {small} should be at most {large}"


def check_derivative(curve: Callable[[Tensor], Tensor], name: str = "") -> Tensor:
    """Return the autograd derivative at 0 of a random combination of the entries of a curve; check it numerically."""
    zero, width = torch.zeros((), dtype=torch.float64, requires_grad=True), 1e-6
    answer = curve(zero)
    mixture = torch.randn(answer.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        difference = (mixture * (curve(zero + width) - curve(zero - width))).sum() / (2 * width)
    slope = torch.zeros_like(difference)
    if answer.requires_grad:
        (slope,) = torch.autograd.grad((mixture * answer).sum(), zero)
    assert_close(slope, difference, rtol=1e-4, atol=1e-6, msg=lambda message: f"{name}: {message}")
    return slope


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside a `with` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _turned(x: Tensor, order: list[int]) -> Tensor:
    """Return x with its axes stored in memory in this order; entries along the last of them are adjacent."""
    return x.permute(order).contiguous().permute([order.index(axis) for axis in range(x.ndim)])


# The same numbers in other memory layouts, as they come from slices, numpy and image libraries.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: _turned(x, [0, *range(2, x.ndim), 1]) if x.ndim > 2 else x,
    "reversed": lambda x: _turned(x, list(reversed(range(x.ndim)))),
    "transposed": lambda x: _turned(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if x.ndim > 1 else x,
    "every second": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "part of a larger one": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
}


class Suite:
    """Tests to inherit; a test with an argument named in `cases` is repeated for each of these cases."""

    # The cases of each test argument, by its name.
    cases: ClassVar[dict[str, Sequence[Any]]] = {"dtype": (torch.float32, torch.float64), "batch": (1, 7)}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Repeat a test for all `cases` of its arguments, unless a mark parametrizes the argument."""
        given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
        for name, cases in self.cases.items():
            if name in metafunc.fixturenames and not any(name in names for names in given):
                metafunc.parametrize(name, cases)


class Conformance(Suite):
    """Tests of batches, dtypes and memory layouts that terms, operators and mirrors share.

    A part is a term, an operator or a mirror. Its answers are arrays or numbers for each instance, by name.
    """

    cases: ClassVar[dict[str, Sequence[Any]]] = {**Suite.cases, "layout": tuple(LAYOUTS)}
    # Relative and absolute tolerance between two computations of the same number.
    tolerance: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-4, torch.float64: 1e-9}
    # Tolerance for one computation repeated on other instances or in another layout.
    repetition: ClassVar[dict[torch.dtype, float]] = {torch.float32: 5e-6, torch.float64: 1e-12}

    def _start(self, dtype: torch.dtype, batch: int = 3) -> tuple[Any, ...]:
        """Return the part under test and its arguments, arrays `(batch, ...)`, the same each time."""
        raise NotImplementedError

    def _answers(self, part: Any, *arrays: Tensor) -> dict[str, Tensor]:
        """Return the answers of the part `(batch, ...)`."""
        raise NotImplementedError

    def _shown(self, part: Any) -> set[str]:
        """Return the names of answers that have to be NaN if an argument has a NaN."""
        return set()

    def test_shapes_and_dtypes_are_kept_and_arguments_untouched(self, dtype: torch.dtype, batch: int) -> None:
        part, *arrays = self._start(dtype, batch)
        before = [x.clone() for x in arrays]
        for name, answer in self._answers(part, *arrays).items():
            shapes = [(batch,), *(x.shape for x in arrays)]
            assert answer.shape in shapes and answer.dtype == dtype, f"{name}: {answer.dtype}, {tuple(answer.shape)}"
        assert all(map(torch.equal, arrays, before)), "a method changed its argument in place"

    def test_an_instance_of_a_batch_is_the_instance_alone(self, dtype: torch.dtype) -> None:
        part, *arrays = self._start(dtype, 3)
        together = self._answers(part, *arrays)
        for index in (0, slice(1, 2), torch.tensor([2, 1])):
            at = slice(index, index + 1) if isinstance(index, int) else index
            some = part.select(index) if hasattr(part, "select") else part
            alone = self._answers(some, *(x[at] for x in arrays))
            self._same(alone, {name: answer[at] for name, answer in together.items()}, f"instance {index}")

    def test_a_nan_stays_in_its_instance(self, dtype: torch.dtype) -> None:
        part, *arrays = self._start(dtype, 3)
        bad = [torch.cat([torch.full_like(x[:1], torch.nan), x[1:]]) for x in arrays]
        answers, spoiled = (self._answers(part, *given) for given in (arrays, bad))
        others, expected = ({name: x[1:] for name, x in each.items()} for each in (spoiled, answers))
        self._same(others, expected, "beside a NaN")
        for name in self._shown(part):
            hidden = bool(torch.isfinite(spoiled[name][0]).all()) and bool(answers[name][0].any())
            assert not hidden, f"{name}: a NaN was hidden"

    def test_other_layouts_give_the_same(self, dtype: torch.dtype, layout: str) -> None:
        part, *arrays = self._start(dtype, 3)
        laid = [LAYOUTS[layout](x) for x in arrays]
        self._same(self._answers(part, *laid), self._answers(part, *arrays), layout)
        assert all(map(torch.equal, laid, arrays)), f"{layout}: an argument was written to"

    def test_instances_that_share_memory_are_instances(self, dtype: torch.dtype) -> None:
        self._check_shared(dtype, lambda x: x[:1].expand(x.shape))

    def test_float64_as_default_changes_nothing(self) -> None:
        part, *arrays = self._start(torch.float32)
        expected = self._answers(part, *arrays)
        with default_dtype(torch.float64):
            self._same(self._answers(part, *arrays), expected, "with a default of float64")
            answers = self._answers(*self._start(torch.float32))
        assert [name for name, answer in answers.items() if answer.dtype != torch.float32] == []

    def _check_shared(self, dtype: torch.dtype, share: Callable[[Tensor], Tensor]) -> None:
        """Assert that views with shared memory give the same answers as contiguous copies."""
        part, *arrays = self._start(dtype, 3)
        shared = [share(x) for x in arrays]
        expected = self._answers(part, *(x.contiguous() for x in shared))
        self._same(self._answers(part, *shared), expected, "sharing memory")

    def _close(self, actual: Tensor, expected: Tensor) -> None:
        allowed = self.tolerance[actual.dtype]
        assert_close(actual, expected, rtol=allowed, atol=allowed)

    def _same(self, found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
        """Assert that answers are the same up to the rounding of a repeated computation."""
        assert found.keys() == expected.keys()
        for name, answer in found.items():
            allowed, other = self.repetition[answer.dtype], expected[name]
            message = f"{what}: {name} is {answer}, not {other}"
            assert_close(answer, other, rtol=allowed, atol=allowed, equal_nan=True, msg=message)
