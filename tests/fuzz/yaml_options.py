"""Options in YAML: the configuration of a network and of a portfolio in their run folders, and --set."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from typing import Any

import yaml

from mnar.config import SECTIONS, TABLES, options_of, read_yaml
from tests.fuzz.mutations import mutated_text
from tests.fuzz.reader import Reader, draw_no_report, stop_before_training
from tests.fuzz.tokens import LAUGHS, VALUES, YAML_TOKENS
from tests.support import tiny
from tests.support.command import TINY, as_options
from tests.support.forked_command import run_forked
from tests.support.own_data_files import write_table

LARGEST_SMALL_NUMBER = 16
YAML_KEYS = ("", "x", 1, None, 2.5, True, "name", (1, 2))
FEW_ROWS = as_options(setting for setting in tiny.TINY if not setting.startswith("model."))


def odd_tree(tree: Any, rng: random.Random, keys: Sequence[Any]) -> Any:
    """Return a copy of a tree in which one or two values have changed, or their keys, for which others are given."""
    changed = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 2)):
        place, key = rng.choice(list(_places(changed)) or [({"": changed}, "")])
        change = rng.choice(["value", "value", "value", "drop", "key", "deeper"])
        if change == "value":
            place[key] = rng.choice(VALUES)
        elif change == "drop":
            del place[key]
        elif change == "key" and isinstance(place, dict):
            place[rng.choice(keys)] = place.pop(key)
        else:
            place[key] = rng.choice([[place[key]], {"name": place[key]}, {keys[0]: place[key]}])
    return changed


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every mapping and every list in a tree, with each of its keys or with some of its positions."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def finished_runs(folder: Path) -> None:
    """Train a network on digits into the folder `run`, and a portfolio on data.csv into the folder `portfolio`."""
    _run(("train", "--dataset", "digits", "--guidance", "prg", "--iterations", "2", *TINY, "--out", "run"), folder)
    finished_portfolio(folder)


def finished_portfolio(folder: Path) -> None:
    """Train a portfolio on data.csv into the folder `portfolio`."""
    write_table(folder / "data.csv", ((8, 6, 3), (5, 5, 8)))
    _run(("train", "data.csv", "--label", "kind", "--fast", "--out", "portfolio"), folder)


def _run(command: Sequence[str], folder: Path) -> None:
    ended = run_forked(command, folder, draw_no_report)
    assert ended.exit_code == 0, ended.errors


class ConfigFile(Reader):
    name = "YAML file"
    first_commands = (("eval", "run"), ("eval", "portfolio"), ("train", "--resume", "run"))

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        finished_runs(originals)
        self.files = {"run": "config.yaml", "portfolio": "portfolio.yaml"}

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        run = rng.choice(list(self.files))
        shutil.copytree(self.originals / run, folder / run)
        shutil.copy(self.originals / "data.csv", folder)
        file = folder / run / self.files[run]
        text = file.read_text().replace(str(self.originals), str(folder))
        if rng.random() < 0.6:
            file.write_text(yaml.dump(odd_tree(yaml.safe_load(text), rng, YAML_KEYS), sort_keys=False))
        elif rng.random() < 0.05:
            file.write_text(LAUGHS + text)
        else:
            file.write_bytes(mutated_text(text, rng, " :,[]{}", YAML_TOKENS))
        return ["eval", run] if rng.random() < 0.7 else ["train", "--resume", run]

    def stop_early(self) -> None:
        draw_no_report()


class Settings(Reader):
    name = "--set"
    first_commands = (
        ("train", "--dataset", "digits", "--guidance", "prg", "--iterations", "2", *TINY, "--out", "run"),
        ("train", "--dataset", "digits_tabular", "--iterations", "2", *FEW_ROWS, "--out", "run"),
    )

    def __init__(self, originals: Path) -> None:
        super().__init__(originals)
        self.parts = {(section, name): make for section, table in TABLES.items() for name, make in table.items()}
        self.parts |= {(section, ""): make for section, make in SECTIONS.items()}

    def write_input(self, folder: Path, rng: random.Random) -> list[str]:
        settings: list[str] = []
        for _ in range(rng.choice([1, 1, 1, 2])):
            section, name = rng.choice(list(self.parts))
            options = options_of(section, self.parts[section, name])
            option = rng.choice([*options, *options, "name", "x"] if options else ["name"])
            value = self._value(options[option].default if option in options else name, rng)
            settings += [f"{section}.name={name}"] if name and section != "dataset" else []
            settings.append(f"{section}.{option}={value}")
        if rng.random() < 0.1:
            settings[-1] = mutated_text(settings[-1], rng, ".=", YAML_TOKENS).decode(errors="replace")
        settings = [setting.replace("\0", "") for setting in settings]  # no argument can contain this character
        data = rng.choice(["digits", "digits", "digits_tabular"])
        return ["train", "--dataset", data, "--iterations", "2", *FEW_ROWS, *as_options(settings), "--out", "run"]

    def _value(self, default: Any, rng: random.Random) -> str:
        """A value near the default, which is often right, or an odd one, or no YAML at all."""
        near = [rng.choice(VALUES)] if default is Parameter.empty else [default, str(default)]
        if isinstance(default, int | float) and not isinstance(default, bool):
            near = [default, default + 1, default - 1, 2 * default, default / 2, -default, default // 2]
        kind = rng.random()
        if kind < 0.15:
            return rng.choice(YAML_TOKENS)
        value = rng.choice(near) if kind < 0.6 else rng.choice(VALUES)
        return (
            str(yaml.dump(value, Dumper=PlainDumper, default_flow_style=True, width=10**9))
            .removesuffix("...\n")
            .strip()
        )

    def asks_for_much_work(self, command: Sequence[str]) -> bool:
        """A wide network, a large batch or many epochs of pretraining take their time, also for two steps."""
        return any(_number(argument.partition("=")[2]) > LARGEST_SMALL_NUMBER for argument in command)

    def stop_early(self) -> None:
        draw_no_report()
        stop_before_training()


def _number(text: str) -> float:
    """Return the number that a text means in YAML; 0 if the text is no number."""
    with suppress(ValueError):
        return float(str(read_yaml(text)))
    return 0.0


class PlainDumper(yaml.SafeDumper):
    """Writes tuples and paths, the defaults of some options, as YAML that people write."""


PlainDumper.add_multi_representer(Path, lambda dumper, path: dumper.represent_str(str(path)))
