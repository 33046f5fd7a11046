"""What logs and checkpoints called their entries before updates were called updates, so that old runs go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "step": "updates",
    "steps": "updates",
    "steps_per_epoch": "updates_per_epoch",
    "steps_per_second": "updates_per_second",
}


def with_new_names(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries under the names that they have today, in their order.

    >>> with_new_names({"step": 3, "loss": 0.5})
    {'updates': 3, 'loss': 0.5}
    """
    return {RENAMED.get(name, name): value for name, value in entries.items()}
