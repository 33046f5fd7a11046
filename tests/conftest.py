import signal
from contextlib import contextmanager

import hypothesis
import pytest
import torch

from lmd import kernels

# The same examples every time, so that a change is judged by the same tests everywhere.
hypothesis.settings.register_profile("lmd", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("lmd")

# A shell has what it runs in the background ignore Ctrl-C; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def threads():
    """A context `threads(count)` with this many threads for everything, however little work it is."""

    @contextmanager
    def use(count):
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "SMALL", 0)
                yield
        finally:
            torch.set_num_threads(before)

    return use
