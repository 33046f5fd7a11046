"""A progress bar on stderr for work that takes more than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2.0  # seconds before the bar appears


class ProgressBar:
    """A bar that counts from 0 to `total`, with the methods that pooch needs.

    Until the first update, the bar shows the elapsed seconds but no percentage, because the total time is unknown.

    Args:
        label: Words in front of the bar.
        total: The count at the end; 0 if it is not known yet.
        shown: True shows the bar at once, False never; None shows it on a terminal after two seconds.

    >>> with ProgressBar("training", total=10) as bar:
    ...     for _ in range(10):
    ...         bar.update(1)
    """

    def __init__(self, label: str, total: int = 0, shown: bool | None = None) -> None:
        self.label, self.total, self._done = label, total, 0.0
        self._stays = bool(shown)  # whether the bar stays on the screen at the end
        self._bar: Any = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        if shown or (shown is None and sys.stderr.isatty()):
            self._timer = threading.Timer(PATIENCE, self._show)
            self._timer.daemon = True
            if shown:
                self._show()
            else:
                self._timer.start()

    def update(self, count: float, figures: str = "") -> None:
        """Add `count` to the count, and show `figures` after the label."""
        self._done += count
        with self._lock:
            if self._bar is not None:
                text = f"{self.label}  {figures}" if figures else self.label
                self._bar.update(self._task, completed=self._done, total=self._shown_total(), description=text)

    def reset(self) -> None:
        """Set the count to 0; pooch calls this at the end of a download, before it adds the total."""
        self._done = 0.0

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            self._bar, self._timer = None, None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bar while something else is printed."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def __enter__(self) -> ProgressBar:
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
            if self._timer is None:  # `close` was called in the meantime
                return
            self._bar = Progress(
                *columns,
                console=Console(stderr=True),
                transient=not self._stays,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task(self.label, total=self._shown_total(), completed=self._done)
            self._bar.start()
