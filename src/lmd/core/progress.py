"""A progress bar on stderr that appears only on a terminal, and only for work that takes more than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds before the bar appears


class LateBar:
    """Counts from 0 to `total`; its methods are also what pooch asks of a progress bar.

    Until something is done the bar moves without a percentage, and the seconds count: nobody knows how long it takes.

    >>> with LateBar("training", total=10) as bar:
    ...     for _ in range(10):
    ...         bar.update(1)
    """

    def __init__(self, label: str, total: int = 0) -> None:
        self.label, self.total, self._done = label, total, 0.0
        self._bar: Any = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        if sys.stderr.isatty():
            self._timer = threading.Timer(PATIENCE, self._show)
            self._timer.daemon = True
            self._timer.start()

    def update(self, count: float) -> None:
        """Count `count` more."""
        self._done += count
        with self._lock:
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done, total=self._shown_total())

    def reset(self) -> None:
        """Count from 0 again: pooch does so at its end, before it reports the whole."""
        self._done = 0.0

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            self._bar, self._timer = None, None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the bar off the screen while something else is printed."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def __enter__(self) -> LateBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _shown_total(self) -> float | None:
        return self.total if self.total and self._done else None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with self._lock:
            if self._timer is None:  # closed meanwhile
                return
            self._bar = Progress(
                *columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._task = self._bar.add_task(self.label, total=self._shown_total(), completed=self._done)
            self._bar.start()
