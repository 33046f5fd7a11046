"""PyTorch's modes and defaults: inference mode, autocast, vmap, default devices and dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from faults import Trials, case


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Any:
    """Another default dtype for a while."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@case("modes of PyTorch", seconds=300)
def modes(trials: Trials) -> None:
    """Every public function in every mode: the same numbers as without it, or one line."""
    import torch

    import lmd
    from faults import work

    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    dtypes = {f"default {kind}": kind for kind in floats}
    settings: dict[str, Callable[[], Any]] = {
        "inference mode": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "autocast, float16": lambda: torch.autocast("cpu", torch.float16),
        **{name: lambda kind=kind: default_dtype(kind) for name, kind in dtypes.items()},
        "device cpu": lambda: torch.device("cpu"),
        "device meta": lambda: torch.device("meta"),
        "deterministic": _deterministic,
    }
    plain = work.small()
    right = {name: solve() for name, solve in plain.items()}
    chosen = list(plain)[:: trials.few(1, 4)]
    for mode, enter in settings.items():
        for made in ("before", "inside"):
            for name in chosen:
                words = f"{name}, {mode}, problems made {made}"
                try:
                    kinds = plain
                    with enter():
                        if made == "inside":
                            kinds = work.small()
                        found = kinds[name]()
                except lmd.LmdError as error:
                    trials.check("\n" not in str(error), f"{words}: {error}")
                    continue
                except Exception as error:
                    trials.check(False, f"{words}: {type(error).__name__} {error}")
                    continue
                begins = mode in dtypes and name in ("train", "solve, control")  # their weights begin in that dtype
                rounding = max(torch.finfo(kind).eps for kind in (torch.float32, dtypes[mode])) if begins else 0.0
                fine = work.near(found, right[name], rounding) if begins else work.same(found, right[name])
                trials.check(fine, f"{words}: another answer")
    _half_tensors(trials)
    _vmap(trials)


@contextlib.contextmanager
def _deterministic() -> Any:
    import torch

    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _half_tensors(trials: Trials) -> None:
    """Tensors of every dtype and device in every function: a finite answer, or one line."""
    import torch

    import lmd
    from faults import work

    kinds = (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    )
    calls = _calls()
    for kind in (*kinds, "meta"):
        for name, call in calls.items():
            picture = work.numbers(16, 20)
            picture = picture.to("meta") if kind == "meta" else (picture * (200 if kind == torch.uint8 else 1)).to(kind)
            try:
                found = call(picture)
                trials.check(bool(torch.isfinite(torch.as_tensor(found)).all()), f"{name} of {kind}: not finite")
            except lmd.LmdError as error:
                trials.check("\n" not in str(error), f"{name} of {kind}: {error}")
            except Exception as error:
                trials.check(False, f"{name} of {kind}: {type(error).__name__} {error}")


def _calls() -> dict[str, Callable[[Any], Any]]:
    """The functions that take pictures or batches of them."""
    import lmd
    from lmd.operators import gaussian_kernel
    from lmd.problems import Lasso, LeastSquares, TVDeblurring, TVDenoising, TVInpainting

    return {
        "denoise": lambda x: lmd.denoise(x, weight=0.1),
        "denoise, weight from the data": lambda x: lmd.denoise(x),
        "inpaint": lambda x: lmd.inpaint(x, x.real > 0.1, weight=0.1),
        "deblur": lambda x: lmd.deblur(x, gaussian_kernel(1.0), weight=0.1),
        "denoise_video": lambda x: list(lmd.denoise_video([x, x], weight=0.1))[-1],
        "solve": lambda x: lmd.solve(TVDenoising(x[None, None], 0.1), 1e-2).x,
        "solve, inpainting": lambda x: lmd.solve(TVInpainting(x[None, None], x.real > 0.1, 0.1), 1e-1).x,
        "solve, deblurring": lambda x: lmd.solve(TVDeblurring(x[None, None], gaussian_kernel(1.0), 0.1), 1e-1).x,
        "solve, lasso": lambda x: lmd.solve(Lasso(x, x[None, :, 0], 0.1), 1e-2).x,
        "run": lambda x: (
            lmd.run(lmd.solvers.GradientDescent(0.001), LeastSquares(x[None], x[None, :, 0]), x[:1] * 0, 3).x
        ),
        "run of a function": lambda x: (
            lmd.run(lmd.solvers.GradientDescent(0.1), lambda z: ((z - x) ** 2).sum(dim=1), x, 3).x
        ),
        "nn": lambda x: lmd.nn.TVLayer(0.1)(x[None, None]),
    }


def _gradient(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    return torch.func.grad(lambda x: call(x).sum())


def _vmap(trials: Trials) -> None:
    """Inside torch.func.vmap and grad: right, or one line."""
    import torch

    import lmd
    from faults import work

    batch = work.numbers(3, 16, 20)
    for name, call in _calls().items():
        for words, transform in (("vmap", torch.func.vmap), ("grad", _gradient)):
            given = batch if words == "vmap" else batch[0]
            try:
                found = transform(call)(given)
                if words == "vmap":
                    right = torch.stack([torch.as_tensor(call(x)) for x in batch])
                    trials.check(work.near(found, right, 1e-5), f"{name} in {words}: another answer")
            except lmd.LmdError as error:
                trials.check("\n" not in str(error), f"{name} in {words}: {error}")
            except Exception as error:
                says_so = isinstance(error, RuntimeError) and "functorch transform" in str(error)  # PyTorch's own line
                trials.check(says_so, f"{name} in {words}: {type(error).__name__} {error}")
