"""Default options of data sets, learners and guidances where they differ from the published recipe.

The published recipe itself is the default of every constructor. `configure` merges these sections.
"""

from __future__ import annotations

from typing import Any

from mnar.config import OWN_DATA
from mnar.learners import VimeSelf

Sections = dict[str, Any]

# Training as in VIME's published code: a thousand steps of Adam, no schedule, no moving average.
_TABULAR_TRAINING: Sections = {
    "iterations": 1000,
    "batch_labeled": 128,
    "optimizer": "adam",
    "schedule": "constant",
    "lr": 1e-3,
    "weight_decay": 0.0,
    "ema": 0.0,
    "eval_every": 100,
}


_PIXEL_TABLE: Sections = {
    "protocol": {"name": "cadr", "gamma": 20},
    "model": {"name": "encoder_mlp"},
    "learner": {"name": "vime", "bounded": True},  # grey levels lie in 0..1
    "train": _TABULAR_TRAINING,
}

# Options that differ for a data set.
DATASET_DEFAULTS: dict[str, Sections] = {
    "digits": {
        "protocol": {"name": "cadr", "gamma": 20},
        "model": {"name": "small_cnn"},
        "augment": {"padding": 1, "flip": False},
        # With 900 steps instead of a million, the moving average and its batch-norm statistics must follow faster.
        "train": {
            "iterations": 900,
            "batch_labeled": 32,
            "ema": 0.98,
            "log_every": 10,
            "eval_every": 10,
            "save_every": 100,
        },
    },
    "cifar10": {"protocol": {"name": "cadr", "gamma": 20}, "model": {"name": "wide_resnet"}},
    "cifar100": {"protocol": {"name": "cadr", "gamma": 50}, "model": {"name": "wide_resnet", "width": 8}},
    "cifar10n_agreement": {"protocol": {"name": "as_labeled", "num_labels": 400}, "model": {"name": "wide_resnet"}},
    "cifar100n_agreement": {
        "protocol": {"name": "as_labeled", "num_labels": 800},
        "model": {"name": "wide_resnet", "width": 8},
    },
    "mini_imagenet": {
        "protocol": {"name": "cadr", "gamma": 50, "rounding": "floor"},
        "model": {"name": "resnet18"},
        "augment": {"padding": 10, "padding_mode": "reflect", "order": "weak_first"},
    },
    "mnist": {
        "protocol": {"name": "cadr", "gamma": 20},
        "model": {"name": "wide_resnet", "depth": 10},
        "augment": {"padding": 2, "flip": False},
    },
    "mnist_tabular": _PIXEL_TABLE,
    "digits_tabular": _PIXEL_TABLE,
    OWN_DATA: {"protocol": {"name": "as_labeled"}, "model": {"name": "mlp"}},
    "npz": {"protocol": {"name": "cadr", "gamma": 20}, "model": {"name": "wide_resnet"}},
}
# Options that differ in the paper of a learner.
LEARNER_DEFAULTS: dict[str, Sections] = {
    "ups": {
        "model": {"dropout": 0.3},
        "train": {"weight_decay": 0.0, "ema": 0.0},
    },
    # In a long training the consistency loss outweighs the labels: without early stopping, VIME forgets what it learnt.
    "vime": {"model": {"name": "encoder_mlp"}, "train": {**_TABULAR_TRAINING, "validation": 0.1}},
    "vime_self": {
        "model": {"name": "encoder_mlp"},
        "train": {**_TABULAR_TRAINING, **VimeSelf.pretraining_options, "iterations": 4688, "eval_every": 4688},
    },
}
# Options for one learner on one data set.
PAIR_DEFAULTS: dict[tuple[str, str], Sections] = {
    ("mixmatch", "cifar100"): {"learner": {"name": "mixmatch", "unlabeled_weight": 150.0}},  # as in its paper
    ("vime_self", "mnist_tabular"): {"learner": {"name": "vime_self", "bounded": True}},  # as the first stage of VIME
    ("vime_self", "digits_tabular"): {"learner": {"name": "vime_self", "bounded": True}},
    # Twenty networks of 45 steps would learn nothing, and with the limits of the UPS paper fewer and fewer classes are
    # selected.
    ("ups", "digits"): {
        "model": {"dropout": 0.1},
        "learner": {"name": "ups", "generations": 4, "positive_uncertainty": 0.2, "negative_uncertainty": 0.05},
        "train": {"iterations": 3600},
    },
    # With early stopping on a tenth of 40 labels, PRG ends near chance, and ten epochs over 1,297 rows are too few for
    # the encoder. So these are the options that docs/methods/vime.md recommends for the user's own tables, with an
    # encoder that is trained for a thousand steps. See docs/suite.md.
    ("vime", "digits_tabular"): {
        "learner": {"name": "vime", "consistency": "ce", "pretraining_epochs": 50},
        "train": {"batch_labeled": 64, "validation": 0.0, "eval_every": 10},
    },
}
# Options for one guidance on one data set.
GUIDANCE_DEFAULTS: dict[tuple[str, str], Sections] = {
    ("cdmad", "digits"): {"colour": "black"},  # the background of these images is black
    ("cdmad", "mnist"): {"colour": "black"},
    ("darp", "cifar100"): {"every": 100, "iterations": 20},  # as its authors run it
    ("simpro", "cifar100"): {"tau": 1.0},  # as its authors run it
    # About as many updates in 900 or 1,000 steps as in the 43,000 of its authors.
    ("simpro", "digits"): {"update_every": 10},
    ("simpro", "digits_tabular"): {"update_every": 10},
    ("simpro", "mnist_tabular"): {"update_every": 10},
    # The tables of docs/results.md and docs/portfolio.md have these options: few labels, a short training, and learners
    # without a confidence threshold.
    ("simpro", OWN_DATA): {
        "tau": 1.0,
        "momentum": 0.99,
        "update_every": 1,
        "confidence": 0.0,
        "loss_prior": "separate",
    },
}
# The run that `mnar train` starts without any option.
DEFAULTS: Sections = {
    "dataset": {"name": "digits"},
    "learner": {"name": "fixmatch"},
    "guidance": {"name": "prg"},
}

# Size of the largest class, labelled (n1) and unlabelled (m1), for data sets with fewer samples per class than the
# 5,000 of CIFAR-10. With so few labels, the pool shapes also need a smaller imbalance (gamma_l). Their values for
# CIFAR-100 are those of the literature.
PROTOCOL_SIZES: dict[str, Sections] = {
    dataset: {
        "own": {"m1": m1},
        "balanced": {"m1": m1},
        "darp": {"n1": darp_n1, "m1": darp_m1},
        "pool_shape": {"gamma_l": gamma_l, "n1": shape_n1, "m1": shape_m1},
    }
    for dataset, m1, darp_n1, darp_m1, gamma_l, shape_n1, shape_m1 in (
        ("cifar100", 500, 150, 300, 10, 50, 400),
        ("mini_imagenet", 500, 150, 300, 10, 50, 400),
        ("digits", 100, 40, 80, 20, 20, 100),
        ("digits_tabular", 100, 40, 80, 20, 20, 100),
    )
}
