"""The progress bar of a training run: loss, inconsistency, updates per second, time left."""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 2.0
"""Seconds before a bar that was not asked for appears."""


class ProgressBar:
    """A bar on stderr: at once if `shown` is True, never if False; if None, on a terminal and after two seconds."""

    def __init__(self, shown: bool | None, updates: int) -> None:
        self._wanted = sys.stderr.isatty() if shown is None else shown
        self._patience = PATIENCE if shown is None else 0.0
        self._updates = updates
        self._bar: Any = None

    def start(self, done: int) -> None:
        """The clock of a run that has `done` updates behind it."""
        self._first, self._begun = done, time.monotonic()

    def update(self, done: int, loss: float, inconsistency: float) -> None:
        """Show where the run is after `done` updates."""
        elapsed = time.monotonic() - self._begun
        if not self._wanted or elapsed < self._patience:
            return
        if self._bar is None:
            self._bar, self._task = _bar(self._first, self._updates)
        rate = (done - self._first) / max(elapsed, 1e-9)
        text = f"loss {loss:.4g}  inconsistency {inconsistency:.3g}  {rate:.3g} updates/s"
        self._bar.update(self._task, completed=done, figures=text)

    def close(self) -> None:
        """Leave the bar as it is and give the line back."""
        if self._bar is not None:
            self._bar.stop()


def _bar(done: int, updates: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    bar.start()
    return bar, bar.add_task("training", total=updates, completed=done, figures="")
