"""Read and write files safely: no reader sees a half-written file, and no loaded file can run code."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmd.errors import FileError, InputError

if TYPE_CHECKING:
    from torch import Tensor


def cache_folder() -> Path:
    """Return the folder in LMD_CACHE, or the platform's cache folder if it is not set; the folder may not exist yet."""
    if named := os.environ.get("LMD_CACHE"):
        return Path(named).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("lmd", appauthor=False)


def writable_folder(argument: str, path: str | Path) -> Path:
    """Create the folder `path` if needed and return it; raise if files cannot be written there."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (FileExistsError, NotADirectoryError):
        raise FileError(argument, f"{folder}, where a file is in the way", "a folder") from None
    except (OSError, ValueError) as error:
        raise FileError(argument, f"{folder} ({_reason(error)})", "a folder that can be written to") from None
    return folder


def check_current_folder() -> None:
    """Raise if the current folder was deleted, because PyTorch's linear algebra would then end the process."""
    try:
        os.getcwd()
    except OSError as error:
        raise FileError("current folder", f"one that is gone ({_reason(error)})", "one that exists; use cd") from None


def writable_name(argument: str, path: str | Path) -> Path:
    """Return `path` if a file with that name can be written to an existing folder; otherwise raise."""
    path = Path(path)
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat(path)
        folder, placed = path.is_dir() or not path.name, path.parent.is_dir()
        special = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:
        raise FileError(argument, f"{path} ({_reason(error)})", "a name that a file can have") from None
    if folder or special:
        raise FileError(argument, f"{path}, which is {'a folder' if folder else 'no plain file'}", "the name of a file")
    if not placed:
        raise FileError(argument, f"{path}, in a folder that does not exist", "a name in an existing folder")
    if not os.access(path.parent, os.W_OK):
        raise FileError(argument, f"{path}, in a folder that is read-only", "a name in a folder that can be written to")
    return path


def _reason(error: Exception) -> str:
    """Return the system's message for an error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def inside(argument: str, folder: Path, path: Path) -> Path:
    """Return `path` if it lies in `folder` after resolving `..` and links; otherwise raise."""
    try:
        stays = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that no file can have
        stays = False
    if not stays:
        raise FileError(argument, f"{path}, which leads elsewhere", f"a file in {folder}")
    return path


class FolderLock:
    """A lock that gives one process exclusive use of a folder, until `release` or the end of the process.

    The operating system holds the lock, so a killed process leaves no lock behind. There is no lock on file systems
    without locks, nor on Windows, where folders cannot be opened.
    """

    def __init__(self, argument: str, folder: Path) -> None:
        self._handle: int | None = None
        if sys.platform == "win32":
            return
        import fcntl

        with writing(folder):
            self._handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self.release()
            accepted = "one that no other run is in, or to wait until that has ended"
            raise FileError(argument, f"{folder}, which another run works in", accepted) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
                raise

    def release(self) -> None:
        """Give up the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@contextmanager
def staged(argument: str, final: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `final`. If the block succeeds, its files move to `final`; otherwise, delete them.

    metrics.json is moved last. Other files in `final` stay unchanged.
    """
    parent = writable_folder(argument, final.parent)
    if final.exists() and not final.is_dir():
        raise FileError(argument, f"{final}, where a file is in the way", "a folder or nothing there")
    staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=parent))
    try:
        yield staging
        files = sorted(path.relative_to(staging) for path in staging.rglob("*") if path.is_file())
        for file in sorted(files, key=lambda path: path.name == "metrics.json"):
            (final / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / file, final / file)
    except OSError as error:
        raise FileError(argument, f"{final} ({_reason(error)})", "a folder that can be written to") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn any OSError in this block, such as a full disk, into a `FileError` of one line."""
    try:
        yield
    except OSError as error:
        raise FileError("file", f"{path} ({_reason(error)})", "a file that can be written") from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`. If the block succeeds, rename it to `path`; otherwise, delete it."""
    temporary = path.with_name(f".{os.getpid()}-{threading.get_ident():x}.part{path.suffix[:8]}")  # not too long
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            with open(temporary, "r+b") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all; characters that UTF-8 cannot encode are written as \\udXXX."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def json_text(argument: str, data: Any) -> str:
    """Return `data` as indented JSON; raise for NaN, infinity and other values that JSON cannot hold."""
    try:
        return json.dumps(data, indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        accepted = "text, finite numbers, true, false, null, and lists and objects of them"
        raise InputError(argument, f"what JSON cannot hold ({error})", accepted) from None


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, whole or not at all."""
    write_text(path, json_text("data", data))


CHECKSUM = "checksum"  # key in a JSON object of the checksum of its other entries


def with_checksum(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with a checksum, so that `read_json` notices changes on disk."""
    return {**data, CHECKSUM: _checksum(json.loads(json_text("data", data)))}


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, *, checked: bool = False) -> Any:
    """Return the JSON in `path`; verify and remove its checksum. If `checked` is true, raise if it has none."""
    try:
        if stat.S_IFMT(path.stat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # pipes and devices may never end
            raise FileError("file", f"{path}, which is no plain file", "a JSON file")
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_json)
    except FileError:
        raise
    except FileNotFoundError:
        raise FileError("file", f"no file {path}", "an existing JSON file") from None
    except OSError as error:
        raise FileError("file", f"{path} ({_reason(error)})", "a readable JSON file") from None
    except (ValueError, RecursionError) as error:
        raise FileError("file", f"{path}, damaged or half-written ({error})", "a JSON file") from None
    if isinstance(found, dict) and CHECKSUM in found:
        expected = found.pop(CHECKSUM)
        if _checksum(found) != expected:
            raise FileError("file", f"{path}, damaged: its checksum is that of something else", "it as lmd wrote it")
    elif checked:
        raise FileError("file", f"{path}, which has no checksum", "it as lmd wrote it")
    return found


def _no_json(word: str) -> None:
    raise ValueError(f"{word}, which JSON does not have")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors as safetensors, whole or not at all."""
    from safetensors.torch import save

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save(copies)  # raises if tensors share memory, hence the copies
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def read_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """Return the named tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not path.is_file():
        raise FileError("file", f"no file {path}", "an existing safetensors file")
    try:  # Python reads the bytes, because safetensors cannot open names that are not valid Unicode
        return {name: tensor.to(device) for name, tensor in load(path.read_bytes()).items()}
    except (SafetensorError, OSError, KeyError) as error:
        raise FileError("file", f"{path}, damaged or half-written ({error})", "a safetensors file") from None


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
