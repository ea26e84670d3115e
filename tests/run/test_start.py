"""Runs whose network does not start from random weights: train.pretraining and train.start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mnar.config import RunConfig
from mnar.recipes import configure
from mnar.run import new_run, read_run, resume_run
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.run.folder import RunFolder
from mnar.run.pretraining import load_start, pretraining_config, stage_of
from mnar.training.trainer import Interrupted
from tests.run.test_pretraining import StoppedAt
from tests.support.equality import assert_same, assert_same_run
from tests.support.tiny import TINY

pytestmark = pytest.mark.usefixtures("without_report")
Settings = Callable[..., RunConfig]


def digits(*settings: str, learner: str | None = None) -> RunConfig:
    return configure(dataset="digits", learner=learner, iterations=12, settings=[*TINY, *settings])


def pretrained(*settings: str) -> RunConfig:
    return digits("train.pretraining=9", *settings)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "straight"
    new_run(pretrained(), folder)
    return folder


def test_the_first_stage_is_a_run_of_simclr_with_the_options_of_the_run(straight: Path) -> None:
    stage = RunFolder(straight / "pretraining").config()
    assert (stage.learner.name, stage.guidance.name, stage.train.iterations) == ("simclr", "none", 9)
    assert (stage.train.pretraining, stage.train.start) == (0, None)
    assert (stage.model, stage.dataset, stage.seed) == (pretrained().model, pretrained().dataset, pretrained().seed)
    run = read_run(straight)
    assert run.pretraining is not None
    assert sum(session["to_step"] - session["from_step"] for session in run.pretraining["sessions"]) == 9


def test_the_batch_of_the_first_stage_has_enough_images_to_compare() -> None:
    few = pretrained("train.batch_unlabeled=16")  # 7 times the labelled batch of 16 are 112
    assert pretraining_config(few, num_unlabeled=1297).train.batch_unlabeled == 112
    assert pretraining_config(few, num_unlabeled=50).train.batch_unlabeled == 50
    assert pretraining_config(pretrained("train.batch_unlabeled=200"), num_unlabeled=1297).train.batch_unlabeled == 200


def test_a_network_with_a_first_stage_starts_with_its_weights_and_a_new_head(straight: Path) -> None:
    config = digits(f"train.start={straight / 'pretraining'}")
    data = load_data(config)
    trainer = make_trainer(config, data, make_split(config, data))
    head = trainer.model.head.weight.clone()
    load_start(trainer, config)
    stage = load_file(straight / "pretraining" / "model.safetensors")
    for network in (trainer.model, trainer.average.model):
        assert_same({n: t for n, t in network.state_dict().items() if "head" not in n}, without_head(stage))
    assert torch.equal(trainer.model.head.weight, head)
    assert not torch.equal(trainer.model.head.weight, stage["head.weight"])


def without_head(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}


def test_starting_from_the_first_stage_of_another_run_gives_the_same_run(straight: Path, tmp_path: Path) -> None:
    new_run(digits(f"train.start={straight / 'pretraining'}"), tmp_path / "run")
    assert not (tmp_path / "run" / "pretraining").exists()
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", straight))
    assert_same(mine, theirs)


def test_another_start_gives_another_run(straight: Path, tmp_path: Path) -> None:
    new_run(digits(), tmp_path / "run")
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", straight))
    assert (mine["layers.0.weight"] != theirs["layers.0.weight"]).any()


@pytest.mark.parametrize("step", [4, 8])
def test_a_run_stopped_in_its_first_stage_and_resumed_equals_one_that_was_not(
    straight: Path, tmp_path: Path, step: int
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted, match=rf"pretraining stopped at step {step} of 9; saved\. .*--resume {folder}$"):
        new_run(pretrained(), folder, StoppedAt(step))
    resume_run(folder)
    assert_same_run(folder, straight)
    assert_same_run(folder / "pretraining", straight / "pretraining")


@pytest.mark.parametrize("settings", [("train.pretraining=9",), ()])
def test_only_a_run_with_the_option_has_a_first_stage(settings: tuple[str, ...]) -> None:
    assert stage_of(digits(*settings)) == ("simclr" if settings else None)
    assert stage_of(configure(dataset="digits_tabular")) == "vime_self"


def test_a_start_is_part_of_the_run_so_that_results_name_it(straight: Path, tmp_path: Path) -> None:
    plain, started = digits(), digits(f"train.start={straight / 'pretraining'}")
    assert plain.differences(started) == [f"train.start: None and {straight / 'pretraining'}"]


def refused(config: RunConfig, folder: Path, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        new_run(config, folder)
    assert not folder.exists()


def test_a_start_that_is_not_there_or_does_not_fit_is_refused_before_anything_is_written(
    straight: Path, tmp_path: Path
) -> None:
    refused(digits("train.start=nowhere"), tmp_path / "run", r"no network at .*nowhere; set train\.start to the folder")
    wider = digits(f"train.start={straight}", "model.width=5")
    shapes = r"\(the weights of layers\.0\.weight have the shape \[4, 1, 3, 3\], and \[5, 1, 3, 3\] in this model\)"
    refused(wider, tmp_path / "run", rf"the network in .* does not fit the model {shapes}; .*the same model options")
    two = r"train\.start is '.*' and train\.pretraining is 9, but .* leave one of the two options out"
    with pytest.raises(ValueError, match=two):
        pretrained(f"train.start={straight}")


def test_a_damaged_first_stage_is_named_with_a_remedy(straight: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        new_run(pretrained(), folder, StoppedAt(4))
    (folder / "pretraining" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(
        ValueError, match=r"the network in .* is damaged .*; delete the folder .*pretraining and continue"
    ):
        resume_run(folder)


def test_tables_have_no_first_stage_of_images(tmp_path: Path) -> None:
    config = configure(dataset="digits_tabular", learner="supervised", settings=["train.pretraining=9"])
    refused(config, tmp_path / "run", r"train\.pretraining is 9, which is for images, .*pretraining=0")


@pytest.mark.parametrize("option", ["pretraining=9", "start=somewhere"])
def test_networks_that_follow_each_other_cannot_share_a_start(tmp_path: Path, option: str) -> None:
    config = configure(dataset="digits", guidance="crest", settings=[*TINY, f"train.{option}"])
    refused(config, tmp_path / "run", rf"train\.{option.partition('=')[0]} gives the first weights .* leave train\.")
