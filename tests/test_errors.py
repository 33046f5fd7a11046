import pickle

import pytest

from lmd.errors import CapabilityError, DomainError, FileError, InputError, LmdError

KINDS = [InputError, DomainError, CapabilityError, FileError]


@pytest.mark.parametrize("kind", KINDS)
def test_message_names_the_argument_what_was_given_and_what_is_accepted(kind):
    error = kind("weight", -1, "a positive number")
    assert str(error) == "weight: got -1, expected a positive number"
    assert error.argument == "weight"
    assert isinstance(error, LmdError) and isinstance(error, ValueError)


def test_message_is_one_line_whatever_was_given():
    error = InputError("W", "tensor([[1, 2],\n        [3, 4]])", "a matrix\n(m, d)")
    assert str(error) == "W: got tensor([[1, 2], [3, 4]]), expected a matrix (m, d)"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("weight", -1, "a positive number")))
    assert type(error) is kind
    assert str(error) == "weight: got -1, expected a positive number"
    assert error.argument == "weight"
