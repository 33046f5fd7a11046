import signal

import hypothesis

# The same examples every time, so that a change is judged by the same tests everywhere.
hypothesis.settings.register_profile("lmd", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("lmd")

# A shell has what it runs in the background ignore Ctrl-C; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
