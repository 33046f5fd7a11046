"""What the tests of training share: the small classes of `worker.py`, which is also run as a script of its own."""

import importlib.util
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="session")
def worker():
    if "training_worker" not in sys.modules:
        spec = importlib.util.spec_from_file_location("training_worker", WORKER)
        module = importlib.util.module_from_spec(spec)
        sys.modules["training_worker"] = module
        spec.loader.exec_module(module)
    return sys.modules["training_worker"]
