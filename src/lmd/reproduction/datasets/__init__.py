"""Where digits, features and images come from: what ships, what is downloaded, what is checked, what is cached.

The shortest useful program:

    from lmd.reproduction.datasets import digit_features, digits_data, image_data

    data = digits_data("auto")          # MNIST where it is at hand, else the digits that ship with scikit-learn
    features = digit_features(data)     # 50 features of each image, from a small network trained on `data`
    features.train_features, features.test_labels, features.data_name, features.accuracy

    images = image_data("photographs")  # or "stl10"; read_images(path) for a folder or an .npz of your own
    images.train_images, images.test_images
"""

from lmd.reproduction.datasets.catalogue import Dataset, datasets, fetch
from lmd.reproduction.datasets.digits import DigitData, digits_data
from lmd.reproduction.datasets.features import DigitFeatures, digit_features
from lmd.reproduction.datasets.images import ImageData, ImageSet, image_data, read_image, read_images

__all__ = [
    "Dataset",
    "DigitData",
    "DigitFeatures",
    "ImageData",
    "ImageSet",
    "datasets",
    "digit_features",
    "digits_data",
    "fetch",
    "image_data",
    "read_image",
    "read_images",
]
