import errno
import hashlib
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from lmd.core import files
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

    def test_text_that_utf8_cannot_hold(self, tmp_path):
        files.write_text(tmp_path / "text.txt", "a\ud800b")
        assert (tmp_path / "text.txt").read_text() == "a\\ud800b"

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
        [b"", b'{"a": 1', b"\xff\xfe{}", b"[" * 100_000, b"{} {}", b'{"a": NaN}', b"[-Infinity]"],
        ids=["empty", "half", "no text", "deep", "two", "not a number", "infinite"],
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

    def test_what_has_no_end(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("/dev/zero")
        for name in ("pipe", "link"):
            with pytest.raises(FileError, match=r"^file: got .*, which is no plain file, expected a JSON file"):
                files.read_json(tmp_path / name)


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


class TestWritableName:
    def test_a_name_in_a_folder_that_is_there(self, tmp_path):
        assert files.writable_name("out", tmp_path / "new.png") == tmp_path / "new.png"
        assert names_in(tmp_path) == []

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("", "which is a folder, expected the name of a file"),
            ("none/new.png", "in a folder that does not exist, expected a name in an existing folder"),
            ("n" * 300 + ".png", r"\(File name too long\), expected a name that a file can have"),
            ("/dev/null", "which is no plain file, expected the name of a file"),
            ("a\0b.png", r"\(embedded null byte\), expected a name that a file can have"),
        ],
    )
    def test_what_no_file_can_be_called(self, name, words, tmp_path):
        with pytest.raises(FileError, match=f"^out: got .*{words}$"):
            files.writable_name("out", tmp_path / name)


class TestInside:
    def test_a_file_that_stays_in_the_folder(self, tmp_path):
        (tmp_path / "file").write_text("in")
        (tmp_path / "link").symlink_to("file")
        for name in ("file", "link", "none", "folder/../file"):
            assert files.inside("figure", tmp_path, tmp_path / name) == tmp_path / name

    def test_a_file_elsewhere_by_any_way(self, tmp_path):
        (tmp_path / "secret").write_text("out")
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path / "secret")
        (folder / "loop").symlink_to("loop")
        (folder / "up").symlink_to("..")
        for name in (tmp_path / "secret", "../secret", "link", "up/secret", "loop", "\0"):
            with pytest.raises(FileError, match=r"^figure: got .*, which leads elsewhere, expected a file in "):
                files.inside("figure", folder, folder / name)


class TestStaged:
    def test_the_files_appear_together_and_others_stay(self, tmp_path):
        final = tmp_path / "new" / "bench"
        final.mkdir(parents=True)
        (final / "notes").write_text("mine")
        with files.staged("out", final) as folder:
            (folder / "figures").mkdir()
            (folder / "figures" / "one.png").write_text("a figure")
            (folder / "metrics.json").write_text("{}")
            assert names_in(final) == ["notes"]
        assert names_in(final) == ["figures", "metrics.json", "notes"] and names_in(tmp_path / "new") == ["bench"]
        assert (final / "figures" / "one.png").read_text() == "a figure"

    def test_the_metrics_come_last(self, tmp_path, monkeypatch):
        """Who reads metrics.json finds all that it names."""
        moved, replace = [], os.replace
        monkeypatch.setattr(os, "replace", lambda one, other: (moved.append(other.name), replace(one, other)))
        with files.staged("out", tmp_path / "bench") as folder:
            for name in ("a.png", "metrics.json", "z.jsonl"):
                (folder / name).write_text("")
        assert moved == ["a.png", "z.jsonl", "metrics.json"]

    def test_a_full_disk_leaves_nothing(self, tmp_path):
        def write_on_a_full_disk():
            with files.staged("out", tmp_path / "bench") as folder:
                (folder / "half").write_text("of it")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.raises(FileError, match=r"^out: got .*bench \(No space left on device\), expected a folder"):
            write_on_a_full_disk()
        assert names_in(tmp_path) == []


def test_the_name_of_a_temporary_file_is_never_too_long(tmp_path):
    files.write_text(tmp_path / ("n" * 250 + ".json"), "text")
    assert names_in(tmp_path) == ["n" * 250 + ".json"]


class TestFolderLock:
    def test_one_at_a_time(self, tmp_path):
        first = files.FolderLock("out", tmp_path)
        with pytest.raises(FileError, match=r"^out: got .*, which another run works in, expected one that no other"):
            files.FolderLock("out", tmp_path)
        first.release()
        assert names_in(tmp_path) == []
        files.FolderLock("out", tmp_path).release()

    def test_a_killed_process_leaves_no_lock(self, tmp_path):
        code = "import sys, time; from pathlib import Path; from lmd.core.files import FolderLock\n"
        code += "FolderLock('out', Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"locked\n"
            with pytest.raises(FileError, match="another run works in"):
                files.FolderLock("out", tmp_path)
            process.kill()
        files.FolderLock("out", tmp_path).release()
        assert names_in(tmp_path) == []

    def test_a_file_system_without_locks(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("fcntl.flock", refuse)
        files.FolderLock("out", tmp_path).release()
        assert names_in(tmp_path) == []


def test_a_changed_number_is_seen_by_the_checksum(tmp_path):
    files.write_json(tmp_path / "a.json", files.with_checksum({"number": 1.5, "words": ["a", None]}))
    assert files.read_json(tmp_path / "a.json") == {"number": 1.5, "words": ["a", None]}
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace("1.5", "1.7"))
    with pytest.raises(FileError, match=r"a\.json, damaged: its checksum is that of something else"):
        files.read_json(tmp_path / "a.json")


def test_tensors_in_a_folder_whose_name_is_no_text(tmp_path):
    folder = tmp_path / "\udcff\n"
    files.write_tensors(folder / "x.safetensors", {"x": torch.ones(2)})
    assert torch.equal(files.read_tensors(folder / "x.safetensors")["x"], torch.ones(2))
