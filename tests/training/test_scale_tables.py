"""The tables of docs/scale.md have the bytes of the real buffers, and those that two processes really exchange."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mnar.guidances import GUIDANCES, NoGuidance
from mnar.learners import LEARNERS
from mnar.models.batch_norm import running_statistics
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.types import Task
from tests.support.processes import in_processes
from tests.support.tiny import TINY
from tests.support.traffic import counted_traffic

PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
SHARED = "shard_bank"
SMALL_PARTS = 64  # bytes of counters and other single numbers, which the tables leave out


def table(heading: str) -> dict[str, tuple[str, str]]:
    """The first table below a heading: the formula and the figure of each name in its first column."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        title, formula, figure = (cell.strip() for cell in line.strip("|").split(" | "))
        names = [SHARED] if SHARED in title else re.findall(r"`(\w+)`", title)
        rows.update(dict.fromkeys(names, (formula, figure.strip(" |"))))
    return rows


def value_of(formula: str, **symbols: float) -> float:
    """The value of e.g. "2 N / W + 4 k²"."""
    total = 0.0
    for term in formula.split(" + "):
        over, _, under = term.partition(" / ")
        total += math.prod(factor(part, symbols) for part in over.split()) / (factor(under, symbols) if under else 1)
    return total


def factor(part: str, symbols: dict[str, float]) -> float:
    if part[0].isdigit():
        return float(part.replace(",", ""))
    return symbols[part[0]] ** (2 if part.endswith("²") else 1)


def written(num_bytes: float) -> str:
    """Three digits with a unit, e.g. 605 MB."""
    if num_bytes == 0:
        return "0 MB"
    exponent = min(12, 3 * int(math.log10(num_bytes) // 3))
    return f"{num_bytes / 10**exponent:.3g} {({0: 'B', 3: 'kB', 6: 'MB', 9: 'GB', 12: 'TB'})[exponent]}"


def embedding_of(name: str) -> int:
    """The length of the embeddings of SimMatch, SimCLR or CoMatch."""
    return 64 if name == "comatch" else 128


# Memory


def state_of(name: str, *, N: int, k: int, L: int, n: int, m: int) -> int:
    task = Task(k, N, torch.arange(L) % k, batch_labeled=m, batch_unlabeled=n)
    method = GUIDANCES[name](task) if name in GUIDANCES else LEARNERS[name](task, NoGuidance(task))
    return sum(buffer.nbytes for part, buffer in method.named_buffers() if not part.startswith("guidance."))


@pytest.mark.parametrize("name", [*GUIDANCES, *LEARNERS])
def test_the_formula_of_a_method_gives_the_bytes_of_its_buffers_in_two_sizes(name: str) -> None:
    formula, figure = table("Memory")[name]
    d = embedding_of(name)
    for sizes in ({"N": 500, "k": 5, "L": 20, "n": 32, "m": 8}, {"N": 3000, "k": 40, "L": 160, "n": 48, "m": 16}):
        assert value_of(formula, W=1, d=d, **sizes) == pytest.approx(state_of(name, **sizes), abs=SMALL_PARTS)
    large = value_of(formula, N=1e8, k=1e4, L=1e5, W=1, n=448, m=64, d=d)
    assert figure == written(large)


def test_the_figure_of_a_shared_bank_is_that_of_eight_processes() -> None:
    formula, figure = table("Memory")[SHARED]
    assert figure == f"{written(value_of(formula, N=1e8, k=1e4, W=8, n=448 / 8))} (W = 8)"


# Traffic of two processes

METHODS = {
    "prg": ("guidance.name=prg",),
    SHARED: ("guidance.name=prg", "guidance.shard_bank=true"),
    **{
        name: (f"guidance.name={name}",)
        for name in (
            "prg_last",
            "prg_smooth",
            "prg_balanced",
            "tracking",
            "distribution_alignment",
            "adello",
            "cdmad",
            "simpro",
            "cadr",
            "darp",
        )
    },
    "flexmatch": ("learner.name=flexmatch", "guidance.name=none"),
    "acr": ("learner.name=acr", "guidance.name=none"),
    "simmatch": ("learner.name=simmatch", "guidance.name=none"),
    "comatch": ("learner.name=comatch", "guidance.name=none"),
    "simclr": ("learner.name=simclr", "guidance.name=none"),
    "mixmatch": ("learner.name=mixmatch", "guidance.name=none"),
    "remixmatch": ("learner.name=remixmatch", "guidance.name=none"),
    "ups": ("learner.name=ups", "guidance.name=none", "model.dropout=0.3"),
    "vime": ("learner.name=vime", "guidance.name=none"),
}


def exchanged() -> dict[str, dict[str, Any]]:
    """What one process holds and sends in one step of each method."""
    results = {}
    for name, settings in METHODS.items():
        is_table = name == "vime"
        tiny = [setting for setting in TINY if not (is_table and setting.startswith("model."))]
        config = configure(
            dataset="digits_tabular" if is_table else "digits",
            iterations=10,
            settings=[*tiny, "learner.name=fixmatch", *settings],
        )
        data = load_data(config)
        trainer = make_trainer(config, data, make_split(config, data))
        trainer.loader.seek(0)
        with counted_traffic() as traffic:
            trainer.step()
        gradients = [parameter.grad for parameter in trainer.model.parameters() if parameter.grad is not None]
        averaged = [*gradients, *running_statistics(trainer.model)]
        results[name] = {
            "sent": traffic.sent - sum(tensor.nbytes for tensor in averaged) - 4 * len(trainer.meters.names),
            "received": traffic.received,
            "state": sum(buffer.nbytes for buffer in trainer.learner.guidance.buffers()),
            "N": trainer.loader.num_unlabeled,
        }
    return results


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_send_and_hold_what_the_tables_say(tmp_path: Path) -> None:
    traffic, memory = table("Traffic"), table("Memory")
    assert traffic.keys() == METHODS.keys()
    sizes = {"W": 2, "n": 16, "m": 8, "k": 10, "D": 64}  # images of 8 x 8 pixels, or as many columns
    for results in in_processes(2, tmp_path / "two", exchanged):
        for name, (formula, figure) in traffic.items():
            expected = value_of(formula, d=embedding_of(name), **sizes)
            assert results[name]["sent"] == expected, name
            assert f"{results[name]['sent']:,}" == figure
        for name in ("prg", SHARED):
            expected = value_of(memory[name][0], N=results[name]["N"], **sizes)
            assert results[name]["state"] == pytest.approx(expected, abs=SMALL_PARTS)
            assert results[name]["sent"] <= 12 * sizes["W"] * sizes["n"] + 4 * sizes["k"], name
        assert results["prg"]["sent"] <= 12 * sizes["n"] + 4 * sizes["k"], "bytes gathered per sample"
