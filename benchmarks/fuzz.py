"""Malformed inputs for every command and every file format: each must get one line and exit code 2, and leave nothing.

    python benchmarks/fuzz.py [--inputs 1000] [--seed 0] [--only KIND] [--case NUMBER] [--show]

A case is made from its seed and its number alone. It takes valid files, damages one of them or an option, and runs the
command line in a fork of this process, in a folder of its own, with a limit on time and memory. Wrong is: a traceback,
an internal error, an exit code other than 2 (or 0, where the input was still valid), not just one line on stderr with
exit code 2, a file that was not there before, or a gigabyte of memory. Needs a system that can fork.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as tensor_bytes

import lmd
from lmd.cli.program import main as command_line
from lmd.core.files import read_json
from lmd.reproduction import experiments
from lmd.reproduction.tables import row

SECONDS = 60
"""How long a case may take."""

GIGABYTE = 2**30

Random = random.Random
Make = Callable[[Random, Path], list[str]]
"""Writes the files of a case into a folder of its own and answers with the arguments of the command."""

# Damages: of bytes, of JSON, of files, of words.

WORDS = ("nan", "inf", "-inf", "-1", "0", "1e3", "1.5", "0x10", "1,,2", "none", "'", "%s%n", "1e300", "1e-300")
WORDS += ("-", "--", "\u0663", "\U0001f600", "\udcff")
WORDS += ("", " ", "a\nb", "x" * 300, "\u00fc" * 200, "9" * 20, "9" * 23, "-" + "9" * 20)
"""What nobody means; none of them leads out of the folder of a case."""

NUMBERS = (0, -1, 1, 2, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 3, 0.5, 1e308, 10**12, 10**400, 2**53, "", "x", "\ud800", "x" * 10_000)
VALUES += ([], {}, [1], [[]], {"type": "LearnedDual"}, {"type": "PDHG"}, [None, "a", {}], float("nan"), float("inf"))


def damage_bytes(draw: Random, content: bytes) -> bytes:
    """Cut, flipped, overwritten with other numbers, emptied, doubled, or with something in the middle."""
    data, way = bytearray(content), draw.randrange(7)
    if way == 0 or not data:
        return bytes(data[: draw.randrange(len(data) + 1)])
    for _ in range(draw.choice((1, 1, 2, 8, 40))):
        place = draw.randrange(min(len(data), draw.choice((32, 200, len(data)))))
        if way in (1, 2):
            data[place] ^= 1 << draw.randrange(8)
        elif way in (3, 4):
            size, order = draw.choice((1, 2, 4)), draw.choice(("big", "little"))
            number = draw.choice(NUMBERS) % 256**size
            data[place : place + size] = number.to_bytes(size, order)
        elif way == 5:
            data[place:place] = draw.randbytes(draw.randrange(1, 9))
        else:
            del data[place : place + draw.randrange(1, 9)]
        if not data:
            break
    return bytes(data)


def damage_json(draw: Random, value: Any) -> Any:
    """The same with one entry, at any depth, replaced, removed, renamed or wrapped."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        entries = dict(value) if isinstance(value, dict) else list(value)
        key: Any = draw.choice(list(entries)) if isinstance(entries, dict) else draw.randrange(len(entries))
        way = draw.randrange(8)
        if way == 0:
            del entries[key]
        elif way == 1 and isinstance(entries, dict):
            entries[draw.choice(("type", "rows", "x", ""))] = entries.pop(key)
        else:
            entries[key] = damage_json(draw, entries[key])
        return entries
    if draw.random() < 0.1:
        return [[value]] if draw.random() < 0.5 else {"x": value}
    if isinstance(value, int) and draw.random() < 0.4:
        return value * draw.choice((-1, 0, 10, 10**3, 10**6, 10**12, 10**30))
    return draw.choice(VALUES)


def json_bytes(draw: Random, value: Any) -> bytes:
    """Damaged JSON: mostly its entries, now and then its bytes or its depth."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = damage_json(draw, value)
    content = json.dumps(value).encode("utf-8", "surrogatepass")
    way = draw.randrange(12)
    if way == 0:
        return damage_bytes(draw, content)
    depth = draw.choice((500, 900, 100_000))
    return b"[" * depth + content + b"]" * depth if way == 1 else content


def damage_file(draw: Random, path: Path) -> None:
    """Other bytes; or a folder, a link, a pipe or nothing in place of the file."""
    way = draw.randrange(14)
    if way >= 6:
        path.write_bytes(damage_bytes(draw, path.read_bytes()))
        return
    path.unlink()
    if way == 0:
        path.mkdir()
    elif way == 1:
        path.symlink_to(path.name)
    elif way == 2:
        path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/etc/passwd", "nowhere", "..")))
    elif way == 3:
        path.write_bytes(b"")
    elif way == 4:
        os.mkfifo(path)


# Valid files.


def pictures(folder: Path) -> None:
    draw = np.random.default_rng(0)
    grey, colour = draw.integers(0, 256, (12, 14), dtype=np.uint8), draw.integers(0, 256, (12, 14, 4), dtype=np.uint8)
    deep = draw.integers(0, 65536, (12, 14, 3), dtype=np.uint16)
    Image.fromarray(grey).save(folder / "grey.png")
    Image.fromarray(colour).save(folder / "colour.png", pnginfo=None, exif=Image.Exif())
    Image.fromarray(colour[..., :3]).convert("P").save(folder / "palette.png", transparency=3)
    Image.fromarray(deep[..., 0]).save(folder / "deep.png")
    Image.fromarray(colour[..., :3]).save(folder / "colour.jpg", progressive=True)
    Image.fromarray(grey).save(folder / "grey.jpg")
    for kind in ("raw", "tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        Image.fromarray(colour[..., :3]).save(folder / f"{kind}.tif", compression=kind)
    Image.fromarray(grey > 128).save(folder / "fax.tif", compression="group4")
    import tifffile

    tifffile.imwrite(folder / "deep.tif", deep, photometric="rgb")
    tifffile.imwrite(folder / "deflated.tif", deep[..., 0], compression="zlib", predictor=True, tile=(16, 16))


def metrics() -> dict[str, Any]:
    """A metrics.json with rows for every table."""
    rows = [
        row(m, k, metric, 0.5**k, noise=n)
        for m in ("gd", "lmd")
        for k in (0, 5)
        for metric in ("loss", "psnr", "seconds")
        for n in (1, 5)
    ]
    rows += [
        row("scikit", "to gap", "seconds_to_gap_1e-2", 0.1, instances=1),
        row("lmd", 10, "train_seconds", 0.1, batch=2),
    ]
    same = {"condition": "plain", "fallback": "fgp", "instances": 3}
    rows += [
        row("svm", 20, name, 0.1, **same) for name in ("excess_over_fallback", "fallback_share", "largest_relative_gap")
    ]
    benched = {"problem": "denoise", "noise": 5, "batch": 1}
    rows += [row("pdhg", 10, "psnr", 30.0, **benched), row("pdhg", 7, "seconds_to_40db", 0.1, **benched)]
    rows += [row("pdhg", 10, name, 0.1, **benched, size=32) for name in ("relative_gap", "seconds_to_gap_1e-1")]
    return {
        "experiment": "toy", "title": "A toy", "paper": "Figure 0", "preset": "quick", "seed": 0, "seconds": 1.5,
        "versions": {"torch": "x"}, "facts": {"steps": [0.1, 0.2], "data": "made up"},
        "figures": [{"file": "figures/one.png", "caption": "one"}], "rows": rows,
    }  # fmt: skip


def checkpoint(images: bool) -> dict[str, torch.Tensor]:
    """A small state dict of a published layout."""
    draw = torch.Generator().manual_seed(0)
    weights = {"stepsize": 0.01 + 0.05 * torch.rand(3, generator=draw)}
    for name, last in (("fwd_model", 1), ("bwd_model", 1)):
        end = (3, 3) if images else ()
        shapes: dict[str, tuple[int, ...]] = {f"wz.{i}.weight": (3, 3, *end) for i in range(2)}
        shapes |= {} if images else {"wz.2.weight": (1, 3)}
        for i in range(3 if images else 4):
            rows = 1 if i == 3 else 3
            shapes |= {f"wx_quad.{i}.weight": (rows, 1, *end), f"wx_lin.{i}.weight": (rows, 1, *end)}
            shapes |= {f"wx_lin.{i}.bias": (rows,)}
        if images:
            shapes["final_conv2d.weight"] = (last, 3, 3, 3)
        weights |= {f"{name}.{key}": torch.rand(shape, generator=draw) for key, shape in shapes.items()}
    return weights


@dataclass(frozen=True)
class Valid:
    """Where the valid files are, which every case copies what it damages from."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Valid:
        (folder / "pictures").mkdir()
        pictures(folder / "pictures")
        np.savez(folder / "images.npz", images=np.zeros((2, 3, 12, 12), dtype=np.uint8))
        torch.manual_seed(0)
        solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.ConvPair(1, 2, 1), 2)
        for name, made in {
            "dual": lmd.solvers.LearnedDual(2, 3),
            "saddle": lmd.solvers.LearnedSaddle(2, 3),
            "network": solver,
            "plain": lmd.solvers.PDHG(),
        }.items():
            lmd.solvers.save(made, folder / name)
        lmd.solvers.save(lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2), 3), folder / "quadratic")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            command_line(["train", "least-squares-quadratic-10", "--out", str(folder / "run")])
        (folder / "report" / "toy" / "figures").mkdir(parents=True)
        shutil.copy(folder / "pictures" / "grey.png", folder / "report" / "toy" / "figures" / "one.png")
        (folder / "report" / "toy" / "metrics.json").write_text(json.dumps(metrics()))
        return cls(folder)

    def copy(self, name: str, folder: Path, new: str | None = None) -> Path:
        source, target = self.folder / name, folder / (new or Path(name).name)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return target


# Cases.


class Cases:
    """What is tried, by kind."""

    def __init__(self, valid: Valid) -> None:
        self.valid = valid
        self.kinds: dict[str, Make] = {
            name.removeprefix("make_"): getattr(self, name) for name in dir(self) if name.startswith("make_")
        }

    def picture(self, draw: Random, folder: Path, new: str = "in") -> Path:
        name = draw.choice(sorted(path.name for path in (self.valid.folder / "pictures").iterdir()))
        return self.valid.copy(f"pictures/{name}", folder, new + Path(name).suffix)

    def make_solve_picture(self, draw: Random, folder: Path) -> list[str]:
        path = self.picture(draw, folder)
        damage_file(draw, path)
        solver = draw.choice(([], ["--solver", "pdhg", "--iterations", "2"]))
        return ["solve", "denoise", path.name, draw.choice(("out.png", "out.jpg", "out.tif")), *solver]

    def make_solve_header(self, draw: Random, folder: Path) -> list[str]:
        """Other sizes in the header of a PNG, whose checksum is right again, or in the tags of a TIFF."""
        path = self.valid.copy(draw.choice(("pictures/grey.png", "pictures/deep.png", "pictures/palette.png")), folder)
        data = bytearray(path.read_bytes())
        sizes = [draw.choice((0, 1, 13, 4000, 30_000, 60_000, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
        data[16:24] = struct.pack(">II", *sizes)
        if draw.random() < 0.5:
            data[24 + draw.randrange(5)] = draw.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
        import zlib

        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        path.write_bytes(data)
        return ["solve", "denoise", path.name, "out.png"]

    def make_solve_mask(self, draw: Random, folder: Path) -> list[str]:
        self.valid.copy("pictures/colour.png", folder, "in.png")
        if draw.random() < 0.3:
            Image.new("1", (draw.choice((1, 14, 9000)), draw.choice((1, 12, 20_000)))).save(folder / "mask.png")
        else:
            Image.fromarray(np.eye(12, 14, dtype=bool)).save(folder / "mask.png")
            damage_file(draw, folder / "mask.png")
        return ["solve", "inpaint", "in.png", "out.png", "--mask", "mask.png"]

    def make_solve_option(self, draw: Random, folder: Path) -> list[str]:
        self.valid.copy("pictures/grey.png", folder, "in.png")
        option = draw.choice(("weight", "tolerance", "iterations", "solver", "mask", "in", "out", "colour"))
        word = draw.choice(WORDS)
        files = [word if option == "in" else "in.png", word if option == "out" else "out.png"]
        if option == "out" and draw.random() < 0.5:
            files[1] = word + ".png"
        named = [] if option in ("in", "out") else [f"--{option}", word]
        if option == "iterations" and draw.random() < 0.5:
            named = ["--iterations", str(draw.choice(NUMBERS[4:]) * 10**6)]
        return ["solve", draw.choice(("denoise", "denoise", "inpaint")), *files, *named]

    def make_solver_json(self, draw: Random, folder: Path) -> list[str]:
        self.valid.copy("pictures/grey.png", folder, "in.png")
        path = self.valid.copy(draw.choice(("dual", "saddle", "network", "plain")), folder, "solver")
        description = read_json(path / "solver.json")  # without the checksum, which would end all of it
        part = "solver" if draw.random() < 0.8 else None
        changed = (
            {**description, part: damage_json(draw, description[part])} if part else damage_json(draw, description)
        )
        content = json.dumps(changed).encode("utf-8", "surrogatepass")
        (path / "solver.json").write_bytes(damage_bytes(draw, content) if draw.random() < 0.1 else content)
        return [
            "solve",
            "denoise",
            "in.png",
            "out.png",
            "--solver",
            "./solver",
            *draw.choice(([], ["--iterations", "3"])),
        ]

    def make_solver_weights(self, draw: Random, folder: Path) -> list[str]:
        """Other weights, with the hash that belongs to them."""
        self.valid.copy("pictures/grey.png", folder, "in.png")
        path = self.valid.copy(draw.choice(("dual", "saddle", "network")), folder, "solver")
        weights = lmd.core.files.read_tensors(path / "weights.safetensors")
        content = (path / "weights.safetensors").read_bytes()
        if draw.random() < 0.4:
            content = damage_bytes(draw, content)
        else:
            name = draw.choice(sorted(weights))
            weights[name] = damage_tensor(draw, weights[name])
            content = tensor_bytes({key: value.contiguous() for key, value in weights.items() if value is not None})
        (path / "weights.safetensors").write_bytes(content)
        description = read_json(path / "solver.json")  # without the checksum, which would end all of it
        description["weights_sha256"] = hashlib.sha256(content).hexdigest()
        (path / "solver.json").write_text(json.dumps(description))
        return ["solve", "denoise", "in.png", "out.png", "--solver", "./solver"]

    def make_import(self, draw: Random, folder: Path) -> list[str]:
        weights: Any = checkpoint(images=draw.random() < 0.5)
        way = draw.randrange(6)
        for _ in range(draw.choice((1, 1, 3))):
            name = draw.choice(sorted(weights))
            if way == 0:
                del weights[name]
            elif way == 1:
                weights[draw.choice((name, "x"))] = draw.choice(VALUES)
            elif way == 2:
                weights[name] = weights[name].flatten()[:1].expand(draw.choice((10**3, 10**9, 10**15)))
            elif way in (3, 4):
                weights[name] = damage_tensor(draw, weights[name])
            if not weights:
                break
        torch.save(weights, folder / "checkpoint", _use_new_zipfile_serialization=draw.random() < 0.7)
        if way == 5:
            damage_file(draw, folder / "checkpoint")
        return ["import", "checkpoint", "--out", draw.choice(("out", "out", "checkpoint", "x" * 300, "out/below"))]

    def make_check(self, draw: Random, folder: Path) -> list[str]:
        path = self.valid.copy("quadratic", folder, "solver")
        options = ["--iterations", "2", "--family", "least-squares-quadratic-10"]
        if draw.random() < 0.6:
            damage_file(draw, path / draw.choice(("solver.json", "weights.safetensors")))
        else:
            options[draw.choice((1, 3))] = draw.choice(WORDS)
            if draw.random() < 0.3:
                options = options[:2]
        name = "./solver" if draw.random() < 0.8 else draw.choice(WORDS)
        out = (
            "out" if draw.random() < 0.8 else draw.choice(("x" * 300, "solver/solver.json", "solver/solver.json/below"))
        )
        return ["check", name, *options, "--out", out]

    def make_check_family(self, draw: Random, folder: Path) -> list[str]:
        """A solver, as it is or with other arguments, on a family that it may not be for."""
        path = self.valid.copy(draw.choice(("quadratic", "quadratic", "dual", "network", "plain")), folder, "solver")
        if draw.random() < 0.7:
            description = read_json(path / "solver.json")  # without the checksum, which would end all of it
            description["solver"] = damage_json(draw, description["solver"])
            (path / "solver.json").write_bytes(json.dumps(description).encode("utf-8", "surrogatepass"))
        family = draw.choice(("least-squares-quadratic-10", "lasso-10"))
        return ["check", "./solver", "--iterations", "2", "--family", family, "--out", "out"]

    def make_report(self, draw: Random, folder: Path) -> list[str]:
        path = self.valid.copy("report", folder)
        file = path / "toy" / "metrics.json"
        way = draw.randrange(10)
        if way < 7:
            given = json.loads(file.read_text()) | {"experiment": draw.choice(("toy", "bench", *experiments.names()))}
            file.write_bytes(json_bytes(draw, given))
        elif way == 7:
            damage_file(draw, draw.choice((file, path / "toy" / "figures" / "one.png")))
        else:
            changed = json.loads(file.read_text())
            place = draw.choice(
                ("/etc/passwd", "../../secret", "../toy/../../secret", "link.png", "", ".", "\0", "x" * 300)
            )
            changed["figures"] = [{"file": place, "caption": ""}]
            (folder / "secret").write_text("secret")
            (path / "toy" / "link.png").symlink_to("/etc/passwd")
            file.write_text(json.dumps(changed))
        return ["report", draw.choice(("report", "report", "report", "report/toy", "report/toy/metrics.json"))]

    def make_run_folder(self, draw: Random, folder: Path) -> list[str]:
        path = self.valid.copy("run", folder)
        newest = max((path / "checkpoints").iterdir())
        for old in (path / "checkpoints").iterdir():
            if old.stem != newest.stem:
                old.unlink()
        file = draw.choice((*(newest.with_suffix(f".{end}") for end in ("json", "safetensors")), path / "log.jsonl"))
        if file.suffix == ".json" and draw.random() < 0.8:
            file.write_bytes(json_bytes(draw, json.loads(file.read_text())))
        else:
            damage_file(draw, file)
        return ["train", "least-squares-quadratic-10", "--out", "run", "--resume"]

    def make_images(self, draw: Random, folder: Path) -> list[str]:
        """Test images for an experiment that has none, so that those which are still valid end there."""
        way = draw.randrange(4)
        if way == 0:
            path = folder / "images"
            path.mkdir()
            damage_file(draw, self.picture(draw, path))
        elif way == 1:
            path = self.valid.copy("images.npz", folder)
            damage_file(draw, path)
        else:
            path = folder / "images.npz"
            path.write_bytes(odd_npz(draw))
        command = draw.choice((["reproduce", "simplex"], ["bench", "lasso", "--methods", "nope"]))
        return [*command, "--images", path.name]

    def make_digits(self, draw: Random, folder: Path) -> list[str]:
        """Files of MNIST or STL-10 that are none."""
        if draw.random() < 0.3:
            (folder / "train_X.bin").write_bytes(draw.randbytes(draw.randrange(5000)))
            return ["reproduce", "denoise", "--preset", "standard", "--data-dir", ".", "--out", "out"]
        shape = [draw.choice((0, 1, 60_000, 2**32 - 1)) for _ in range(draw.randrange(6))]
        content = b"\0\0" + bytes([draw.choice((8, 8, 8, 9, 0)), len(shape)])
        content += b"".join(struct.pack(">I", size) for size in shape) + draw.randbytes(draw.randrange(3000))
        suffix = draw.choice(("", ".gz"))
        content = gzip.compress(content) if suffix else content
        (folder / f"train-images-idx3-ubyte{suffix}").write_bytes(damage_bytes(draw, content))
        place = draw.choice((".", ".", "nowhere", "x" * 300))
        return ["reproduce", "svm", "--preset", "standard", "--data-dir", place, "--out", "out"]

    def make_long(self, draw: Random, folder: Path) -> list[str]:
        """Commands that would take long, with one thing in them that is certainly wrong."""
        (folder / "file").write_text("mine")
        start = draw.choice((["demo"], ["reproduce", "simplex"], ["reproduce", "all"], ["train", "svm-quadratic-10"]))
        wrong = {
            "seed": ("-1", "9" * 23, "nan", "", "1.5", "2**3", str(2**32), "\u0663x"),
            "out": ("file", "file/below", "x" * 300, "x" * 200 + "/" + "y" * 300, "a\nb/" + "x" * 300),
            "colour": ("red",),
        }
        if start[0] != "demo":
            wrong["preset"] = tuple(word for word in WORDS if word != "--")
        if start[0] == "reproduce":
            wrong["images"] = wrong["data-dir"] = ("file", "nowhere", "x" * 300)
        option = draw.choice(sorted(wrong))
        if draw.random() < 0.2:
            return [draw.choice(("reproduce", "train", "demo")), draw.choice(WORDS[:4]), *start, "--out", "out"]
        return [*start, f"--{option}", draw.choice(wrong[option])]

    def make_bench(self, draw: Random, folder: Path) -> list[str]:
        (folder / "file").write_text("mine")
        wrong = {
            "json": (".", "file/below", "x" * 300, ""),
            "out": ("file", "file/below", "x" * 300),
            "images": ("nowhere", "file", "", "x" * 300),
            "count": ("-1", "0", "nan", "9" * 20, ""),
            "noise": ("-5", "nan", "101", "5,-5", "", "7", "9" * 30, "inf"),
            "sizes": ("0", "-1", "9" * 20, "", "8,", "1.5", "100000"),
            "methods": ("nope", "", "pdhg,", "pdgh", "x" * 300),
            "seed": ("-1", "9" * 23),
            "repeats": ("0", "-1", "9" * 20, "x"),
        }
        option = draw.choice(("name", *wrong))
        if option == "name":
            return ["bench", "--quick", draw.choice([word for word in WORDS if word != "--"])]
        return ["bench", "--quick", draw.choice(("lasso", "denoise")), f"--{option}", draw.choice(wrong[option])]

    def make_words(self, draw: Random, folder: Path) -> list[str]:
        """Quick commands with words that do not belong there."""
        start = draw.choice(("list", "data", "data list", "data fetch", "report", "import", "check", "solve", ""))
        known = ("--json", "--out", "--seed", "-h", "--version")
        return [*start.split(), *(draw.choice((*WORDS, *known)) for _ in range(draw.randrange(1, 4)))]


def damage_tensor(draw: Random, tensor: torch.Tensor) -> Any:
    """Another dtype, shape or number."""
    way = draw.randrange(6) if tensor.ndim else 0
    if way == 0:
        return tensor.to(draw.choice((torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float64)))
    if way == 1:
        return tensor.flatten()
    if way == 2:
        return torch.stack([tensor, tensor])
    if way == 3:
        return tensor[:0]
    changed = tensor.clone()
    changed.flatten()[draw.randrange(max(1, tensor.numel()))] = draw.choice(
        (float("nan"), float("inf"), -1e30, 1e38, 0.0)
    )
    return changed if tensor.ndim else tensor[None]


def odd_npz(draw: Random) -> bytes:
    """An .npz whose array says one thing and holds another."""
    shapes = ("(10**18,)", "(1000000000, 3, 1000, 1000)", "(1, 3, 20000, 20000)", "(-1, 3, 4, 4)", "(2, 3, 4, 4)")
    shape, order = draw.choice((*shapes, "()", "(2L, 3, 4, 4)", "x", "(" * 300)), draw.choice(("False", "True", "1"))
    dtype = draw.choice(("|u1", "|u1", "<f8", "|O", "|V10", "x", "|S0"))
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    version = draw.choice(((1, 0), (2, 0), (3, 0), (9, 9)))
    length = struct.pack("<H", len(header)) if version == (1, 0) else struct.pack("<I", len(header))
    content = b"\x93NUMPY" + bytes(version) + length + header + draw.randbytes(draw.choice((0, 10, 96)))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        file.writestr(draw.choice(("images.npy", "images.npy", "images.npy", "images", "other.npy")), content)
    return packed.getvalue()


# Running them.


@dataclass(frozen=True)
class Outcome:
    """What became of a case; `wrong` is empty where all is well."""

    code: int
    wrong: str
    said: str


def files_of(folder: Path) -> dict[str, str]:
    """Every file under a folder by what is in it; folders do not count, unless they are hidden."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or path.is_fifo():
            found[name] = "link"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name.startswith("."):
            found[name] = "folder"
    return found


def attempt(arguments: list[str], folder: Path, captured: Path) -> Outcome:
    """Run the command line in a fork, inside `folder`."""
    before = files_of(folder)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os._exit(in_child(arguments, folder, captured))
    _, status, usage = os.wait4(child, 0)
    out, err = ((captured / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err"))
    code = os.waitstatus_to_exitcode(status)
    grown = usage.ru_maxrss * 1024 - resident()
    left = {name for name, content in files_of(folder).items() if before.get(name) != content}
    gone = before.keys() - files_of(folder).keys()
    wrong = ""
    if code == -signal.SIGALRM:
        wrong = f"more than {SECONDS} seconds"
    elif "Traceback" in out + err or "internal error" in err:
        wrong = "an internal error"
    elif grown > GIGABYTE:
        wrong = f"{grown / GIGABYTE:.1f} GB of memory"
    elif code == 2 and (err.count("\n") != 1 or not err.startswith("lmd: ")):
        wrong = "not one line"
    elif code == 2 and (left or gone):
        wrong = f"left {sorted(left)}, took {sorted(gone)}"
    elif any(".part" in name for name in left):
        wrong = "left something half-written"
    elif code == 0 and err:
        wrong = "exit code 0, but something on stderr"
    elif code not in (0, 2) and not (code == 1 and arguments[0] == "check" and not err):
        wrong = f"exit code {code}"
    return Outcome(code, wrong, err.strip()[-600:])


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def in_child(arguments: list[str], folder: Path, captured: Path) -> int:
    """What the fork does; its answer is the exit code."""
    os.chdir(folder)
    for name, handle in (("out", 1), ("err", 2)):
        os.dup2(os.open(captured / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + 4 * GIGABYTE, used + 4 * GIGABYTE))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    try:
        command_line(arguments)
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    return 70


def run(inputs: int, seed: int, only: str | None, single: int | None, show: bool) -> int:
    """Try so many cases, print a table of counts and what went wrong; the answer is how many did."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        os.environ["LMD_CACHE"] = str(top / "cache")
        os.environ.pop("LMD_DATA", None)
        for name in ("valid", "captured"):
            (top / name).mkdir()
        cases = Cases(Valid.make(top / "valid"))
        chosen = [only] if only else list(cases.kinds)
        counts: Counter[tuple[str, str]] = Counter()
        failures = []
        for number in [single] if single is not None else range(inputs):
            kind, draw = chosen[number % len(chosen)], Random(f"{seed} {number}")
            folder = top / "case"
            folder.mkdir()
            arguments = cases.kinds[kind](draw, folder)
            begun = time.monotonic()
            outcome = attempt(arguments, folder, top / "captured")
            if show:
                seconds = f"{time.monotonic() - begun:5.1f} s"
                print(f"{seconds}, exit code {outcome.code}: {' '.join(arguments)!r:.100}: {outcome.said!r:.300}")
            shutil.rmtree(folder)
            counts[kind, "wrong" if outcome.wrong else f"exit code {outcome.code}"] += 1
            if outcome.wrong:
                said = f"{kind}: {outcome.wrong}\n  {' '.join(arguments)!r:.160}\n  {outcome.said[-400:]}"
                failures.append(f"--seed {seed}{f' --only {only}' if only else ''} --case {number}: {said}")
    columns = ("exit code 2", "exit code 0", "exit code 1", "wrong")
    print(f"{'':16}" + "".join(f"{column:>14}" for column in columns))
    for kind in chosen:
        print(f"{kind:16}" + "".join(f"{counts[kind, column]:14d}" for column in columns))
    print(*failures, sep="\n")
    print(f"{sum(counts.values())} inputs, {len(failures)} wrong")
    return len(failures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one kind of input")
    parser.add_argument("--case", type=int, help="the number of a single case, to see it again")
    parser.add_argument("--show", action="store_true", help="print what every case said")
    given = parser.parse_args()
    sys.exit(bool(run(given.inputs, given.seed, given.only, given.case, given.show)))
