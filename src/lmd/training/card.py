"""The card of a learned solver as a table, and families by the names that a command line gives them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from lmd.errors import InputError
from lmd.problems.base import Family


def card_rows(card: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows: of each method the iterations and milliseconds for a batch, and the milliseconds for one.

    Args:
        card: Of a solver that `lmd.learn` found.
    """
    accuracies = [f"{factor * card['target']:g}" for factor in (10, 1, 0.1)]
    columns = ("method", *(f"to {accuracy}: iterations, ms, ms for one" for accuracy in accuracies))
    rows = []
    for row in card["rows"]:
        cells = []
        for accuracy in accuracies:
            count, batch, one = (row[name].get(accuracy) for name in ("iterations", "milliseconds", "one"))
            cells.append("-" if batch is None else f"{'' if count is None else count}, {batch:.3g}, {one:.2g}")
        rows.append((f"{row['method']} (learned)" if row["learned"] else row["method"], *cells))
    return columns, tuple(rows)


def family_named(name: str) -> Family:
    """`module:Family`, a family or a class of one without arguments, from a module that can be imported from here.

    Args:
        name: "module:Family".
    """
    module, _, attribute = name.partition(":")
    accepted = "module:Family, such as my_module:MyFamily, to be imported from here"
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute) if module and attribute else None
    except (ImportError, AttributeError) as error:
        raise InputError("family", f"{name!r} ({error})", accepted) from None
    finally:
        sys.path.pop(0)
    family = found() if isinstance(found, type) and issubclass(found, Family) else found
    if not isinstance(family, Family):
        raise InputError("family", repr(name), accepted)
    return family
