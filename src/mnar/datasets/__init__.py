"""Data sets by name: the benchmarks of the papers, and the user's own data.

`DATASETS` maps each name to its loader. A loader takes the path that the user gave as --data, or None, and returns a
`mnar.types.DataSet`: the training set and the test set as tensors. A loader with the parameter `seed` also gets the
seed of the run, e.g. to draw the test set. Each loader can also be imported from here.
The folder user_files/ reads the user's own half-labelled files for the data set `own_data`.
"""

from collections.abc import Callable

from mnar.datasets.cifar import cifar10, cifar100
from mnar.datasets.cifar_n import cifar10n_agreement, cifar100n_agreement
from mnar.datasets.digits import digits
from mnar.datasets.digits_tabular import digits_tabular
from mnar.datasets.mini_imagenet import mini_imagenet
from mnar.datasets.mnist import mnist
from mnar.datasets.mnist_tabular import mnist_tabular
from mnar.datasets.npz import npz
from mnar.datasets.own_data import own_data
from mnar.types import DataSet

DATASETS: dict[str, Callable[..., DataSet]] = {
    "digits": digits,
    "digits_tabular": digits_tabular,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "cifar10n_agreement": cifar10n_agreement,
    "cifar100n_agreement": cifar100n_agreement,
    "mnist": mnist,
    "mnist_tabular": mnist_tabular,
    "mini_imagenet": mini_imagenet,
    "npz": npz,
    "own_data": own_data,
}

__all__ = [
    "DATASETS",
    "cifar10",
    "cifar10n_agreement",
    "cifar100",
    "cifar100n_agreement",
    "digits",
    "digits_tabular",
    "mini_imagenet",
    "mnist",
    "mnist_tabular",
    "npz",
    "own_data",
]
