import errno
import json
import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from lmd import zoo
from lmd.cli.program import main
from lmd.errors import FileError, InputError
from lmd.guarantees.certify import run
from lmd.reproduction import bench as bench_module
from lmd.reproduction.bench import Plan, contests, known_methods, methods_for, run_bench
from lmd.reproduction.bench.measuring import (
    CLASSICAL,
    KnownInstances,
    MeasuredPeer,
    MeasuredSolver,
    QualityTarget,
    Setting,
    looks,
    quality_curve,
    targets,
)
from lmd.reproduction.bench.report import bench_tables, lines, to_json, write
from lmd.reproduction.bench.timing import TimedCall, TimedCurve, _time_row
from lmd.reproduction.experiments import read
from lmd.reproduction.page import write_page
from lmd.reproduction.tasks import Contest, Peer
from lmd.solvers import FGP, PDHG

TARGETS = targets((1e-1, 1e-2, 1e-3))
PEERS = [(name, peer) for name, contest in contests().items() for peer in contest.peers]
METHODS = ("lmd.solve", "lmd-denoise-5", "pdhg-proven", *CLASSICAL, "prox_tv-pd", "prox_tv-pd-1-thread", "scikit-image")
SMALL = {"count": 2, "side": 12, "tuning": 1, "batches": (1, 2), "repeats": 2, "most": 60}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMD_DATA", raising=False)


def images(count=2, side=16):
    x = torch.linspace(0.1, 0.9, side).round(decimals=1)
    return (x[:, None] * x).expand(count, 3, side, side).contiguous()


@pytest.fixture
def drawn(monkeypatch):
    """Images that need not be read."""
    monkeypatch.setattr(bench_module, "_images", lambda plan, bench: ([({}, images(plan.count, 12))], images(1, 12)))


def make(task):
    return contests()[task].make(images(), 0.05, torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def denoised(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("LMD_DATA", raising=False)
        return run_bench(Plan.quick(problems=("denoise",), noise=(5,), methods=METHODS, **SMALL))


class TestRows:
    def test_each_is_flat_and_complete(self, denoised):
        for row in denoised.rows:
            assert {"problem", "method", "noise", "batch", "iteration", "metric", "value"} <= set(row)
            assert row["problem"] == "denoise" and row["noise"] == 5 and row["batch"] in (1, 2)
            assert not any(isinstance(value, (list, dict)) for value in row.values())
        json.dumps(to_json(denoised), allow_nan=False)

    def test_every_method_has_every_number(self, denoised):
        quality = {(r["method"], r["batch"], r["metric"], r["iteration"]) for r in denoised.rows}
        names = {r["method"] for r in denoised.rows}
        assert {"gd", "adam", "nesterov", "fgp", "pdhg", "relaxed-pdhg", "lbfgs", "scikit-image"} <= names
        for name in names - {"lmd.solve", "pdhg-proven"}:  # which are timed alone
            for batch in (1, 2):
                for k in (5, 10, 20):
                    assert (name, batch, "psnr", k) in quality or name.startswith("prox_tv")
                times = {r["metric"] for r in denoised.rows if r["method"] == name and r["batch"] == batch}
                assert {f"seconds_to_{target.name}" for target in TARGETS} <= times

    def test_the_metrics_are_named_as_documented(self, denoised):
        found = {r["metric"] for r in denoised.rows}
        assert {"psnr", "relative_gap", "certified_gap", "seconds_to_40db", "seconds_to_gap_1e-2"} <= found

    def test_the_certified_gap_bounds_the_true_one(self, denoised):
        for k in (5, 10, 20):
            for name in ("fgp", "pdhg"):
                own = {r["metric"]: r["value"] for r in denoised.rows if r["method"] == name and r["iteration"] == k}
                assert own["certified_gap"] is None or own["certified_gap"] >= own["relative_gap"] - 1e-5

    def test_times_are_in_order_and_between_their_extremes(self, denoised):
        timed = [r for r in denoised.rows if r["metric"].startswith("seconds_to") and r["value"] is not None]
        assert timed
        for row in timed:
            assert 0 < row["low"] <= row["value"] <= row["high"] and row["repeats"] in (1, 2)
            assert row["cpu_seconds"] >= 0
        pdhg = {r["metric"]: r["iteration"] for r in timed if r["method"] == "pdhg" and r["batch"] == 2}
        assert pdhg["seconds_to_gap_1e-1"] <= pdhg["seconds_to_gap_1e-2"]

    def test_the_public_call_is_timed_to_every_gap(self, denoised):
        own = [r for r in denoised.rows if r["method"] == "lmd.solve" and "gap" in r["metric"]]
        assert len(own) == 6 and all(r["value"] > 0 and r["iteration"] >= 5 for r in own)

    def test_a_proof_is_timed_like_an_answer(self, denoised):
        proven = [r for r in denoised.rows if r["method"] == "pdhg-proven"]
        assert {r["metric"] for r in proven} == {f"seconds_to_{target.name}" for target in TARGETS}
        reached = [r for r in proven if r["value"] is not None]
        assert reached and all("gap" in r["metric"] and r["iteration"] > 0 for r in reached)

    def test_a_target_that_is_not_reached_has_no_time(self, denoised):
        (row,) = (
            r for r in denoised.rows if (r["method"], r["metric"], r["batch"]) == ("gd", "seconds_to_gap_1e-3", 2)
        )
        assert row["value"] is None and row["iteration"] == "not reached"

    def test_tables_and_files(self, denoised, tmp_path):
        quality, single, double = bench_tables(denoised.rows)
        assert quality.title == "denoise, noise 5%" and len(quality.lines) >= 8
        assert single.title == "denoise, noise 5%, batch 1" and len(single.lines) >= 6 <= len(double.lines)
        assert single.columns[1:] == ("1e-1", "1e-2", "1e-3") and " / " in single.lines[0][1]
        write(denoised, tmp_path / "rows.json", tmp_path / "out")
        kept = json.loads((tmp_path / "rows.json").read_text())
        assert kept["rows"] == denoised.rows
        assert json.loads((tmp_path / "out" / "bench" / "metrics.json").read_text()) == kept
        assert (tmp_path / "out" / "bench" / kept["figures"][0]["file"]).stat().st_size > 1000

    def test_the_page_shows_tables_and_figures(self, denoised, tmp_path):
        write(denoised, None, tmp_path)
        page = write_page(tmp_path, read).read_text(encoding="utf-8")
        assert "denoise, noise 5%, batch 1" in page and "ms / CPU ms to a gap of" in page and "data:image/png" in page
        assert "PSNR to the minimiser" not in page, "that table is of an experiment"

    def test_a_full_disk_leaves_nothing(self, denoised, tmp_path, monkeypatch):
        def full(self, file, **_):
            Path(file).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
        with pytest.raises(FileError, match=r"^out: got .*bench \(No space left on device\)"):
            write(denoised, None, tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_the_quality_is_that_of_the_iterates():
    instances = KnownInstances.of(make("denoise"))
    curve = quality_curve(Setting(FGP()), instances, 10, TARGETS, 60)
    state = FGP().init(instances.problem, instances.x0)
    for _ in range(10):
        state = FGP().step(instances.problem, state)
    gap = (instances.exact.value(state.x.double()) - instances.minimum) / instances.minimum
    assert_close(curve["relative_gap"][10], gap)
    error = (state.x.double() - instances.minimiser).square().mean(dim=(1, 2, 3))
    assert_close(curve["psnr"][10], -10 * error.log10(), rtol=1e-5, atol=1e-4)
    assert_close(curve["certified_gap"][10], instances.problem.relative_gap(state.x, state.dual).double())


def test_before_the_first_dual_point_nothing_is_certified():
    """Exact mirror descent has one from its first iteration on."""
    solver = zoo.load("denoise-exact-10", bare=True)
    gaps = quality_curve(Setting(solver), KnownInstances.of(make("denoise")), 3, TARGETS, 60)["certified_gap"]
    assert gaps[0].isinf().all() and gaps[1:].isfinite().all()


def test_a_method_is_tuned_on_other_instances_for_each_number():
    problem, trial = KnownInstances.of(make("denoise")), KnownInstances.of(make("denoise"))
    (pdhg,) = (m for m in methods_for("denoise", problem.problem, 40) if m.name == "pdhg")
    run = MeasuredSolver(pdhg, problem, trial, TARGETS, 60)
    for k in (5, 40):
        scores = [float(quality_curve(s, trial, 40, TARGETS, 60)["relative_gap"][k].mean()) for s in pdhg.settings]
        assert run.best_at("relative_gap", k) == scores.index(min(scores))


def test_iterates_are_looked_at_ever_more_seldom():
    assert looks(3) == [0, 1, 2, 3] and looks(60)[48:] == [48, 49, 50, 53, 56, 59, 60]
    instances = KnownInstances.of(make("coupled"), kept=False)
    curve = quality_curve(Setting(FGP()), instances, 60, targets((1e-9,)), 60)["relative_gap"]
    x = run(FGP(), instances.problem, instances.x0, 56, record=False).x
    gap = (instances.exact.value(x.double()) - instances.minimum) / instances.minimum
    assert len(curve) == 55 and float(gap.min()) > 1e-5
    assert_close(curve[52], gap, rtol=1e-2, atol=1e-7)


def test_targets():
    assert [target.name for target in TARGETS] == ["gap_1e-1", "gap_1e-2", "gap_1e-3", "30db", "40db", "50db"]
    assert QualityTarget("psnr", 40).reached([10.0, 41.0, 39.0]) == 1
    assert QualityTarget("relative_gap", 0.01).reached([1.0, math.inf, 0.01]) == 2
    assert QualityTarget("relative_gap", 0.01).reached([1.0, 0.1]) is None


def test_what_a_peer_is_called_with_is_no_number_of_iterations():
    target = QualityTarget("relative_gap", 0.1)
    for given, place in ((0.1, "called with 0.1"), (20, 20)):
        job = TimedCall(lambda: None, given, 0.0, (target,), [(1.0, 1.0)])
        assert _time_row("celer", target, [[job]])["iteration"] == place


@pytest.mark.parametrize("task", list(contests()))
def test_every_method_of_every_problem_runs(task):
    problem = make(task)
    for method in methods_for(task, problem, 2):
        for setting in method.settings[:1] + method.settings[-1:]:
            adapted = setting.adapt(problem)
            start = problem.start() if hasattr(problem, "start") else torch.zeros(2, *problem.point_shape)
            state = setting.solver.step(adapted, setting.solver.init(adapted, start))
            assert bool(torch.isfinite(state.x).all()), method.name
            if method.name != "fgp" or task != "control":  # whose points are in the box in the limit alone
                assert bool(torch.isfinite(problem.value(state.x)).all()), method.name


def test_another_balance_is_the_same_problem():
    problem = make("deblur")
    adapted = Setting(PDHG(), balance=2.0).adapt(problem)
    x = problem.start()
    assert_close(adapted.value(x), problem.value(x))
    assert adapted.operator.scales[1] == 2 * problem.operator.scales[1] and adapted.operator is not problem.operator


@pytest.mark.parametrize(("task", "peer"), PEERS, ids=lambda each: getattr(each, "name", each))
def test_peers_come_near_the_minimum(task, peer):
    if not peer.installed:
        pytest.skip(f"{peer.name} is not installed")
    problem = make(task)
    instances = KnownInstances.of(problem, task == "svm", smallest=1e-4)
    found = MeasuredPeer(peer, instances, TARGETS, 1000, 60)
    gap = found.quality["relative_gap"]
    assert bool((gap >= -1e-5).all()) and len(gap) == len(found.rungs) <= len(peer.ladder)
    otherwise = {"scikit-image": 0.15, "liblinear": 0.05}  # it treats borders otherwise, it penalises the bias
    assert float(gap[-1].max()) < otherwise.get(peer.name, 1e-3)


def test_a_peer_is_called_no_further_than_the_limit_or_the_last_gap():
    instances, called = KnownInstances.of(make("lasso")), []

    def prepare(problem):
        return lambda rung: called.append(rung) or (instances.minimiser if rung == 3 else instances.x0)

    peer = Peer("theirs", "torch", (1, 2, 3, 4), prepare, lambda problem, x: x)
    assert MeasuredPeer(peer, instances, TARGETS, 1000, 60).rungs == (1, 2, 3) and called == [1, 1, 2, 3]
    assert MeasuredPeer(peer, instances, TARGETS, 2, 60).rungs == (1, 2)
    assert MeasuredPeer(peer, instances, TARGETS, 1000, 0.0).rungs == (1,)


def test_a_method_ends_at_its_limit():
    instances = KnownInstances.of(make("lasso"))
    assert len(quality_curve(Setting(PDHG()), instances, 1000, TARGETS, 0.0)["psnr"]) == 1


def test_lines_of_a_figure_are_the_best_within_a_time():
    def curve(method, *points, batch=1):
        return TimedCurve({"problem": "denoise", "noise": 5}, batch, method, points)

    found = lines(
        [
            curve("lmd.solve", (0.001, 0.1), (0.002, 0.2), (0.003, 0.01)),
            curve("theirs", (0.01, 0.1)),
            curve("theirs-1-thread", (0.005, 0.1), (0.02, 0.05)),
            curve("lmd-denoise-10", (0.01, 0.1)),
            curve("fgp", (0.01, 0.1)),
            curve("fgp-proven", (0.02, 0.1)),
            curve("theirs", (0.01, 0.1), batch=2),
        ],
        batch=1,
    )
    ours = {"lmd.solve": [(1, 0.1), (3, 0.01)], "fgp-proven": [(20, 0.1)]}
    assert found == {"theirs": [(5, 0.1), (20, 0.05)], **ours}
    assert list(found)[-1] == "lmd.solve", "ours is drawn last"


def test_an_absent_peer_is_named(monkeypatch, drawn):
    absent = Peer("nobody", "no_such_package", (1,), lambda problem: None, lambda problem, x: x)
    only = {"lasso": Contest(contests()["lasso"].make, peers=(absent,))}
    monkeypatch.setattr(bench_module, "contests", lambda: only)
    found = run_bench(Plan.quick(problems=("lasso",), methods=("nobody",), **SMALL))
    assert found.rows == [] and found.skipped[:1] == ["no_such_package: not installed; pip install 'lmd[bench]'"]


def test_a_noise_level_that_a_problem_has_not(drawn):
    found = run_bench(Plan.quick(problems=("lasso",), noise=(10,), **SMALL))
    assert found.rows == [] and "lasso: not at this noise" in found.skipped[0]


def test_a_batch_is_no_larger_than_there_are_images(drawn):
    found = run_bench(Plan.quick(problems=("lasso",), methods=("pdhg",), **{**SMALL, "batches": (1, 20)}))
    assert {r["batch"] for r in found.rows} == {1, 2}


def test_sizes():
    names = ("lmd.solve", "scikit-image")
    found = run_bench(Plan.quick(problems=("denoise-isotropic", "lasso"), sizes=(16, 24), methods=names, **SMALL))
    assert {(r["size"], r["method"], r["batch"]) for r in found.rows} == {(s, n, 1) for s in (16, 24) for n in names}
    titles = [table.title for table in bench_tables(found.rows)]
    assert titles[-1] == "denoise-isotropic, noise 5%, 24 x 24, batch 1"
    assert found.skipped == ["lasso: it has no images, and one size alone"]


def test_minima_that_are_not_known_well_enough_are_said(monkeypatch, drawn):
    monkeypatch.setattr("lmd.reproduction.bench.measuring.PATIENCE", 3)
    found = run_bench(Plan.quick(problems=("absolute",), methods=("lmd.solve",), **SMALL))
    assert any(line.startswith("absolute, gaps below ") for line in found.skipped)


def test_methods_that_are_for_other_problems(drawn):
    found = run_bench(Plan.quick(problems=("lasso",), methods=("fgp",), **SMALL))
    assert found.rows == found.curves == [] and found.skipped == ["lasso: none of the methods is for it"]


def test_a_model_has_the_classical_methods_for_its_parts():
    names = {name: [m.name for m in methods_for(name, make(name), 2)] for name in ("huber", "counts-isotropic")}
    assert names["huber"] == ["pdhg", "relaxed-pdhg", "fgp"]
    assert names["counts-isotropic"] == ["pdhg", "relaxed-pdhg"]


@pytest.mark.parametrize("name", ["coupled", "map", "huber", "box", "volume", "counts", "absolute", "masked-counts"])
def test_every_model_has_a_line(name, drawn):
    quick = {**SMALL, "count": 1, "batches": (1,), "repeats": 1, "most": 5, "gaps": (1e-1,), "limit": 0.1}
    found = run_bench(Plan.quick(problems=(name,), methods=("lmd.solve", "relaxed-pdhg"), **quick))
    (ours,) = (r for r in found.rows if (r["method"], r["metric"]) == ("lmd.solve", "seconds_to_gap_1e-1"))
    assert ours["value"] > 0


def test_every_name_that_the_rows_have_can_be_asked_for(denoised):
    assert {row["method"] for row in denoised.rows} <= set(known_methods())


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"problems": ("denoising",)}, r"problem: got 'denoising', expected one of .*did you mean denoise"),
        ({"methods": ("pdhg", "nope")}, r"methods: got 'nope', expected one of gd, "),
        ({"methods": ("",)}, r"methods: got '', expected one of gd, "),
        ({"noise": (5, -5)}, r"noise: got -5, expected some of 0, 1, 2, 5, 10, 15, 20"),
        ({"noise": (7,)}, r"noise: got 7, expected"),
        ({"sizes": (0,)}, r"sizes: got 0, expected a whole number from 8 to 8192"),
        ({"sizes": (10**20,)}, r"sizes: got 1000000"),
        ({"gaps": (0.1, 0.0)}, r"gaps: got 0, expected numbers from 1e-07 to 1"),
        ({"limit": 0.0}, r"limit: got 0"),
        ({"count": 0}, r"count: got 0"),
        ({"repeats": 0}, r"repeats: got 0"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is(choice, words, monkeypatch):
    monkeypatch.setattr(bench_module, "_images", None)
    with pytest.raises(InputError, match=f"^{words}"):
        run_bench(Plan.quick(**choice))


def test_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "lasso", "--quick", "--methods", "pdhg,scikit-learn", "--json", str(tmp_path / "rows.json")])
    printed = capsys.readouterr().out
    assert ended.value.code == 0 and "lasso, noise 5%, batch 1" in printed
    assert {r["method"] for r in json.loads((tmp_path / "rows.json").read_text())["rows"]} == {"pdhg", "scikit-learn"}
    for arguments in (["bench", "nothing"], ["bench", "lasso", "--noise", "much"], ["bench", "--gaps", "small"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
