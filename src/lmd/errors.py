"""Errors and warnings of lmd; messages have one line with the argument, what was given and what is accepted."""

from __future__ import annotations


class LmdError(Exception):
    """Base of every error that `lmd` raises on purpose."""


class InputError(LmdError, ValueError):
    """An argument that cannot be used.

    Args:
        argument: The name of the argument.
        given: The given value, or a description of it.
        accepted: A description of the accepted values.

    >>> raise InputError("weight", -1.0, "a positive number")
    Traceback (most recent call last):
    ...
    lmd.errors.InputError: weight: got -1.0, expected a positive number
    """

    def __init__(self, argument: str, given: object, accepted: str) -> None:
        self.argument = argument
        self.given, self.accepted = (" ".join(str(part).split()) for part in (given, accepted))  # always one line
        super().__init__(f"{argument}: got {self.given}, expected {self.accepted}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str]]:
        return type(self), (self.argument, self.given, self.accepted)  # pickled by worker processes


class DomainError(InputError):
    """A point outside the domain of a mirror or of a problem."""


class CapabilityError(InputError):
    """A problem without a property that the solver needs."""


class FileError(InputError):
    """A file or folder that cannot be read or written as expected."""


class TrainingError(LmdError):
    """Training that cannot continue; the message says what to change."""


class TrainingWarning(UserWarning):
    """Training that ended without learning anything; the message says what to change."""


class PictureWarning(UserWarning):
    """An answer for a picture that may not be what the user meant; the message says what to change."""
