"""Images or tables and their labels, by name. Each entry takes what the user gave as --data, or None."""

from collections.abc import Callable

from mnar.datasets.cifar import cifar10, cifar100
from mnar.datasets.digits import digits
from mnar.datasets.mini_imagenet import mini_imagenet
from mnar.datasets.mnist import mnist
from mnar.datasets.mnist_tabular import mnist_tabular
from mnar.datasets.npz import npz
from mnar.datasets.own import own
from mnar.types import DataSet

DATASETS: dict[str, Callable[..., DataSet]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "mnist_tabular": mnist_tabular,
    "mini_imagenet": mini_imagenet,
    "npz": npz,
    "own": own,
}

__all__ = ["DATASETS", "cifar10", "cifar100", "digits", "mini_imagenet", "mnist", "mnist_tabular", "npz", "own"]
