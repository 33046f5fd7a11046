import gzip

import numpy as np
import pytest
import torch

from lmd.errors import FileError, InputError
from lmd.reproduction.datasets.digits import digits_data


def test_the_digits_that_ship():
    data = digits_data("digits")
    assert data.name == "digits"
    assert data.train_images.shape == (1200, 8, 8) and data.test_images.shape == (597, 8, 8)
    assert data.train_images.dtype == torch.float32 and data.train_labels.dtype == torch.int64
    assert (float(data.train_images.min()), float(data.train_images.max())) == (0.0, 1.0)
    for labels in (data.train_labels, data.test_labels):
        assert torch.bincount(labels).min() > 50 and len(torch.bincount(labels)) == 10
    # The first image of the collection is a 0, and its sixth grey level of 16 is where it always was.
    assert int(data.train_labels[0]) == 0 and float(data.train_images[0, 0, 2]) == 5 / 16


def test_fingerprints_tell_data_apart():
    data, again = digits_data("digits"), digits_data("digits")
    assert data.fingerprint() == again.fingerprint()
    again.test_labels[0] += 1
    assert data.fingerprint() != again.fingerprint()


def test_mnist_is_found_wherever_it_may_lie(tiny_mnist, own_cache, monkeypatch):
    expected = digits_data("mnist", tiny_mnist)
    assert expected.name == "mnist"
    assert expected.train_images.shape == (20, 28, 28) and expected.test_labels.shape == (10,)
    assert 0.9 < float(expected.train_images.max()) <= 1
    assert digits_data("auto").name == "digits"
    assert digits_data("auto", tiny_mnist.parent).fingerprint() == expected.fingerprint()
    monkeypatch.setenv("LMD_DATA", str(tiny_mnist.parent))
    assert digits_data().fingerprint() == expected.fingerprint()
    monkeypatch.delenv("LMD_DATA")
    own_cache.mkdir()
    tiny_mnist.rename(own_cache / "mnist")
    assert digits_data("mnist").fingerprint() == expected.fingerprint()


def test_without_mnist(tmp_path, monkeypatch):
    assert digits_data("auto", tmp_path).name == "digits"
    with pytest.raises(
        FileError, match=r"^MNIST: got no MNIST in LMD_DATA or the cache, expected .*lmd data fetch mnist"
    ):
        digits_data("mnist")
    with pytest.raises(FileError, match=f"^MNIST: got no MNIST in {tmp_path}"):
        digits_data("mnist", tmp_path)
    with pytest.raises(FileError, match=r"^data_dir: got .*/nowhere, which is not a folder"):
        digits_data("auto", tmp_path / "nowhere")
    monkeypatch.setenv("LMD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match=r"^LMD_DATA: got .*/nowhere, which is not a folder"):
        digits_data("auto")
    with pytest.raises(InputError, match=r"name: got 'minst', expected one of .*did you mean mnist"):
        digits_data("minst")


class TestFilesThatAreNotWhatTheirNamesSay:
    def refused(self, folder, words):
        with pytest.raises(FileError, match=words) as caught:
            digits_data("auto", folder)
        assert "\n" not in str(caught.value)

    def test_one_is_missing(self, tiny_mnist):
        (tiny_mnist / "t10k-images-idx3-ubyte").unlink()
        self.refused(tiny_mnist, r"without t10k-images-idx3-ubyte\[.gz\], expected all four files")

    def test_images_where_labels_belong(self, tiny_mnist):
        images = (tiny_mnist / "train-images-idx3-ubyte.gz").read_bytes()
        (tiny_mnist / "train-labels-idx1-ubyte.gz").write_bytes(images)
        self.refused(tiny_mnist, r"train-labels-idx1-ubyte.gz, of shape \(20, 28, 28\), expected shape \(20,\)")

    def test_the_train_fold_where_the_test_fold_belongs(self, tiny_mnist):
        labels = (tiny_mnist / "train-labels-idx1-ubyte.gz").read_bytes()
        (tiny_mnist / "t10k-labels-idx1-ubyte").write_bytes(gzip.decompress(labels))
        self.refused(tiny_mnist, r"t10k-labels-idx1-ubyte, of shape \(20,\), expected shape \(10,\)")

    def test_numbers_of_another_shape(self, tiny_mnist, as_idx):
        (tiny_mnist / "t10k-labels-idx1-ubyte").write_bytes(as_idx(np.zeros((5, 2))))
        self.refused(tiny_mnist, r"of shape \(5, 2\), expected shape \(10,\)")

    def test_truncated(self, tiny_mnist):
        path = tiny_mnist / "t10k-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        self.refused(tiny_mnist, r"t10k-images-idx3-ubyte, truncated")

    def test_one_flipped_bit(self, tiny_mnist):
        path = tiny_mnist / "t10k-labels-idx1-ubyte"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        self.refused(tiny_mnist, r"t10k-labels-idx1-ubyte, the right shape with other content")


def test_the_real_mnist(real_mnist):
    data = digits_data("auto", real_mnist)
    assert data.name == "mnist"
    assert torch.bincount(data.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(data.test_labels)[[4, 9]].tolist() == [982, 1009]
    assert float(data.train_images.mean()) == pytest.approx(0.1307, abs=1e-4)
