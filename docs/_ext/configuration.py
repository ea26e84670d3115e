"""Every section of a configuration with every option, as Markdown, from the constructors (`mnar.config`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from docstrings import option_meanings

from mnar.config import OWN_DATA, SECTIONS, TABLES, Choice, options_of
from mnar.datasets import DATASETS
from mnar.datasets.user_files import read_data
from mnar.option_values import annotations_of, in_words
from mnar.recipes import configure

TITLES = {
    "dataset": "the data",
    "protocol": "which samples keep their label",
    "model": "the network",
    "learner": "how the loss is formed",
    "guidance": "how a pseudo-label is rectified",
    "split": "the random draw of the split",
    "augment": "views of images",
    "train": "training",
    "engine": "how steps are executed",
}
# Meanings of options that no docstring explains.
FURTHER = {
    "dataset.root": "folder or file with the data; `--data` sets this option",
    "dataset.held_out": "share of the labels of each class that is kept back to score the model",
    "protocol.num_labels": "number of labels to keep, drawn at random with at least one per class; null: all labels",
    "augment.padding": "number of pixels by which a random crop may shift the image",
    "augment.padding_mode": "what fills the shifted edge: `zero` or `reflect`",
    "augment.flip": "whether images are mirrored at random",
}
# Pages of parts whose name is not that of a page in docs/methods.
METHOD_PAGES = {"prg_last": "prg", "crest_plus": "crest", "vime_self": "vime"}
METHODS = Path(__file__).parent.parent / "methods"


def parts(section: str) -> dict[str, Callable[..., Any]]:
    """The parts that can be chosen in a section; a section without a choice has one part without a name."""
    return dict(TABLES[section]) if section in TABLES else {"": SECTIONS[section]}


def meanings(section: str, make: Callable[..., Any]) -> dict[str, str]:
    """What each option of a part means; an option that nothing explains maps to an empty text."""
    told = option_meanings(make)
    if section == "dataset":
        told = {**option_meanings(read_data), **told}
    return {name: told.get(name) or FURTHER.get(f"{section}.{name}", "") for name in options_of(section, make)}


def markdown() -> str:
    """One section per section of the configuration, one table per part."""
    return "\n".join(line for section in [*TABLES, *SECTIONS] for line in _section(section))


def defaults_by_dataset() -> str:
    """What `mnar train --dataset NAME` uses where the user says nothing."""
    lines = [
        "| data set | protocol | model | method | steps | labelled + unlabelled samples per step |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in DATASETS:
        if name != OWN_DATA:
            config = configure(dataset=name)
            chosen, train = [_chosen("protocol", config.protocol), _chosen("model", config.model)], config.train
            method = f"`{config.learner.name}` + `{config.guidance.full_name}`"
            sizes = f"{train.iterations:,} | {train.batch_labeled} + {train.batch_unlabeled}"
            lines.append(f"| `{name}` | {' | '.join(chosen)} | {method} | {sizes} |")
    return "\n".join(lines)


def _chosen(section: str, part: Choice) -> str:
    """A part with the options that differ from the defaults of its constructor."""
    parameters = options_of(section, TABLES[section][part.name])
    options = [f"{name} {_yaml(value)}" for name, value in part.options.items() if value != parameters[name].default]
    return f"`{part.name}`" + (f" ({', '.join(options)})" if options else "")


def _section(section: str) -> Iterator[str]:
    yield from (f"## `{section}`: {TITLES[section]}", "")
    without_options = []
    for name, make in parts(section).items():
        options = options_of(section, make)
        if not options or (section == "dataset" and list(options) == ["root"]):
            without_options.append(f"`{name}`")
            continue
        if name:
            yield from (f"### `{name}`", "")
        if (page := METHODS / f"{METHOD_PAGES.get(name, name)}.md").exists():
            yield from (f"Formula and departures: [{_title(page)}](../methods/{page.name}).", "")
        yield from ("| option | values | default | meaning |", "| --- | --- | --- | --- |")
        told, hints = meanings(section, make), annotations_of(make)
        for option, parameter in options.items():
            default = "required" if parameter.default is parameter.empty else f"`{_yaml(parameter.default)}`"
            yield f"| `{section}.{option}` | {in_words(hints[option])} | {default} | {_cell(told[option])} |"
        yield ""
    if without_options:
        only = " besides `dataset.root`" if section == "dataset" else ""
        yield from (f"Without options{only}: {', '.join(without_options)}.", "")


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def _yaml(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
