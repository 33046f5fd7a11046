"""A solver for a class of one's own: instances and their optima, proposals, successive halving, the card."""

from lmd.learning.card import card_rows, family_named
from lmd.learning.learn import learn

__all__ = ["card_rows", "family_named", "learn"]
