"""Named configurations: what each data set is trained with by default, and the cells of the paper's tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mnar.config import RunConfig, own_guidance, parse_setting
from mnar.guidances import GUIDANCES, NoGuidance, class_of
from mnar.learners import LEARNERS
from mnar.train_options import TrainOptions

Sections = dict[str, Any]

# VIME's: a thousand steps of Adam, no schedule, no average.
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

# What differs from the published recipe, which is the default of every constructor.
DATASET_DEFAULTS: dict[str, Sections] = {
    "digits": {
        "protocol": {"name": "cadr", "gamma": 20},
        "model": {"name": "small_cnn"},
        "augment": {"padding": 1, "flip": False},
        # 900 steps, not a million: the average and its batch-norm statistics must follow faster.
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
    "mnist_tabular": {
        "protocol": {"name": "cadr", "gamma": 20},
        "model": {"name": "encoder_mlp"},
        "learner": {"name": "vime", "bounded": True},  # grey levels in 0..1
        "train": _TABULAR_TRAINING,
    },
    "own": {"protocol": {"name": "found"}, "model": {"name": "mlp"}},
    "npz": {"protocol": {"name": "cadr", "gamma": 20}, "model": {"name": "wide_resnet"}},
}
# What a learner's paper does otherwise than the published recipe.
LEARNER_DEFAULTS: dict[str, Sections] = {
    "ups": {
        "model": {"dropout": 0.3},
        "train": {"weight_decay": 0.0, "ema": 0.0},
    },
    # Its consistency loss wins over the labels in the end: without the early stop it forgets what it knew.
    "vime": {"model": {"name": "encoder_mlp"}, "train": {**_TABULAR_TRAINING, "validation": 0.1}},
    "vime_self": {
        "model": {"name": "encoder_mlp"},
        "train": {**_TABULAR_TRAINING, "optimizer": "rmsprop", "iterations": 4688, "eval_every": 4688},
    },
}
# What suits neither the learner elsewhere nor the data set otherwise.
PAIR_DEFAULTS: dict[tuple[str, str], Sections] = {
    # Twenty networks of 45 steps would learn nothing, and with its paper's limits ever fewer classes are selected.
    ("ups", "digits"): {
        "model": {"dropout": 0.1},
        "learner": {"name": "ups", "generations": 4, "positive_uncertainty": 0.2, "negative_uncertainty": 0.05},
        "train": {"iterations": 3600},
    },
}
# What a guidance needs to know of a data set.
GUIDANCE_DEFAULTS: dict[tuple[str, str], Sections] = {
    ("cdmad", "digits"): {"colour": "black"},  # the colour of paper without ink
    ("cdmad", "mnist"): {"colour": "black"},
    ("darp", "cifar100"): {"every": 100, "iterations": 20},  # as its authors run it
}
DEFAULTS: Sections = {
    "dataset": {"name": "digits"},
    "learner": {"name": "fixmatch"},
    "guidance": {"name": "prg"},
}

# The largest class, labelled (n1) and unlabelled (m1), where a class holds fewer than CIFAR-10's 5,000.
PROTOCOL_SIZES: dict[str, Sections] = {
    dataset: {"own": {"m1": m1}, "balanced": {"m1": m1}, "darp": {"n1": darp_n1, "m1": darp_m1}}
    for dataset, m1, darp_n1, darp_m1 in (
        ("cifar100", 500, 150, 300),
        ("mini_imagenet", 500, 150, 300),
        ("digits", 100, 40, 80),
    )
}


class Recipe(NamedTuple):
    """A cell of a table, with the paper's figure for it."""

    sections: Sections
    accuracy: float | None  # per cent, as printed; None: only drawn there, or not in the paper
    deviation: float | None  # None: there is none, as for those quoted from the CADR paper

    @property
    def printed(self) -> str:
        """As the paper has it."""
        if self.accuracy is None:
            return "–"
        return f"{self.accuracy}" if self.deviation is None else f"{self.accuracy} ± {self.deviation}"


def _table1() -> dict[str, Recipe]:
    """CADR's protocol. Rows without a deviation are quoted from the CADR paper; their schedules may be others."""
    columns = [("cifar10", 20), ("cifar10", 50), ("cifar10", 100)]
    columns += [("cifar100", 50), ("cifar100", 100), ("cifar100", 200)]
    columns += [("mini_imagenet", 50), ("mini_imagenet", 100)]
    accuracies = {
        "none": (56.26, 65.61, 72.28, 50.51, 48.82, 50.62, 23.56, 26.57),
        "crest": (51.10, 55.40, 63.60, 40.30, 46.30, 49.60),  # none for mini-ImageNet
        "darp": (63.14, 70.44, 74.74, 38.87, 40.49, 44.15),
        "cadr": (79.63, 93.79, 93.97, 59.53, 60.88, 63.30, 29.07, 32.78),
        "prg": (94.04, 94.09, 94.28, 59.11, 61.84, 63.41, 44.28, 44.99),
        "prg_last": (93.81, 93.44, 93.48, 59.54, 62.36, 60.56, 40.73, 43.89),
    }
    deviations = {
        "prg": (0.18, 0.18, 0.22, 0.54, 0.45, 4.08, 0.54, 1.25),
        "prg_last": (0.98, 1.05, 0.79, 0.99, 0.23, 1.86, 1.27, 0.14),
    }
    recipes = {}
    for guidance, row in accuracies.items():
        method = "fixmatch" if guidance == "none" else f"fixmatch+{guidance}"
        spread = deviations.get(guidance, (None,) * len(row))
        for (dataset, gamma), accuracy, deviation in zip(columns[: len(row)], row, spread, strict=True):
            name = f"table1/{dataset.replace('_', '-')}-cadr-g{gamma}/{method}"
            sections = {
                "dataset": {"name": dataset},
                "protocol": {**DATASET_DEFAULTS[dataset]["protocol"], "gamma": gamma},
                "learner": {"name": "fixmatch"},
                "guidance": {"name": guidance},
            }
            recipes[name] = Recipe(sections, accuracy, deviation)
    return recipes


def _ablations() -> dict[str, Recipe]:
    """What PRG's parts are worth: CIFAR-10, CADR's protocol.

    The paper draws alpha and N_B without saying their values, so those here are ours.
    """
    variants: dict[str, tuple[int, Sections, float | None]] = {
        f"cifar10-cadr-g{gamma}/fixmatch+prg-without-sca": (gamma, {"rescale": False}, accuracy)
        for gamma, accuracy in ((20, 88.97), (50, 91.73), (100, 92.72))
    }
    at_20: dict[str, tuple[Sections, float | None]] = {
        f"steps-{k}": ({"steps": k}, accuracy) for k, accuracy in ((1, 94.04), (2, 91.33), (5, 87.76), (10, 82.60))
    }
    at_20 |= {f"alpha-{alpha}": ({"alpha": alpha}, None) for alpha in (0.1, 0.5, 1.0, 3.0, 10.0)}
    at_20 |= {f"window-{window}": ({"window": window}, None) for window in (16, 32, 64, 128, 256)}
    at_20 |= {"usage-hard": ({"usage": "hard"}, None), "empty-row-identity": ({"empty_row": "identity"}, None)}
    variants |= {
        f"cifar10-cadr-g20/fixmatch+prg-{variant}": (20, options, accuracy)
        for variant, (options, accuracy) in at_20.items()
    }
    return {
        f"ablation/{name}": Recipe(
            {
                "dataset": {"name": "cifar10"},
                "protocol": {"name": "cadr", "gamma": gamma},
                "learner": {"name": "fixmatch"},
                "guidance": {"name": "prg", **options},
            },
            accuracy,
            None,
        )
        for name, (gamma, options, accuracy) in variants.items()
    }


def _tabular() -> dict[str, Recipe]:
    """MNIST as a table: CADR's protocol by gamma, the paper's own by its labels in all and in the largest class."""
    columns: dict[str, Sections] = {f"cadr-g{gamma}": {"name": "cadr", "gamma": gamma} for gamma in (20, 50, 100)}
    columns |= {
        f"own-n{num_labels}-{n1}": {"name": "own", "num_labels": num_labels, "n1": n1}
        for num_labels, n1 in ((40, 10), (40, 20), (250, 100), (250, 200))
    }
    figures = {
        "none": "63.38 4.42  63.75 6.10  64.80 2.76  50.13 7.56  30.73 8.69  60.58 2.68  21.44 0.58",
        "prg": "59.41 14.45  65.92 13.90  66.60 12.58  49.28 11.09  34.08 16.05  66.14 11.88  24.51 9.56",
        "prg_last": "63.49 10.73  66.19 14.22  66.21 10.24  53.17 8.84  32.45 10.10  65.25 9.46  23.62 11.39",
    }
    recipes = {}
    for guidance, row in figures.items():
        method = "vime" if guidance == "none" else f"vime+{guidance}"
        numbers = [float(number) for number in row.split()]
        for (column, protocol), accuracy, deviation in zip(columns.items(), numbers[::2], numbers[1::2], strict=True):
            sections = {
                "dataset": {"name": "mnist_tabular"},
                "protocol": protocol,
                "learner": {"name": "vime"},
                "guidance": {"name": guidance},
            }
            recipes[f"tabular/mnist-{column}/{method}"] = Recipe(sections, accuracy, deviation)
    return recipes


RECIPES: dict[str, Recipe] = {**_table1(), **_ablations(), **_tabular()}


def configure(
    *,
    recipe: str | None = None,
    dataset: str | None = None,
    data: str | None = None,
    protocol: str | None = None,
    learner: str | None = None,
    guidance: str | None = None,
    iterations: int | None = None,
    seed: int | None = None,
    settings: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A complete configuration.

    The data set's defaults, then the learner's, then the recipe, then what was chosen by name, then --set. `defaults`
    come after the data set's.
    """
    cell = _recipe(recipe).sections if recipe else {}
    parsed = [parse_setting(setting) for setting in settings]
    chosen: Sections = {"dataset": dataset, "protocol": protocol, "learner": learner, "guidance": guidance}
    chosen |= {section: value for section, option, value in parsed if option == "name"}
    chosen = {section: _named(section, str(name)) for section, name in chosen.items() if name}

    data_name = _name_of("dataset", DEFAULTS, cell, chosen)
    config = _merge(_merge(DEFAULTS, DATASET_DEFAULTS.get(data_name, {})), defaults or {})
    learner_name = _name_of("learner", config, cell, chosen)
    config = _merge(config, LEARNER_DEFAULTS.get(learner_name, {}))
    config = _merge(config, PAIR_DEFAULTS.get((learner_name, data_name), {}))
    config = _merge(_merge(config, cell), chosen)
    _size_protocol(config)
    _guide(config, is_named="guidance" in chosen or "guidance" in cell, learner_is_named="learner" in chosen)
    if data is not None:
        config = _merge(config, {"dataset": {"root": str(Path(data).resolve())}})  # --resume works from any folder
    if iterations is not None:
        config = _merge(config, {"train": {"iterations": iterations}})
    if seed is not None:
        config["seed"] = seed
    for section, option, value in parsed:
        if option != "name":
            config = _merge(config, {section: _nested(option, value)})
    _size_batches(config)
    if config["learner"].get("encoder"):
        config["learner"]["encoder"] = str(Path(config["learner"]["encoder"]).resolve())
    return RunConfig.from_dict(config)


def _named(section: str, name: str) -> Sections:
    """A part by its name; for guidances also a chain such as "distribution_alignment+prg", first things first."""
    first, *further = [part.strip() for part in name.split("+")] if section == "guidance" else [name]
    part: Sections = {"name": first}
    for name in further:
        part = {"name": name, "after": part}
    return part


def _name_of(section: str, *layers: Mapping[str, Any]) -> str:
    """What a section will be, from the last layer that says."""
    return next(str(layer[section]["name"]) for layer in reversed(layers) if section in layer)


def _size_protocol(config: Sections) -> None:
    if "protocol" in config:
        sizes = PROTOCOL_SIZES.get(config["dataset"]["name"], {}).get(config["protocol"]["name"], {})
        config["protocol"] = {**sizes, **config["protocol"]}


def _guide(config: Sections, *, is_named: bool, learner_is_named: bool) -> None:
    """A learner named alone is meant as its paper has it; a guidance named beside it comes after what it has, unless
    that is an alignment and so is this.
    """
    learner, guidance = config["learner"]["name"], config["guidance"]
    own = own_guidance(learner)
    if not is_named and learner_is_named:
        guidance = own
    elif own["name"] != "none" and guidance["name"] != "none" and "after" not in guidance and not _aligns(guidance):
        guidance = {**guidance, "after": own}
    config["guidance"] = _with_options_of(learner, config["dataset"]["name"], guidance)


def _aligns(guidance: Sections) -> bool:
    make = GUIDANCES.get(guidance["name"], NoGuidance)
    options = {**getattr(make, "keywords", {}), **guidance}
    return class_of(make).aligns or bool(options.get("align"))  # CReST does if it is told to


def _with_options_of(learner: str, dataset: str, guidance: Sections) -> Sections:
    """Each guidance of a chain as data set and learner want it, where nobody says otherwise."""
    own, wanted = own_guidance(learner), LEARNERS[learner].guidance_options if learner in LEARNERS else {}
    options = {**GUIDANCE_DEFAULTS.get((guidance["name"], dataset), {}), **wanted.get(guidance["name"], {})}
    options |= own if guidance["name"] == own["name"] else {}
    after = {"after": _with_options_of(learner, dataset, guidance["after"])} if "after" in guidance else {}
    return {**options, **guidance, **after}


def _size_batches(config: Sections) -> None:
    """Unlabelled samples in the learner's own proportion to the labelled ones, where nobody said how many."""
    train, learner = config.setdefault("train", {}), LEARNERS.get(config["learner"]["name"])
    if learner and "batch_unlabeled" not in train:
        batch_labeled = train.get("batch_labeled", TrainOptions.batch_labeled)
        if isinstance(batch_labeled, int):  # what is not will be refused by its name
            config["train"] = {**train, "batch_unlabeled": learner.unlabeled_ratio * batch_labeled}


def _nested(option: str, value: Any) -> Sections:
    """ "after.window" is the option `window` in the part `after`."""
    first, _, rest = option.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.3)
        raise ValueError(
            f"unknown recipe {name!r}; nearest: {near or sorted(RECIPES)[:3]} (`mnar list recipes` has all)"
        )
    return RECIPES[name]


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Sections:
    """`above` over `below`. Another part in a section brings its own options, so those below it go."""
    merged = dict(below)
    for section, options in above.items():
        old = below.get(section)
        if isinstance(old, Mapping) and isinstance(options, Mapping):
            same_part = options.get("name", old.get("name")) == old.get("name")
            merged[section] = _merge(old, options) if same_part else dict(options)
        else:
            merged[section] = options
    return merged
