"""Handwritten digits, MNIST or those that ship with scikit-learn, and fifty features of each image."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count
from lmd.core.extras import require
from lmd.core.files import cache_folder, read_tensors, write_tensors
from lmd.core.progress import ProgressBar
from lmd.errors import FileError
from lmd.reproduction.datasets.files import download, find_folder, parse_idx, read_bytes

MNIST_SOURCES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class _Part:
    """One of the four files: its shape, and the SHA-256 of the packed and of the unpacked file."""

    name: str
    shape: tuple[int, ...]
    packed: str
    unpacked: str


MNIST_PARTS = (
    _Part(
        "train-images-idx3-ubyte",
        (60000, 28, 28),
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    _Part(
        "train-labels-idx1-ubyte",
        (60000,),
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    _Part(
        "t10k-images-idx3-ubyte",
        (10000, 28, 28),
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    _Part(
        "t10k-labels-idx1-ubyte",
        (10000,),
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)


def fetch_mnist() -> Path:
    """Download MNIST (11 MB) to the cache, unless it is there, and return the folder."""
    folder = cache_folder() / "mnist"
    download({f"{part.name}.gz": part.packed for part in MNIST_PARTS}, MNIST_SOURCES, folder)
    return folder


def find_mnist(data_dir: str | Path | None = None) -> Path | None:
    """The folder with MNIST's files, or None.

    It is looked for in `data_dir` if given, else in LMD_DATA and then in the cache; in each of them, first in the
    subfolder `mnist`. A folder with only some of the four files counts; `read_mnist` names the missing one.
    """
    return find_folder(data_dir, _holder)


def _holder(folder: Path) -> Path | None:
    places = (folder / "mnist", folder)
    return next((place for place in places if any(_file(place, part) for part in MNIST_PARTS)), None)


def _file(folder: Path, part: _Part) -> Path | None:
    paths = (folder / part.name, folder / f"{part.name}.gz")
    return next((path for path in paths if path.is_file()), None)


def read_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return train images, train labels, test images, test labels, as unsigned bytes, after checking their SHA-256."""
    images, labels, test_images, test_labels = (_read_part(folder, part) for part in MNIST_PARTS)
    return images, labels, test_images, test_labels


def _read_part(folder: Path, part: _Part) -> np.ndarray:
    path = _file(folder, part)
    if path is None:
        raise FileError(
            "MNIST", f"{folder} without {part.name}[.gz]", "all four files; `lmd data fetch mnist` gets them"
        )
    content = read_bytes(path)
    array = parse_idx(content, path)
    if array.shape != part.shape:
        raise FileError("MNIST", f"{path}, of shape {array.shape}", f"shape {part.shape} in a file of that name")
    if hashlib.sha256(content).hexdigest() != part.unpacked:
        accepted = f"the genuine file, whose content has SHA-256 {part.unpacked[:12]}..."
        raise FileError("MNIST", f"{path}, the right shape with other content", accepted)
    return array


DIGIT_DATA = ("mnist", "digits")

DIGITS_TRAIN = 1200
"""The train fold is this many of scikit-learn's 1797 digits, the first ones. Digits are sorted by writer, so the last
ones were mostly written by other people; a random split would put every writer into both folds."""


@dataclass(frozen=True)
class DigitData:
    """Images in [0, 1] `(n, H, W)`, float32, with their labels 0 to 9 `(n,)`, int64, in a train and a test fold."""

    name: str  # `mnist` or `digits`; stored with results
    train_images: Tensor  # `(n, H, W)`
    train_labels: Tensor  # `(n,)`
    test_images: Tensor  # `(n, H, W)`
    test_labels: Tensor  # `(n,)`

    def fingerprint(self) -> str:
        """The SHA-256 of name, shapes and every number: equal for equal data."""
        digest = hashlib.sha256(self.name.encode())
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def digits_data(name: str = "auto", data_dir: str | Path | None = None) -> DigitData:
    """Return the data called `name`: `mnist`, `digits`, or `auto`, which is `mnist` if available and else `digits`.

    MNIST is looked for in `data_dir`, or in LMD_DATA and the cache; nothing is downloaded.

    >>> data = digits_data("digits")
    >>> data.name, tuple(data.train_images.shape), tuple(data.test_images.shape)
    ('digits', (1200, 8, 8), (597, 8, 8))
    """
    check_choice("name", name, ("auto", *DIGIT_DATA))
    if name == "digits":
        return _bundled()
    folder = find_mnist(data_dir)
    if folder is not None:
        return _as_data("mnist", 255, *read_mnist(folder))
    if name == "auto":
        return _bundled()
    given = f"no MNIST in {data_dir}" if data_dir is not None else "no MNIST in LMD_DATA or the cache"
    raise FileError("MNIST", given, "its four IDX files, or those of `lmd data fetch mnist`, or the data `digits`")


def _bundled() -> DigitData:
    require("sklearn")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    train, test = ((images[part], labels[part]) for part in (slice(0, DIGITS_TRAIN), slice(DIGITS_TRAIN, None)))
    return _as_data("digits", 16, *train, *test)


def _as_data(name: str, white: int, *arrays: np.ndarray) -> DigitData:
    """Return the arrays as tensors, with images divided by `white`, the value of a white pixel."""
    images, labels, test_images, test_labels = arrays
    return DigitData(
        name,
        torch.from_numpy(images.astype(np.float32)) / white,
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(test_images.astype(np.float32)) / white,
        torch.from_numpy(test_labels.astype(np.int64)),
    )


FORMAT = 1
"""Part of every cache key; increase it when the network or its training changes beyond the settings."""

FEATURES = 50
CLASSES = 10
SHIPPED = Path(__file__).parent / "trained"
"""Networks that ship with the package, so that everybody has the features that the shipped solvers were trained on."""


@dataclass(frozen=True)
class Settings:
    """How the network is built and trained. The defaults are for MNIST; the 8 x 8 digits have smaller kernels."""

    kernel: int = 5
    padding: int = 0
    mean: float = 0.1307
    deviation: float = 0.3081
    dropout: float = 0.5
    epochs: int = 4
    batch: int = 128
    rate: float = 5e-3
    seed: int = 0


SETTINGS = {
    "mnist": Settings(),
    "digits": Settings(kernel=3, padding=1, mean=0.3053, deviation=0.3760, epochs=60, batch=64, rate=1e-2),
}


@dataclass(frozen=True)
class DigitFeatures:
    """Features `(n, 50)`, float32 and never negative, with their labels `(n,)`, in the folds of the data."""

    data_name: str  # the name of the data; stored with results
    train_features: Tensor  # `(n, 50)`
    train_labels: Tensor  # `(n,)`
    test_features: Tensor  # `(n, 50)`
    test_labels: Tensor  # `(n,)`
    accuracy: float  # the network's own accuracy on the test fold
    key: str  # the hash of data, network and training: equal keys, equal features


class FeatureNetwork(nn.Module):
    """The network of section 5.1: two convolutions and two linear layers; the features are the last hidden layer.

    conv(1, 10), max-pool 2, relu; conv(10, 20), dropout, max-pool 2, relu; linear to 50, relu = features; dropout,
    linear to 10.
    """

    def __init__(self, size: int, settings: Settings) -> None:
        super().__init__()
        kernel, padding = settings.kernel, settings.padding
        self.settings = settings
        self.first = nn.Conv2d(1, 10, kernel, padding=padding)
        self.second = nn.Conv2d(10, 20, kernel, padding=padding)
        left = size
        for _ in range(2):
            left = (left + 2 * padding - kernel + 1) // 2
        self.hidden = nn.Linear(20 * left * left, FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES)

    def features(self, images: Tensor) -> Tensor:
        """Return the features `(n, 50)` of images `(n, H, W)` in [0, 1]."""
        x = (images.unsqueeze(1) - self.settings.mean) / self.settings.deviation
        x = functional.relu(functional.max_pool2d(self.first(x), 2))
        x = functional.dropout2d(self.second(x), self.settings.dropout, self.training)
        x = functional.relu(functional.max_pool2d(x, 2))
        return functional.relu(self.hidden(x.flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores `(n, 10)` of images `(n, H, W)`."""
        return self.last(functional.dropout(self.features(images), self.settings.dropout, self.training))


def digit_features(data: DigitData, settings: Settings | None = None) -> DigitFeatures:
    """Features of all images of `data`, from a network trained on its train fold.

    The network and its features are cached under a hash of data and settings; networks for `SETTINGS` ship with lmd.
    """
    settings = settings or SETTINGS[check_choice("data", data.name, tuple(SETTINGS))]
    key = _key(data, settings)
    name = f"{data.name}-{key[:16]}.safetensors"
    kept = cache_folder() / "features" / name
    found = _cached_features(kept, data)
    if found is None:
        network = _shipped(name, data, settings) or train_network(data, settings)
        found = _with_features(network, data)
        try:
            write_tensors(kept, found)
        except FileError as error:  # this costs time, but is no reason to fail
            warnings.warn(f"features are not cached: {error}", stacklevel=2)
    scores = found["test_features"] @ found["last.weight"].T + found["last.bias"]
    return DigitFeatures(
        data.name,
        found["train_features"],
        data.train_labels,
        found["test_features"],
        data.test_labels,
        accuracy=float((scores.argmax(dim=1) == data.test_labels).double().mean()),
        key=key,
    )


def train_network(data: DigitData, settings: Settings) -> FeatureNetwork:
    """A network trained on the train fold by Adam with a one-cycle rate; the same seed gives the same network."""
    count = len(data.train_images)
    batches = -(-count // check_count("batch", settings.batch))
    total = check_count("epochs", settings.epochs) * batches
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), ProgressBar("training features", total) as bar:
        torch.manual_seed(settings.seed)
        network = FeatureNetwork(data.train_images.shape[-1], settings).to(data.train_images)
        optimiser = torch.optim.Adam(network.parameters(), lr=settings.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.rate, total_steps=total)
        for _ in range(settings.epochs):
            for chosen in torch.randperm(count).chunk(batches):
                loss = functional.cross_entropy(network(data.train_images[chosen]), data.train_labels[chosen])
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                schedule.step()
                bar.update(1)
    return network.eval()


def _key(data: DigitData, settings: Settings) -> str:
    what = {"format": FORMAT, "data": data.fingerprint(), **asdict(settings)}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _cached_features(path: Path, data: DigitData) -> dict[str, Tensor] | None:
    """Return the cached features of these data, or None if there are no usable ones."""
    try:
        found = read_tensors(path)
    except FileError:
        return None
    for fold, images in (("train_features", data.train_images), ("test_features", data.test_images)):
        if fold not in found or found[fold].shape != (len(images), FEATURES):
            return None
    return found


def _shipped(name: str, data: DigitData, settings: Settings) -> FeatureNetwork | None:
    path = SHIPPED / name
    if not path.is_file():
        return None
    network = FeatureNetwork(data.train_images.shape[-1], settings).to(data.train_images)
    network.load_state_dict(read_tensors(path))
    return network.eval()


@torch.no_grad()
def _with_features(network: FeatureNetwork, data: DigitData) -> dict[str, Tensor]:
    folds = {"train_features": data.train_images, "test_features": data.test_images}
    features = {
        fold: torch.cat([network.features(part) for part in torch.split(images, 1000)])
        for fold, images in folds.items()
    }
    return {**network.state_dict(), **features}
