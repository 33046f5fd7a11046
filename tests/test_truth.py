"""The claims of a few thousand random instances are true, and false ones would be seen: benchmarks/truth.py."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from lmd.guarantees.safeguard import SafeguardState
from lmd.problems import TVDenoising

PATH = Path(__file__).parents[1] / "benchmarks" / "truth.py"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def truth():
    spec = importlib.util.spec_from_file_location("truth", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["truth"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    module.TRY_DEFAULTS = False  # one test has a slice of them
    yield module
    del sys.modules["truth"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def counted(totals, what):
    return sum(counts[what] for counts in totals.values())


@pytest.mark.parametrize(
    "kind",
    ["denoising", "inpainting", "deblurring", "tomography", "lasso", "least-squares", "simplex", "svm", "classifier"],
)
def test_nothing_is_false(truth, kind):
    totals, lines, _ = truth.measure(600 if kind in ("denoising", "inpainting") else 250, only=kind)
    assert lines == [] and not any(counted(totals, what) for what in truth.COUNTS)
    assert counted(totals, "instances") >= 250


@pytest.mark.parametrize("kind", ["denoising", "inpainting", "tomography", "model of order 1, squares"])
def test_defaults_end_proven_or_stalled(truth, kind, monkeypatch):
    monkeypatch.setattr(truth, "TRY_DEFAULTS", True)
    totals, lines, _ = truth.measure(20, seed=1, only=kind)
    assert lines == [] and not any(counted(totals, what) for what in truth.COUNTS)


@pytest.mark.parametrize("kind", ["lmd.inpaint", "lmd.denoise_video"])
def test_nothing_is_false_in_other_files(truth, kind):
    totals, lines, _ = truth.measure(4, only=kind)
    assert lines == [] and not any(counted(totals, what) for what in truth.COUNTS)


def test_a_certificate_that_promises_too_much_is_seen(truth, monkeypatch):
    honest = TVDenoising.certified_gap

    def halved(self, x, dual):
        value, gap = honest(self, x, dual)
        return value, gap / 2

    monkeypatch.setattr(TVDenoising, "certified_gap", halved)
    totals, _, _ = truth.measure(1000, only="denoising")
    assert counted(totals, "false") > 20


def test_a_value_that_is_not_that_of_the_point_is_seen(truth, monkeypatch):
    honest = TVDenoising.value
    monkeypatch.setattr(
        TVDenoising, "value", lambda self, x: honest(self, x) * (1.001 if x.dtype == torch.float32 else 1)
    )
    totals, _, _ = truth.measure(1000, only="denoising")
    assert counted(totals, "value") > 20


def test_a_guard_that_does_not_look_at_its_fall_back_is_seen(truth, monkeypatch):
    honest = SafeguardState.see
    monkeypatch.setattr(
        SafeguardState, "see", lambda self, whose, *seen: honest(self, whose, *seen) if whose == "learned" else self
    )
    totals, _, _ = truth.measure(1000, only="inpainting")
    assert counted(totals, "worse") > 20
