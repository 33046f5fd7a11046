from dataclasses import asdict

import pytest
import torch
from scipy.stats import beta

from lmd.errors import InputError
from lmd.guarantees import Monitor, Promise, promise
from lmd.guarantees.promises import least_share


@pytest.mark.parametrize(
    ("within", "runs"), [(1, 1), (1, 3), (50, 100), (95, 100), (299, 299), (10, 1000), (999, 1000)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_it_is_the_quantile_of_a_beta_distribution(within, runs, confidence):
    assert least_share(within, runs, confidence) == pytest.approx(beta.ppf(1 - confidence, within, runs - within + 1))


def test_over_many_families_the_promise_fails_as_rarely_as_it_says():
    """2000 classes with shares of their own, 200 held-out runs each: at 95% it may fail in 5% of them, and chance."""
    generator = torch.Generator().manual_seed(0)
    shares = 1 - 0.2 * torch.rand(2000, generator=generator, dtype=torch.float64)
    failed = 0
    for share in shares:
        outside = torch.rand(200, generator=generator, dtype=torch.float64) > share
        promised = promise(torch.where(outside, 1.0, 1e-6), target=1e-2, iterations=10)
        failed += promised.share > float(share)
    assert 0 < failed <= 2000 * 0.05 + 3 * (2000 * 0.05 * 0.95) ** 0.5


def test_a_gap_that_is_no_number_is_outside():
    assert promise(torch.tensor([float("nan"), 1e-4]), 1e-3, 5).within == 1


@pytest.mark.parametrize(
    ("argument", "values"), [("within", (5, 4, 0.9)), ("confidence", (1, 4, 1.5)), ("runs", (0, 0, 0.9))]
)
def test_what_is_no_share_is_refused(argument, values):
    with pytest.raises(InputError, match=argument):
        least_share(*values)


def test_several_promises_hold_together():
    gaps = torch.full((300,), 1e-4)
    alone, one_of_three = promise(gaps, 1e-3, 8), promise(gaps, 1e-3, 8, together=3)
    assert one_of_three.share == pytest.approx(least_share(300, 300, 1 - 0.05 / 3))
    assert one_of_three.share < alone.share
    assert str(one_of_three).startswith("with confidence 95% for all 3 promises together, at least 98.6%")
    assert Promise(**asdict(one_of_three)) == one_of_three
    with pytest.raises(InputError, match="together"):
        promise(gaps, 1e-3, 8, together=0)


MADE = Promise(target=1e-3, iterations=8, runs=300, within=299, share=0.98, confidence=0.95)


def test_while_the_promise_holds_the_monitor_is_silent():
    generator, alarms = torch.Generator().manual_seed(1), 0
    for _ in range(200):
        outside = torch.rand(500, generator=generator) > MADE.share
        alarms += Monitor(MADE, delta=0.05).see(torch.where(outside, 1.0, 0.0))
    assert alarms <= 200 * 0.05


def test_a_class_that_moved_is_noticed_soon_however_long_it_had_held():
    monitor = Monitor(MADE)
    assert not monitor.see(torch.zeros(20_000))
    generator = torch.Generator().manual_seed(2)
    outside = torch.rand(300, generator=generator) > 0.7
    assert monitor.see(torch.where(outside, 1.0, 0.0))
    assert monitor.see(torch.zeros(1000))
