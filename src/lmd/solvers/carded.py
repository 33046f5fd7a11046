"""A solver with its card: what it was learned for, what was tried, what it is worth."""

from __future__ import annotations

from typing import Any

from lmd.errors import InputError
from lmd.solvers.base import Passing, Solver


class Carded(Passing):
    """The solver inside, step by step; `card` are JSON values, which are saved along with it.

    Args:
        solver: The solver inside.
        card: What is known about it, JSON values by name.
    """

    def __init__(self, solver: Solver[Any], card: dict[str, Any]) -> None:
        super().__init__(solver)
        if not isinstance(card, dict) or "type" in card:
            raise InputError("card", type(card).__name__, "a dictionary without the name 'type'")
        self.card = card

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "card": self.card}
