"""A progress bar on stderr that appears only on a terminal, and only for work that takes more than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PATIENCE = 2.0
"""Seconds before the bar appears."""


class LateBar:
    """Counts from 0 to `total`; its methods are also what pooch asks of a progress bar.

    >>> with LateBar("training", total=10) as bar:
    ...     for _ in range(10):
    ...         bar.update(1)
    """

    def __init__(self, label: str, total: int = 0) -> None:
        self.label = label
        self.total = total
        self._done = 0.0
        self._begun = time.monotonic()
        self._bar: Any = None

    def update(self, count: float) -> None:
        """`count` more are done."""
        self._done += count
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self._begun > PATIENCE:
            self._show()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def reset(self) -> None:
        """Count from 0 again: pooch does so at its end, before it reports the whole."""
        self._done = 0.0

    def close(self) -> None:
        """Leave the bar as it is and give the line back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> LateBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=self.total or None)
