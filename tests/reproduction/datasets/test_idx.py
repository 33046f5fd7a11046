import gzip

import numpy as np
import pytest

from lmd.errors import FileError
from lmd.reproduction.datasets.files import parse_idx, read_bytes


def read_idx(path):
    return parse_idx(read_bytes(path), path)


@pytest.mark.parametrize("shape", [(7,), (2, 3), (4, 28, 28)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_array_comes_back(tmp_path, as_idx, shape, suffix):
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path / f"file{suffix}"
    path.write_bytes(gzip.compress(as_idx(array)) if suffix else as_idx(array))
    assert np.array_equal(read_idx(path), array)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "which does not start as one, expected an IDX file of unsigned bytes"),
        (b"<html>not found</html>", "which does not start as one"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00", "which does not start as one"),
        (b"\x00\x00\x08\x00", "which does not start as one"),
        (b"\x00\x00\x08\x03\x00\x00\x00\x02", "truncated inside its header"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03ab", r"truncated, expected 3 entries .* shape \(3,\) says, not 2"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03abcd", "too long, expected 3 entries"),
    ],
    ids=["empty", "html", "floats", "no-dimensions", "header", "short", "long"],
)
def test_what_is_no_idx_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "suspect-idx"
    path.write_bytes(content)
    with pytest.raises(FileError, match=f"suspect-idx, {words}") as caught:
        read_idx(path)
    assert "\n" not in str(caught.value)


def test_a_packed_file_that_is_cut_or_changed_is_refused_by_name(tmp_path, as_idx):
    path = tmp_path / "suspect.gz"
    whole = gzip.compress(as_idx(np.arange(200)))
    changed = bytearray(whole)
    changed[-30] ^= 0xFF
    for content in (whole[:-20], b"plain", bytes(changed)):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"suspect\.gz, damaged or truncated .* expected a gzip file"):
            read_idx(path)


def test_no_file(tmp_path):
    with pytest.raises(FileError, match=r"no file .*absent, expected an existing IDX file"):
        read_idx(tmp_path / "absent")
    with pytest.raises(FileError, match="expected a readable IDX file"):
        read_idx(tmp_path)
