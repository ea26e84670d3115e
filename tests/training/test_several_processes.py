"""Two processes train what one process trains, in float64, so that rounding cannot hide a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from mnar import distributed
from mnar.config import RunConfig
from mnar.models.dropout import Dropout, dropout_layers
from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.training.trainer import Interrupted, Trainer, train
from tests.support.equality import assert_same
from tests.support.methods import SURE_UPS
from tests.support.processes import in_processes
from tests.support.tiny import TINY
from tests.support.watching import Notes, loaded

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch was built without gloo")

MLP = (
    *(setting for setting in TINY if not setting.startswith("model.")),
    "train.lr=0.1",
    "model.name=mlp",
    "model.hidden=[32]",
)
METHODS = {
    "prg": ("learner.name=fixmatch", "guidance.name=prg", "learner.threshold=0.5"),
    "flexmatch": ("learner.name=flexmatch", "learner.threshold=0.6"),
    "simmatch": ("learner.name=simmatch", "learner.threshold=0.5", "learner.dim=16"),
    "cadr": ("learner.name=fixmatch", "guidance.name=cadr", "learner.threshold=0.5"),
}
OTHERS = {
    "flexmatch+prg": (*METHODS["flexmatch"], "guidance.name=prg_last"),
    "cadr, inverse propensity": (*METHODS["cadr"], "guidance.labeled_loss=inverse_propensity"),
    "acr": ("learner.name=acr", "learner.threshold=0.5"),
    "comatch": ("learner.name=comatch", "learner.threshold=0.5", "learner.dim=16", "learner.graph_threshold=0.3"),
    "simclr": ("learner.name=simclr", "learner.dim=16"),
    "mixmatch+prg": ("learner.name=mixmatch", "guidance.name=prg"),
    "remixmatch": ("learner.name=remixmatch",),
    "mean_teacher": ("learner.name=mean_teacher", "guidance.name=prg"),
    "pi_model+simpro": ("learner.name=pi_model", "guidance.name=simpro"),
    "pseudo_label+darp": ("learner.name=pseudo_label", "guidance.name=darp", "learner.threshold=0.5"),
    "adello": ("learner.name=fixmatch", "guidance.name=adello", "learner.threshold=0.5"),
    "cdmad": ("learner.name=fixmatch", "guidance.name=cdmad", "learner.threshold=0.5"),
    "without weak gradient": (*METHODS["prg"], "learner.weak_gradient=false", "train.batch_stages=[0.5,1]"),
    "supervised": ("learner.name=supervised",),
    "ups": ("learner.name=ups", "model.dropout=0.3"),
}
ON_TABLES = {
    "vime": ("learner.name=vime", "guidance.name=prg"),
    "vime_self": ("learner.name=vime_self",),
}
UPS = (*SURE_UPS, "learner.generations=3", "guidance.name=prg", "model.dropout=0.3")
IN_GENERATIONS = {
    "crest_plus": ("learner.name=fixmatch", "guidance.name=crest_plus", "guidance.generations=3"),
    "ups+prg": UPS,
    "ups+prg, shared": (*UPS, "guidance.shard_bank=true"),
}
SYNCED = {"synchronised batch norm": (*METHODS["prg"], "train.sync_batch_norm=true")}
SYNCED["and without weak gradient"] = (*SYNCED["synchronised batch norm"], "learner.weak_gradient=false")


def config_of(settings: tuple[str, ...], steps: int) -> RunConfig:
    """A run with a perceptron, or with the batch norm of a small network."""
    model = [*TINY, "train.lr=0.1"] if "train.sync_batch_norm=true" in settings else MLP
    if settings in ON_TABLES.values():
        tables = [setting for setting in MLP if not setting.startswith("model.")]
        return configure(dataset="digits_tabular", iterations=steps, settings=[*tables, *settings])
    return configure(dataset="digits", iterations=steps, settings=[*model, *settings])


def trainer_of(settings: tuple[str, ...], steps: int) -> Trainer:
    """A trainer that computes in float64 wherever it would use float32."""
    torch.set_default_dtype(torch.float64)
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    Dropout.forward = lambda _, values: values  # type: ignore[method-assign]  # one process draws its masks differently
    config = config_of(settings, steps)
    data = load_data(config)
    return make_trainer(config, data, make_split(config, data))


def trained(methods: dict[str, tuple[str, ...]], steps: int) -> dict[str, dict[str, Any]]:
    """The loss of each step, and the state at the end."""
    results = {}
    for name, settings in methods.items():
        trainer, losses = trainer_of(settings, steps), []
        for step in range(steps):
            trainer.loader.seek(step)
            trainer.step()
            if trainer.is_refresh_due(step + 1):
                trainer.learner.guidance.refresh()
            losses.append(trainer.meters.means())
            trainer.meters.reset()
        results[name] = {
            "logs": losses,
            "learner": trainer.learner.state_dict(),
            "average": trainer.average.model.state_dict(),
            "random": torch.get_rng_state(),
        }
    return results


def assert_equal_runs(methods: dict[str, tuple[str, ...]], steps: int, folder: Path) -> None:
    (alone,) = in_processes(1, folder / "one", trained, methods, steps)
    first, second = in_processes(2, folder / "two", trained, methods, steps)
    for name in methods:
        one, two, other = alone[name], first[name], second[name]
        for step, (mine, theirs) in enumerate(zip(one["logs"], two["logs"], strict=True)):
            assert mine == pytest.approx(theirs, rel=0, abs=1e-9), (name, step)
        assert two["logs"] == other["logs"], name
        assert torch.equal(one["random"], two["random"]), name
        assert torch.equal(one["random"], other["random"]), name
        for part in ("learner", "average"):
            for key, tensor in one[part].items():
                assert torch.equal(two[part][key], other[part][key]), (name, key)
                if tensor.is_floating_point():
                    torch.testing.assert_close(two[part][key], tensor, rtol=0, atol=1e-9, msg=f"{name} {key}")
                else:
                    assert torch.equal(two[part][key], tensor), (name, key)
        last = one["logs"][-1]
        assert all(last.get(log, 1) > 0 for log in ("mask_rate", "selected_share")), f"{name}: pseudo-labels are used"


def test_two_processes_have_the_losses_and_buffers_of_one_for_four_methods_over_40_steps(tmp_path: Path) -> None:
    assert_equal_runs(METHODS, 40, tmp_path)


@pytest.mark.slow
def test_two_processes_have_the_losses_and_buffers_of_one_for_four_methods_over_200_steps(tmp_path: Path) -> None:
    assert_equal_runs(METHODS, 200, tmp_path)


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_for_all_other_methods_and_synchronised_batch_norm(
    tmp_path: Path,
) -> None:
    assert_equal_runs({**OTHERS, **ON_TABLES, **SYNCED}, 24, tmp_path)


@pytest.mark.slow
def test_processes_that_share_the_bank_train_what_processes_with_whole_banks_train_over_200_steps(
    tmp_path: Path,
) -> None:
    """Logs and state are equal bit for bit."""
    whole = {name: (*METHODS["prg"], f"guidance.name={name}") for name in ("prg", "prg_last")}
    shared = {f"{name}, shared": (*settings, "guidance.shard_bank=true") for name, settings in whole.items()}
    for results in in_processes(2, tmp_path / "two", trained, {**whole, **shared}, 200):
        for name in whole:
            assert_same(results[f"{name}, shared"], results[name])
            assert results[name]["logs"][-1]["guidance/transitions"] > 0, "samples moved"


# ---- checkpoints


def stopped(settings: tuple[str, ...], steps: int, step: int) -> bytes:
    """A checkpoint of a run that was asked to stop, in its last process, after a step."""
    is_asked = distributed.rank() == distributed.world_size() - 1
    notes = Notes(stop_after=step if is_asked else None)
    with pytest.raises(Interrupted):
        train(trainer_of(settings, steps), notes)
    return notes.saved[step]


def continued(settings: tuple[str, ...], steps: int, state: bytes | None) -> tuple[list[dict[str, Any]], bytes]:
    trainer, notes = trainer_of(settings, steps), Notes()
    if state is not None:
        trainer.load_state_dict(loaded(state))
    train(trainer, notes)
    return notes.lines, notes.saved[steps]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "bank"), [(2, 1, "shared"), (1, 2, "whole"), (1, 2, "shared")])
def test_a_checkpoint_moves_between_world_sizes(before: int, after: int, bank: str, tmp_path: Path) -> None:
    settings = (*METHODS["prg"], f"guidance.shard_bank={str(bank == 'shared').lower()}")
    *_, state = in_processes(before, tmp_path / "before", stopped, settings, 30, 13)
    ((lines, end), *_) = in_processes(after, tmp_path / "after", continued, settings, 30, state)
    ((straight_lines, straight_end),) = in_processes(1, tmp_path / "straight", continued, settings, 30, None)
    assert [line["step"] for line in lines] == [20, 30]
    for line, straight in zip(lines, straight_lines[1:], strict=True):
        assert line["test"]["recall"] == straight["test"]["recall"]
        assert line["pseudo"] == straight["pseudo"], "the counts of pseudo-labels moved, too"
        assert line["train"] == pytest.approx(straight["train"], rel=0, abs=1e-9)
    mine, theirs = loaded(end), loaded(straight_end)
    assert torch.equal(mine["random"]["cpu"], theirs["random"]["cpu"])
    for name, tensor in theirs["learner"].items():
        torch.testing.assert_close(mine["learner"][name], tensor, rtol=0, atol=1e-9)
    for name, tensor in theirs["average"].items():
        torch.testing.assert_close(mine["average"][name], tensor, rtol=0, atol=1e-9)


# ---- generations


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_GENERATIONS)
def test_two_processes_select_the_samples_that_one_process_selects_between_generations(
    name: str, tmp_path: Path
) -> None:
    settings = (*IN_GENERATIONS[name], "train.eval_every=6")
    ((lines, end),) = in_processes(1, tmp_path / "one", continued, settings, 18, None)
    for other_lines, other_end in in_processes(2, tmp_path / "two", continued, settings, 18, None):
        assert [line["generation"] for line in other_lines] == [0, 1, 2]
        for line, other in zip(lines, other_lines, strict=True):
            assert line.get("selection") == other.get("selection")
            assert line["train"] == pytest.approx(other["train"], rel=0, abs=1e-9)
        mine, theirs = loaded(end), loaded(other_end)
        assert len(mine["loader"]["selection"]["rows"]) > 0
        assert_same(mine["loader"], theirs["loader"])
        assert_same(mine["random"], theirs["random"])
        for part in ("learner", "average"):
            for key, tensor in mine[part].items():
                torch.testing.assert_close(theirs[part][key], tensor, rtol=0, atol=1e-9, msg=f"{part} {key}")


def relabelled() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the loader and the learner hold after a generation in which the processes predict different classes."""
    trainer = trainer_of(IN_GENERATIONS["ups+prg"], 18)
    noise = torch.randn(10, generator=torch.Generator().manual_seed(distributed.rank()))
    trainer.predict = lambda **_: iter([(torch.arange(30), noise.expand(3, 30, 10) * 9)])  # type: ignore[method-assign]
    trainer.next_generation()
    return trainer.loader.state_dict(), trainer.learner.state_dict()


def test_process_0_decides_which_samples_join_the_labelled_set(tmp_path: Path) -> None:
    """Processors of different types round differently, so two processes may select different samples."""
    ((loader, learner),) = in_processes(1, tmp_path / "one", relabelled)
    for other_loader, other_learner in in_processes(2, tmp_path / "two", relabelled):
        assert_same(other_loader, loader)
        assert_same(other_learner, learner)


# ---- dropout, batch norm, drift


def dropped() -> tuple[Tensor, Tensor]:
    """What dropout leaves of ones, and the state of the generator afterwards."""
    torch.manual_seed(0)
    (layer,) = dropout_layers(0.25)
    return layer(torch.ones(500, 8)), torch.get_rng_state()


def test_processes_have_different_masks_of_dropout_and_equal_generators(tmp_path: Path) -> None:
    (first, state), (second, other_state) = in_processes(2, tmp_path / "two", dropped)
    assert torch.equal(state, other_state)
    for part in (first, second):
        assert part.unique().tolist() == pytest.approx([0, 4 / 3])
        assert float((part == 0).float().mean()) == pytest.approx(0.25, abs=0.03)
    both = ((first == 0) & (second == 0)).float().mean()
    assert float(both) == pytest.approx(0.25**2, abs=0.02), "the masks are independent"


def running_statistics_and_drift() -> tuple[dict[str, Tensor], list[str], str]:
    """The buffers of a model with batch norm per process after some steps, and what is said about a changed buffer."""
    config = configure(dataset="digits", iterations=5, settings=[*TINY, "guidance.name=prg"])
    data = load_data(config)
    trainer = make_trainer(config, data, make_split(config, data))
    train(trainer, Notes())
    buffers = {name: buffer.clone() for name, buffer in trainer.model.named_buffers()}
    trainer.check_equal()
    trainer.learner.guidance.bank[7] = 3 + distributed.rank()
    with pytest.raises(ValueError, match="no longer hold the same state") as error:
        trainer.check_equal()
    return buffers, list(trainer.meters.names), str(error.value)


def test_batch_norm_per_process_leaves_equal_running_statistics_and_drift_is_named(tmp_path: Path) -> None:
    (first, _, message), (second, _, _) = in_processes(2, tmp_path / "two", running_statistics_and_drift)
    assert any("running_mean" in name for name in first)
    for name, buffer in first.items():
        assert torch.equal(buffer, second[name]), name
    assert "after step 5: learner.guidance.bank differ" in message
