"""Reading and writing files so that nothing half-written is ever seen and nothing that is loaded can run code."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmd.errors import FileError, InputError

if TYPE_CHECKING:
    from torch import Tensor


def cache_folder() -> Path:
    """The folder LMD_CACHE names, or else the platform's own place for caches (XDG_CACHE_HOME counts on Linux).

    It is not created by asking for it.
    """
    if named := os.environ.get("LMD_CACHE"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("lmd", appauthor=False)


def writable_folder(argument: str, path: str | Path) -> Path:
    """Create `path` where needed and return it, if files can be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError):
        raise FileError(argument, f"{folder}, where a file is in the way", "a folder") from None
    except OSError as error:
        raise FileError(argument, f"{folder} ({error.strerror})", "a folder that can be written to") from None
    return folder


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; it becomes `path` when the block ends well and vanishes otherwise."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "r+b") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise FileError("file", f"{path} ({error.strerror})", "a file that can be written") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_text(argument: str, data: Any) -> str:
    """`data` as readable JSON; a NaN is an error here, not a surprise for the reader."""
    try:
        return json.dumps(data, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        accepted = "text, finite numbers, true, false, null, and lists and objects of them"
        raise InputError(argument, f"what JSON cannot hold ({error})", accepted) from None


def write_json(path: Path, data: Any) -> None:
    """Write `data` as readable JSON, whole or not at all."""
    write_text(path, json_text("data", data))


def read_json(path: Path) -> Any:
    """The JSON in `path`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError("file", f"no file {path}", "an existing JSON file") from None
    except OSError as error:
        raise FileError("file", f"{path} ({error.strerror})", "a readable JSON file") from None
    except (ValueError, RecursionError) as error:
        raise FileError("file", f"{path}, damaged or half-written ({error})", "a JSON file") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, whole or not at all."""
    from safetensors.torch import save

    # Copies, since safetensors refuses tensors that share memory.
    data = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def read_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The named tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileError("file", f"no file {path}", "an existing safetensors file")
    try:
        return load_file(path, device=device)
    except (SafetensorError, OSError) as error:
        raise FileError("file", f"{path}, damaged or half-written ({error})", "a safetensors file") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
