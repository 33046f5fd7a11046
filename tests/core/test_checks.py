import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmd.core import checks
from lmd.errors import InputError


def refused(call, *arguments, **options):
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message.startswith(f"{arguments[0]}: got ") and "\n" not in message
    return message


class TestBatch:
    def test_a_good_batch_comes_back_itself(self):
        x = torch.zeros(2, 3)
        assert checks.check_batch("x0", x) is x

    @pytest.mark.parametrize(
        ("x", "words"),
        [
            ([[1.0]], "list, expected a torch tensor"),
            (torch.zeros(2, 3, dtype=torch.int64), "torch.int64, expected a floating-point tensor"),
            (torch.zeros(2, 3, dtype=torch.complex64), "torch.complex64, expected a floating-point tensor"),
            (
                torch.zeros(2, 3, dtype=torch.float16),
                "torch.float16, expected a floating-point tensor of 32 or 64 bits",
            ),
            (torch.zeros(2, 3, dtype=torch.bfloat16), "convert with .float() or .double()"),
            (torch.zeros(3), "shape (3,), expected a batch (B, ...); for one instance use x0[None]"),
            (torch.zeros(0, 3), "shape (0, 3), expected at least one instance"),
            (torch.zeros(3, 0), "shape (3, 0), expected at least one instance"),
            (torch.tensor([[0.0, math.nan], [math.inf, 0.0]]), "2 non-finite entries, the first at (0, 1)"),
        ],
    )
    def test_a_bad_one_is_refused(self, x, words):
        assert words in refused(checks.check_batch, "x0", x)


class TestSameKind:
    def test_other_dtype(self):
        message = refused(checks.check_same_kind, "b", torch.zeros(1), "W", torch.zeros(1).double())
        assert message == "b: got torch.float32, expected torch.float64, the dtype of W"

    def test_other_device(self):
        message = refused(checks.check_same_kind, "b", torch.zeros(1, device="meta"), "W", torch.zeros(1))
        assert message == "b: got device meta, expected device cpu, where W is"

    def test_same(self):
        assert checks.check_same_kind("b", torch.zeros(1), "W", torch.ones(2)) is None


class TestModuleKind:
    def test_other_dtype_or_device(self):
        module = torch.nn.Linear(2, 2)
        given, expected = "got torch.float64 on cpu", "expected torch.float32 on cpu, as the solver is"
        message = refused(checks.check_module_kind, "x0", torch.zeros(1).double(), module, "solver")
        assert message == f"x0: {given}, {expected}; or convert that with solver.double()"
        message = refused(checks.check_module_kind, "x0", torch.zeros(1), module.double(), "solver")
        assert message.endswith("or convert that with solver.float()")
        message = refused(checks.check_module_kind, "x0", torch.zeros(1).double(), module.to("meta"), "solver")
        assert message.endswith("or convert that with solver.to('cpu')")

    def test_same(self):
        x = torch.zeros(1)
        assert checks.check_module_kind("x0", x, torch.nn.Linear(2, 2), "solver") is x
        assert checks.check_module_kind("x0", x, torch.nn.ReLU(), "solver") is x


class TestNumbers:
    @given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
    def test_positive_numbers_come_back(self, value):
        assert checks.check_positive("size", value) == value

    @pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None, torch.tensor(1.0)])
    def test_what_is_not_positive_is_refused(self, value):
        assert "expected a positive number" in refused(checks.check_positive, "size", value)

    def test_zero_is_accepted_where_it_may_be(self):
        assert checks.check_positive("size", 0, zero=True) == 0
        assert "a number of 0 or more" in refused(checks.check_positive, "size", -1, zero=True)

    @pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
    def test_whole_numbers_of_any_kind_come_back_as_int(self, value):
        count = checks.check_count("iterations", value)
        assert count == 3 and type(count) is int

    @pytest.mark.parametrize("value", [0, -2, 2.0, "3", None, True, math.nan])
    def test_what_is_no_count_is_refused(self, value):
        assert "expected a whole number of 1 or more" in refused(checks.check_count, "iterations", value)

    def test_least_count(self):
        assert checks.check_count("k", 0, least=0) == 0
        assert "2 or more" in refused(checks.check_count, "k", 1, least=2)

    def test_most_count(self):
        assert checks.check_count("k", 5, most=5) == 5
        for value in (0, 6, 10**30):
            assert "a whole number from 1 to 5" in refused(checks.check_count, "k", value, most=5)

    def test_interval(self):
        assert checks.check_interval("box", [0, 1]) == (0.0, 1.0)

    @pytest.mark.parametrize("interval", [(1, 0), (1, 1), (0, math.inf), (math.nan, 1), (0,), (0, 1, 2), None, "ab", 3])
    def test_what_is_no_interval_is_refused(self, interval):
        assert "(low, high)" in refused(checks.check_interval, "box", interval)


class TestChoice:
    def test_a_choice_comes_back(self):
        assert checks.check_choice("norm", "l1", ("l1", "l2")) == "l1"

    def test_the_nearest_is_suggested(self):
        message = refused(checks.check_choice, "extension", "men", ("last", "mean", "min"))
        assert message == "extension: got 'men', expected one of last, mean, min (did you mean mean?)"

    @pytest.mark.parametrize("value", ["zzz", None, 3])
    def test_nothing_is_suggested_where_nothing_is_near(self, value):
        assert refused(checks.check_choice, "norm", value, ("l1", "l2")).endswith("expected one of l1, l2")

    def test_nothing_to_choose_from(self):
        assert refused(checks.check_choice, "solver", "tv", ()).endswith(
            "expected nothing, as there is nothing to choose from"
        )
