"""The errors a user can meet: each is one line that names the argument, what was given and what is accepted."""

from __future__ import annotations


class LmdError(Exception):
    """Base of every error that `lmd` raises on purpose."""


class InputError(LmdError, ValueError):
    """An argument that cannot be used.

    Args:
        argument: The name of the argument.
        given: What was given, in words or as it is.
        accepted: What is accepted instead.

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
        return type(self), (self.argument, self.given, self.accepted)  # so that a worker process can send it home


class DomainError(InputError):
    """A point outside the domain of a mirror or of a problem."""


class CapabilityError(InputError):
    """A problem that lacks something the solver needs of it."""


class FileError(InputError):
    """A file or folder that cannot be read or written as what it should be."""


class TrainingError(LmdError):
    """Training that cannot continue; the message says what to change."""


class TrainingWarning(UserWarning):
    """Training that ended with nothing learned; the message says what to change."""


class PictureWarning(UserWarning):
    """A picture that was answered, but perhaps not as was meant; the message says what to change."""
