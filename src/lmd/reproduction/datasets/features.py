"""Fifty features of each image, from the last hidden layer of a small network that is trained to tell digits apart."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_count
from lmd.core.files import cache_folder, read_tensors, write_tensors
from lmd.core.progress import LateBar
from lmd.errors import FileError, InputError
from lmd.reproduction.datasets.digits import DigitData

FORMAT = 1
"""Part of every cache key: raise it when the network or its training changes in a way that settings do not say."""

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

    data_name: str
    """Which data they are from. Results carry it."""

    train_features: Tensor
    """`(n, 50)`."""

    train_labels: Tensor
    """`(n,)`."""

    test_features: Tensor
    """`(n, 50)`."""

    test_labels: Tensor
    """`(n,)`."""

    accuracy: float
    """The network's own accuracy on the test fold."""

    key: str
    """The hash of data, network and training: equal keys, equal features."""


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
        """Images in [0, 1] `(n, H, W)` to features `(n, 50)`."""
        x = (images.unsqueeze(1) - self.settings.mean) / self.settings.deviation
        x = functional.relu(functional.max_pool2d(self.first(x), 2))
        x = functional.dropout2d(self.second(x), self.settings.dropout, self.training)
        x = functional.relu(functional.max_pool2d(x, 2))
        return functional.relu(self.hidden(x.flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        """Images to scores `(n, 10)`."""
        return self.last(functional.dropout(self.features(images), self.settings.dropout, self.training))


def digit_features(data: DigitData, *, settings: Settings | None = None, retrain: bool = False) -> DigitFeatures:
    """Features of all images of `data`, from a network trained on its train fold.

    The network and its features are cached under a hash of the data and the settings; the networks of the default
    settings ship with the package. `retrain` trains anew, about a minute on MNIST, and caches the outcome.

    Args:
        data: The images, in two folds.
        settings: Of the network and its training; None is the default for the data.
        retrain: Train anew.
    """
    settings = _settings_for(data) if settings is None else settings
    key = _key(data, settings)
    name = f"{data.name}-{key[:16]}.safetensors"
    kept = cache_folder() / "features" / name
    found = None if retrain else _cached(kept, data)
    if found is None:
        network = None if retrain else _shipped(name, data, settings)
        found = _with_features(network or train_network(data, settings), data)
        _keep(kept, found)
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
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), LateBar("training features", total) as bar:
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


def _settings_for(data: DigitData) -> Settings:
    if data.name not in SETTINGS:
        raise InputError("data", repr(data.name), f"one of {', '.join(SETTINGS)}, or data with settings of their own")
    return SETTINGS[data.name]


def _key(data: DigitData, settings: Settings) -> str:
    what = {"format": FORMAT, "data": data.fingerprint(), **asdict(settings)}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _cached(path: Path, data: DigitData) -> dict[str, Tensor] | None:
    """What `_keep` wrote for these data; None where there is nothing, or nothing usable."""
    try:
        found = read_tensors(path)
    except FileError:
        return None
    for fold, images in (("train_features", data.train_images), ("test_features", data.test_images)):
        if fold not in found or found[fold].shape != (len(images), FEATURES):
            return None
    return found


def _keep(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write to the cache; a cache that cannot be written costs time, but is no reason to fail."""
    try:
        write_tensors(path, tensors)
    except FileError as error:
        warnings.warn(f"features are not cached: {error}", stacklevel=3)


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
