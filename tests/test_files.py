import hashlib
import json
import math

import pytest
import torch

from lmd import files
from lmd.errors import FileError, InputError


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


class TestWritableFolder:
    def test_made_where_needed_and_left_clean(self, tmp_path):
        folder = files.writable_folder("out", tmp_path / "a" / "b")
        assert folder.is_dir() and names_in(folder) == []
        assert files.writable_folder("out", str(folder)) == folder

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "file").write_text("kept")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(FileError, match=r"^out: got .*file.*, where a file is in the way, expected a folder$"):
                files.writable_folder("out", path)
        assert (tmp_path / "file").read_text() == "kept"

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        with pytest.raises(FileError, match=r"^out: got .* \(.+\), expected a folder that can be written to$"):
            files.writable_folder("out", tmp_path / ("n" * 300))


class TestAtomicWriting:
    def test_nothing_is_seen_before_the_end_and_nothing_is_left_beside(self, tmp_path):
        path = tmp_path / "new" / "text.txt"
        with files.atomic_path(path) as temporary:
            temporary.write_text("all of it")
            assert not path.exists()
        assert path.read_text() == "all of it" and names_in(path.parent) == ["text.txt"]

    def test_a_reader_of_the_old_file_sees_all_of_it(self, tmp_path):
        files.write_text(tmp_path / "text.txt", "all of the old")
        with open(tmp_path / "text.txt") as reader:
            files.write_text(tmp_path / "text.txt", "new")
            assert reader.read() == "all of the old"
        assert (tmp_path / "text.txt").read_text() == "new"

    def test_a_failure_half_way_keeps_the_old_file(self, tmp_path):
        path = tmp_path / "text.txt"
        files.write_text(path, "old")

        def fail_half_way():
            with files.atomic_path(path) as temporary:
                temporary.write_text("ne")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail_half_way()
        assert path.read_text() == "old" and names_in(tmp_path) == ["text.txt"]

    @pytest.mark.parametrize("write", [files.write_text, files.write_json])
    def test_a_file_that_cannot_be_written(self, write, tmp_path):
        (tmp_path / "file").write_text("kept")
        with pytest.raises(FileError, match=r"^file: got .*below \(.+\), expected a file that can be written$"):
            write(tmp_path / "file" / "below", "text")
        (tmp_path / "folder").mkdir()
        with pytest.raises(FileError, match=r"^file: got .*folder \(.+\), expected a file that can be written$"):
            write(tmp_path / "folder", "text")
        assert names_in(tmp_path) == ["file", "folder"]


class TestJson:
    def test_there_and_back(self, tmp_path):
        data = {"name": "größe", "rows": [1, 2.5, None, True], "nested": {"a": []}}
        files.write_json(tmp_path / "data.json", data)
        assert files.read_json(tmp_path / "data.json") == data

    @pytest.mark.parametrize("data", [math.nan, [math.inf], {"a": torch.zeros(1)}, {1, 2}])
    def test_what_json_cannot_hold_leaves_the_old_file(self, data, tmp_path):
        path = tmp_path / "data.json"
        files.write_json(path, "old")
        with pytest.raises(InputError, match=r"^data: got what JSON cannot hold") as caught:
            files.write_json(path, data)
        assert "\n" not in str(caught.value)
        assert files.read_json(path) == "old" and names_in(tmp_path) == ["data.json"]

    @pytest.mark.parametrize(
        "content",
        [b"", b'{"a": 1', b"\xff\xfe{}", b"[" * 100_000, b"{} {}"],
        ids=["empty", "half", "no text", "deep", "two"],
    )
    def test_a_damaged_file(self, content, tmp_path):
        (tmp_path / "data.json").write_bytes(content)
        with pytest.raises(
            FileError, match=r"^file: got .*data\.json, damaged or half-written \(.*\), expected"
        ) as error:
            files.read_json(tmp_path / "data.json")
        assert "\n" not in str(error.value)

    def test_no_file_and_a_folder(self, tmp_path):
        with pytest.raises(FileError, match=r"^file: got no file .*none\.json"):
            files.read_json(tmp_path / "none.json")
        with pytest.raises(FileError, match=r"^file: got .* \(Is a directory\)"):
            files.read_json(tmp_path)


class TestTensors:
    def test_there_and_back(self, tmp_path):
        base = torch.arange(6.0).reshape(2, 3)
        tensors = {
            "plain": base,
            "transposed": base.T,
            "shared": base[1:],
            "scalar": torch.tensor(2.5, dtype=torch.float64),
            "counts": torch.tensor([1, 2]),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        }
        files.write_tensors(tmp_path / "t.safetensors", tensors)
        again = files.read_tensors(tmp_path / "t.safetensors")
        assert again.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert again[name].dtype == tensor.dtype and torch.equal(again[name], tensor.detach())

    def test_every_cut_of_a_file_is_recognised(self, tmp_path):
        path = tmp_path / "t.safetensors"
        files.write_tensors(path, {"a": torch.arange(4.0)})
        whole = path.read_bytes()
        for size in (0, 4, 8, 20, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(FileError, match=r"^file: got .*t\.safetensors, damaged or half-written") as error:
                files.read_tensors(path)
            assert "\n" not in str(error.value)

    def test_no_file(self, tmp_path):
        for path in (tmp_path / "none", tmp_path):
            with pytest.raises(FileError, match=r"^file: got no file"):
                files.read_tensors(path)

    def test_a_pickle_is_refused(self, tmp_path):
        torch.save({"a": torch.zeros(2)}, tmp_path / "t.pt")
        with pytest.raises(FileError, match=r"expected a safetensors file"):
            files.read_tensors(tmp_path / "t.pt")


def test_sha256_of_a_file_longer_than_a_block(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(content)
    assert files.sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_json_text_is_readable():
    assert json.loads(files.json_text("data", {"a": [1]})) == {"a": [1]}
    assert files.json_text("data", {"a": 1}) == '{\n "a": 1\n}\n'
