"""Published checkpoints: the two layouts become solvers, anything else gets one clear line."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

import lmd
from lmd.errors import FileError
from lmd.problems import Problem
from lmd.zoo.published import import_checkpoint

PUBLISHED = Path(os.environ.get("LMD_DATA", "no such folder")).resolve().parent / "published"


def genuine(name):
    path = PUBLISHED / name
    if not path.is_file():
        pytest.skip(f"the published {name} is not beside LMD_DATA")
    return path


# Small state dicts of the published layouts, and the plain reading of what they mean: autograd of the scalar network.


def image_layout(filters=4, layers=2, backward_filters=5, backward_layers=3, channels=2, steps=3, kernel=3):
    generator = torch.Generator().manual_seed(0)
    weights = {"stepsize": 0.01 + 0.05 * torch.rand(steps, generator=generator)}
    for name, width, depth, out in (
        ("fwd_model", filters, layers, 1),
        ("bwd_model", backward_filters, backward_layers, channels),
    ):
        shapes = {f"wz.{i}.weight": (width, width, kernel, kernel) for i in range(depth)}
        for i in range(depth + 1):
            shapes |= {f"wx_quad.{i}.weight": (width, channels, kernel, kernel)}
            shapes |= {f"wx_lin.{i}.weight": (width, channels, kernel, kernel), f"wx_lin.{i}.bias": (width,)}
        shapes["final_conv2d.weight"] = (out, width, kernel, kernel)
        for key, shape in shapes.items():
            tensor = 0.3 * torch.randn(shape, generator=generator)
            positive = name == "fwd_model" and ("wz" in key or "final" in key)
            weights[f"{name}.{key}"] = tensor.abs() if positive else tensor
    return weights


def dense_layout(dimension=4, width=6, layers=4, backward_width=7, steps=3):
    generator = torch.Generator().manual_seed(0)
    weights = {"stepsize": 0.01 + 0.05 * torch.rand(steps, generator=generator)}
    for name, w in (("fwd_model", width), ("bwd_model", backward_width)):
        shapes = {f"wz.{i}.weight": (w, w) for i in range(layers)} | {f"wz.{layers}.weight": (1, w)}
        for i in range(layers + 2):
            rows = 1 if i == layers + 1 else w
            shapes |= {f"wx_quad.{i}.weight": (rows, dimension), f"wx_lin.{i}.weight": (rows, dimension)}
            if rows > 1:
                shapes[f"wx_lin.{i}.bias"] = (w,)
        for key, shape in shapes.items():
            tensor = 0.3 * torch.randn(shape, generator=generator)
            weights[f"{name}.{key}"] = tensor.abs() if name == "fwd_model" and "wz" in key else tensor
    return weights


def plain_map(weights, name, x, mixing):
    """(1 - mu) times the gradient of the scalar network, plus mu x."""
    part = {key.removeprefix(f"{name}."): w.double() for key, w in weights.items() if key.startswith(name)}
    images = "final_conv2d.weight" in part
    count = sum(key.startswith("wx_lin") and key.endswith("weight") for key in part)

    def apply(x, w):
        return functional.conv2d(functional.pad(x, (w.shape[2] // 2,) * 4, mode="circular"), w) if images else x @ w.T

    x = x.detach().requires_grad_()
    z = None
    for i in range(count if images else count - 2):
        bias = part[f"wx_lin.{i}.bias"]
        t = apply(x, part[f"wx_lin.{i}.weight"]) + (bias[:, None, None] if images else bias)
        t = t + apply(x, part[f"wx_quad.{i}.weight"]) ** 2
        z = functional.leaky_relu(t if z is None else t + apply(z, part[f"wz.{i - 1}.weight"]), 0.2)
    if images:
        value = apply(z, part["final_conv2d.weight"]).mean(dim=(2, 3)).sum()
    else:
        value = apply(z, part[f"wz.{count - 2}.weight"]) + apply(x, part[f"wx_lin.{count - 1}.weight"])
        value = (value + apply(x, part[f"wx_quad.{count - 1}.weight"]) ** 2).sum()
    (gradient,) = torch.autograd.grad(value, x)
    return ((1 - mixing) * gradient + mixing * x).detach()


LAYOUTS = {
    "images": (image_layout, (3, 2, 6, 5), 0.1),
    "images of other sizes": (lambda: image_layout(3, 1, 2, 4, 1, 5, 5), (2, 1, 7, 7), 0.1),
    "vectors": (dense_layout, (3, 4), 0.5),
    "vectors of other sizes": (lambda: dense_layout(2, 3, 2, 3, 7), (3, 2), 0.5),
}


class TestLayouts:
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_both_maps_and_the_steps_are_the_checkpoints(self, layout, tmp_path):
        make, shape, mixing = LAYOUTS[layout]
        weights = make()
        torch.save(weights, tmp_path / "checkpoint")
        solver = import_checkpoint(tmp_path / "checkpoint").double()
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        dual, primal = solver.mirror.to_dual(x).detach(), solver.mirror.to_primal(x).detach()
        # The sums of the last kernels are rounded to float32.
        assert_close(dual, plain_map(weights, "fwd_model", x, mixing), rtol=1e-6, atol=1e-6)
        assert_close(primal, plain_map(weights, "bwd_model", x, 0.5), rtol=1e-6, atol=1e-6)
        assert_close(solver.steps.sizes.detach(), weights["stepsize"].double())
        assert solver.horizon == len(weights["stepsize"])
        assert float(solver.mirror.strong_convexity) == pytest.approx(mixing)

    def test_a_saved_import_is_the_import(self, tmp_path):
        torch.save(image_layout(), tmp_path / "checkpoint")
        solver = import_checkpoint(tmp_path / "checkpoint")
        loaded = lmd.zoo.load(lmd.solvers.save(solver, tmp_path / "solver"))
        x = torch.rand(2, 2, 6, 6)
        ours, theirs = (lmd.run(s, lambda x: x.square().flatten(1).sum(dim=1), x) for s in (solver, loaded))
        assert torch.equal(ours.x, theirs.x) and ours.iterations.tolist() == [3, 3]

    def test_weights_of_a_gpu_and_other_orders_are_taken(self, tmp_path):
        """A dict in another order, in half precision, that still requires gradients."""
        weights = {key: w.half().requires_grad_() for key, w in reversed(image_layout().items())}
        torch.save(weights, tmp_path / "checkpoint")
        solver = import_checkpoint(tmp_path / "checkpoint")
        assert next(solver.parameters()).dtype == torch.float32


class RunsCode:
    def __reduce__(self):
        return (os.mkdir, ("this folder should never be made",))


def changed(**changes):
    """The image layout with entries replaced, or left out where None."""
    weights = image_layout() | {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in weights.items() if value is not None}


class TestAnythingElse:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (lambda: [torch.zeros(3)], "another layout"),
            (lambda: {}, "another layout"),
            (lambda: {"stepsize": torch.ones(3)}, "does not fit"),
            (lambda: image_layout() | {"note": "hello"}, "another layout"),
            (lambda: changed(stepsize=None), "another layout"),
            (lambda: changed(fwd_model__wz__0__weight=None), "does not fit"),
            (lambda: changed(fwd_model__wx_lin__1__bias=None), "does not fit"),
            (lambda: changed(bwd_model__final_conv2d__weight=None), "does not fit"),
            (lambda: changed(fwd_model__wz__1__weight=torch.zeros(4, 4)), "does not fit"),
            (lambda: changed(fwd_model__wz__0__weight=torch.zeros(())), "does not fit"),
            (lambda: changed(fwd_model__wx_quad__0__weight=torch.zeros(4, 3, 3, 3)), "does not fit"),
            (lambda: changed(bwd_model__wx_lin__0__weight=torch.zeros(5, 4)), "does not fit"),
            (lambda: changed(fwd_model__final_conv2d__weight=torch.zeros(1)), "does not fit"),
            (lambda: changed(stepsize=torch.zeros(0)), "does not fit"),
            (lambda: changed(stepsize=torch.full((3,), torch.nan)), "does not fit"),
            (lambda: changed(fwd_model__wz__0__weight=torch.full((4, 4, 3, 3), torch.nan)), "does not fit"),
            (lambda: changed(fwd_model__wz__0__weight=torch.full((4, 4, 3, 3), -1.0)), "does not fit"),
            (lambda: image_layout(kernel=2), "does not fit"),
            (lambda: dense_layout() | {"fwd_model.wz.4.weight": torch.zeros(2, 6)}, "does not fit"),
            (lambda: {"stepsize": torch.ones(3), "model": torch.nn.Linear(2, 2)}, "damaged or holds more than tensors"),
        ],
    )
    def test_gets_one_clear_line(self, content, words, tmp_path):
        torch.save(content(), tmp_path / "checkpoint")
        with pytest.raises(FileError, match=rf"\Acheckpoint: got [^\n]*{words}[^\n]*, expected a published [^\n]+\Z"):
            import_checkpoint(tmp_path / "checkpoint")

    @pytest.mark.parametrize(
        "weight",
        [
            torch.zeros(1).expand(10**12, 4, 3, 3),
            torch.zeros(4, 4, 3, 3, dtype=torch.int64),
            torch.zeros(4, 4, 3, 3, dtype=torch.complex64),
            torch.zeros(4, 4, 3, 3, device="meta"),
            torch.eye(4).to_sparse(),
        ],
        ids=["a size beyond the file", "whole numbers", "complex numbers", "no numbers", "another layout"],
    )
    def test_weights_that_are_none(self, weight, tmp_path):
        torch.save(changed(fwd_model__wz__0__weight=weight), tmp_path / "checkpoint")
        words = r"whose fwd_model\.wz\.0\.weight is torch\.\w+ of shape .*, expected floating-point weights, no larger"
        with pytest.raises(FileError, match=words):
            import_checkpoint(tmp_path / "checkpoint")

    @pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}q\x00.", b"PK\x03\x04 half a zip file"])
    def test_files_of_another_kind(self, content, tmp_path):
        (tmp_path / "checkpoint").write_bytes(content)
        with pytest.raises(FileError, match=r"\Acheckpoint: got [^\n]+\Z"):
            import_checkpoint(tmp_path / "checkpoint")

    @pytest.mark.parametrize("save", [torch.save, lambda item, path: path.write_bytes(pickle.dumps(item))])
    def test_code_in_a_pickle_is_not_run(self, save, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        save({"stepsize": RunsCode()}, tmp_path / "checkpoint")
        with pytest.raises(FileError, match=r"\Acheckpoint: got [^\n]+\Z"):
            import_checkpoint(tmp_path / "checkpoint")
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]

    def test_no_file_or_a_folder(self, tmp_path):
        with pytest.raises(FileError, match=r"\Acheckpoint: got no file "):
            import_checkpoint(tmp_path / "nothing")
        with pytest.raises(FileError, match=r"\Acheckpoint: got no file "):
            import_checkpoint(tmp_path)


class HalvedInpainting(Problem):
    """1/2 (||mask (x - y)||^2 + 0.3 TV(x)), anisotropic, no wrap-around: what the published steps belong to."""

    batched = ("y",)

    def __init__(self, y, mask):
        self.y, self.mask = y, mask

    def value(self, x):
        variation = (x[..., 1:, :] - x[..., :-1, :]).abs().sum(dim=(1, 2, 3))
        variation = variation + (x[..., 1:] - x[..., :-1]).abs().sum(dim=(1, 2, 3))
        return 0.5 * ((self.mask * (x - self.y)).square().sum(dim=(1, 2, 3)) + 0.3 * variation)


@pytest.fixture(scope="module")
def trajectory():
    solver = import_checkpoint(genuine("inpainting_780"))
    with np.load(genuine("inpainting_780_trajectory.npz"), allow_pickle=False) as file:
        reference = {name: torch.from_numpy(file[name]) for name in ("y", "mask", "steps", "values", "x1", "x10")}
        reference["inconsistency"] = torch.from_numpy(file["consistency_l1_at_y"])
    problem = HalvedInpainting(reference["y"], reference["mask"])
    points = []
    result = lmd.run(solver, problem, reference["y"], callbacks=[lambda state, _: points.append(state.x)])
    return reference, solver, points, result


class TestReferenceTrajectory:
    """Ten iterations in float32 against an independent reading of the architecture.

    The subgradient of TV and the slopes of a leaky ReLU jump, so a difference in the last bit becomes one of 0.01 at
    single pixels after ten steps: the plain reading itself, run with two instruction sets of one processor (or in
    float64), ends 3e-2 apart at the worst pixel, 1e-4 on average, and 3e-4 apart in the value of an image. So pixels
    are compared in the mean, values over the batch; one image is allowed what rounding can do to it.
    """

    def test_steps(self, trajectory):
        reference, solver, _, _ = trajectory
        assert_close(solver.steps.sizes.detach(), reference["steps"])

    def test_values(self, trajectory):
        reference, _, _, result = trajectory
        assert result.history.values.shape == (11, 4)
        assert_close(result.history.values.mean(dim=1), reference["values"].mean(dim=1), rtol=1e-4, atol=0)
        assert_close(result.history.values[:4], reference["values"][:4], rtol=1e-4, atol=0)
        assert_close(result.history.values, reference["values"], rtol=5e-4, atol=0)

    def test_points(self, trajectory):
        reference, _, points, _ = trajectory
        first, last = (points[0] - reference["x1"]).abs(), (points[9] - reference["x10"]).abs()
        assert float((first > 1e-5).double().mean()) < 1e-3  # but for the pixels around a neuron at its kink
        assert float(first.max()) < 2e-3
        assert float(last.mean()) < 2e-4 and float(last.square().mean().sqrt()) < 1e-3

    def test_inconsistency(self, trajectory):
        reference, solver, _, _ = trajectory
        with torch.no_grad():
            inconsistency = solver.mirror.inconsistency(reference["y"])
        assert_close(inconsistency, reference["inconsistency"], rtol=1e-3, atol=0)


def test_the_trained_mirrors_have_a_refined_inverse():
    """Residual 1e-6 on every instance of a batch of 64, float64, dense and convolutional."""
    generator = torch.Generator().manual_seed(0)
    dense = import_checkpoint(genuine("svm_3000")).double().mirror
    images = import_checkpoint(genuine("inpainting_780")).double().mirror
    with torch.no_grad():
        images.forward_net.out.mul_(5 * 5 / (96 * 96))  # the mean over 96 x 96 pixels, which it was trained with
        images.backward_net.out.mul_(5 * 5 / (96 * 96))
    for mirror, shape in ((dense, (64, 51)), (images, (64, 3, 5, 5))):
        x = 0.3 * torch.randn(shape, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            y = mirror.to_dual(x)
            found = mirror.to_primal(y, tolerance=1e-6)  # a miss would warn, and warnings are errors here
            residual = (mirror.to_dual(found) - y).flatten(1).norm(dim=1)
        assert float(residual.max()) <= 1e-6
        assert bool(((found - x).flatten(1).norm(dim=1) <= residual / mirror.strong_convexity + 1e-12).all())
