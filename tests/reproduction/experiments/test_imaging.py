"""Figures 8 to 11 and Table 1 at quick size, on the bundled photographs: every row is there, LMD keeps its place."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lmd
from lmd.core.files import read_json
from lmd.errors import InputError
from lmd.mirrors import ConvPair
from lmd.problems import TVDenoising
from lmd.reproduction import experiments
from lmd.reproduction.experiments import imaging
from lmd.reproduction.experiments.base import MULTIPLIERS, Session, reproduce
from lmd.reproduction.experiments.imaging import SteppedSolver, images_for, psnr, ssim
from lmd.reproduction.tables import best, curve, distinct, select
from lmd.solvers import GradientDescent, MirrorDescent

COMPARED = ("gd", "adam", "nesterov", "lmd", "pdhg")


def metrics_of(name: str, out: Path, **options):
    return read_json(reproduce(experiments.get(name), out, "quick", **options) / "metrics.json")


@pytest.fixture(scope="module")
def denoised(tmp_path_factory: pytest.TempPathFactory):
    return metrics_of("denoise", tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def inpainted(tmp_path_factory: pytest.TempPathFactory):
    return metrics_of("inpaint", tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory):
    return metrics_of("denoise-noise-levels", tmp_path_factory.mktemp("out"))


def at(metrics, method: str, iteration: int | str, metric: str = "loss", **settings) -> float:
    rows = select(metrics["rows"], method=method, iteration=iteration, metric=metric, **settings)
    found = best(rows, largest=metric in ("psnr", "ssim"))
    assert found is not None
    return found["value"]


@pytest.mark.parametrize("which", ["denoised", "inpainted"])
def test_every_row_is_there(which: str, request: pytest.FixtureRequest) -> None:
    metrics = request.getfixturevalue(which)
    wanted = [(method, {"multiplier": m}) for method in COMPARED for m in MULTIPLIERS]
    for method, settings in [*wanted, ("lmd-adaptive", {})]:
        own = select(metrics["rows"], method=method, **settings)
        for metric in ("loss", "relative_gap", "psnr", "seconds"):
            assert curve(own, metric)[0] == list(range(21)), (method, metric)
    assert "2 test images of 48 x 48 from photographs" in metrics["facts"]["data"]
    assert [bool(figure.get("frames")) for figure in metrics["figures"]] == [False, True, False]
    assert ("fgp" in distinct(metrics["rows"], "method")) == (which == "denoised")


@pytest.mark.parametrize("which", ["denoised", "inpainted"])
def test_the_learned_solver_is_ahead_of_gd_and_adam_in_loss(which: str, request: pytest.FixtureRequest) -> None:
    metrics = request.getfixturevalue(which)
    for k in (5, 10, 20):
        learned = at(metrics, "lmd-adaptive", k)
        assert learned < at(metrics, "gd", k)
        assert learned < at(metrics, "adam", k)


def test_no_method_is_below_the_certified_minimum(denoised, inpainted) -> None:
    for metrics in (denoised, inpainted):
        gaps = [row["value"] for row in select(metrics["rows"], metric="relative_gap")]
        assert min(gaps) > -1e-5
        assert max(row["value"] for row in select(metrics["rows"], metric="diverged_share")) == 0


def test_scikit_image_minimises_the_same_objective(denoised) -> None:
    assert at(denoised, "scikit-image", 20, "relative_gap") < 0.1
    assert at(denoised, "scikit-image", 20) < 0.5 * at(denoised, "scikit-image", 0)


def test_the_rows_of_table_1_are_there_and_best_is_best(levels) -> None:
    for method in ("gd", "adam", "lmd", "lmd-adaptive", "fgp", "pdhg"):
        for noise in (1, 2, 5, 10, 15, 20):
            for metric in ("psnr", "ssim"):
                found = [at(levels, method, k, metric, noise=noise) for k in ("best", 10, 20)]
                assert found[0] >= max(found[1:])
            assert at(levels, method, 10, "psnr_worst", noise=noise) <= at(levels, method, 10, "psnr", noise=noise)
    assert [table.columns[1] for table in imaging.noise_tables(levels["rows"])] == ["noise 1%"] * 6
    assert len(levels["figures"]) == 1


def test_lmd_is_nearer_to_the_minimiser_than_gd_and_adam_and_never_diverges(levels) -> None:
    for noise in (1, 2, 5, 10, 15, 20):
        learned = at(levels, "lmd", 10, "psnr", noise=noise)
        assert learned > at(levels, "gd", 10, "psnr", noise=noise)
        assert learned > at(levels, "adam", 10, "psnr", noise=noise)
        for method in ("lmd", "lmd-adaptive"):
            assert at(levels, method, 20, "diverged_share", noise=noise) == 0
            assert at(levels, method, 20, "psnr_worst", noise=noise) > 15


def test_what_diverges_is_counted_and_stays_a_number() -> None:
    problem = TVDenoising(torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    trial = SteppedSolver("gd", GradientDescent(1e30), 1.0)
    tried = imaging._Tried(problem, lmd.guarantees.minimiser(problem), trial)
    assert tried.diverged.tolist() == [True, True]
    assert tried.found["psnr"].shape == tried.found["ssim"].shape == (21, 2)
    assert bool(torch.isfinite(tried.found["psnr"]).all()) and bool(torch.isfinite(tried.found["ssim"]).all())
    assert float(tried.found["psnr"][20].max()) < -50


def session_with(images: Path | None, folder: Path, preset: str = "quick") -> Session:
    return Session("denoise", preset, 0, folder, images=images)


def test_images_that_are_brought_replace_the_test_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 40, 52), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=pixels)
    session = session_with(tmp_path / "mine.npz", tmp_path)
    images = images_for(session)
    assert session.facts["data"] == "2 test images of 40 x 40 from mine"
    assert torch.equal(images, torch.from_numpy(pixels[:2, :, :, 6:46]).float() / 255)


def test_an_experiment_without_test_images_refuses_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="simplex, which has no test images"):
        reproduce(experiments.get("simplex"), tmp_path, "quick", images=tmp_path)


def test_quick_test_images_are_of_the_test_photographs(tmp_path: Path) -> None:
    session = session_with(None, tmp_path)
    assert images_for(session).shape == (2, 3, 48, 48)
    assert session.facts["data"].endswith("photographs")


def test_a_solver_is_trained_where_it_is_asked_for(tmp_path: Path) -> None:
    session = Session("inpaint", "quick", 0, tmp_path, retrain=True)
    solver = imaging.learned_solver(session, "inpaint")
    assert session.facts["lmd comes from"] == "training with the quick preset in this run"
    assert solver.horizon == 10


def test_the_forward_ratio_is_1_for_the_identity_and_leaves_out_what_is_near_zero() -> None:
    pair = ConvPair(3, filters=2, layers=1, scale=0.2)
    with torch.no_grad():
        pair.forward_net.out.zero_()
    y = torch.full((1, 3, 6, 6), 0.5)
    y[:, :, 0, 0] = 0.1
    ratio = imaging.forward_ratio(MirrorDescent(pair), y)
    assert bool(ratio[0, 0].isnan())
    assert torch.allclose(ratio[1:], torch.ones(5, 6))
    mask = torch.ones(1, 1, 6, 6)
    mask[..., 3, 3] = 0
    assert bool(imaging.forward_ratio(MirrorDescent(pair), y, mask)[3, 3].isnan())


def test_psnr_and_ssim_are_per_image() -> None:
    one = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    other = one.clone()
    other[0] += 0.1
    other[1] += 0.01
    assert torch.allclose(psnr(other, one), torch.tensor([20.0, 40.0], dtype=torch.float64), atol=1e-3)
    assert 0.9 < float(ssim(other, one)[0]) < float(ssim(other, one)[1]) <= 1


def test_the_noise_and_the_mask_are_the_papers() -> None:
    assert imaging.NOISE == imaging.INPAINTING_NOISE == 0.05
    assert imaging.KEPT == 0.8
