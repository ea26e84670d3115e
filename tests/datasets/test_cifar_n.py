import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mnar.config import RunConfig
from mnar.datasets import cifar10n_agreement, cifar100n_agreement
from mnar.protocols import as_labeled, hold_out, split
from mnar.recipes import RECIPES, configure
from mnar.run import new_run, resume_run
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.run.split_file import describe_split
from mnar.training.trainer import Interrupted
from mnar.types import DataSet, Selection, Split
from tests.datasets.test_cifar import write_batch
from tests.support.equality import assert_same_run
from tests.support.watching import Watching

Arrays = dict[str, Any]
UNLABELED, LEFT_OUT = -1, -2
TINY = (
    "engine.device=cpu",
    "protocol.num_labels=20",
    "model.depth=10",
    "model.width=1",
    "train.batch_labeled=4",
    "train.batch_unlabeled=8",
    "train.eval_every=1",
)


def write_cifar10n(folder: Path, **other: Any) -> Arrays:
    """Write fifty images and the labels of three annotators, who mostly agree, and then mostly on a wrong label."""
    (folder / "cifar-10-batches-py").mkdir()
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    batches = [write_batch(folder / "cifar-10-batches-py" / name, "labels", 10, 10) for name in names]
    truth = np.array([label for _, labels in batches[:5] for label in labels])
    rng = np.random.default_rng(0)
    one = np.where(rng.random(len(truth)) < 0.7, (truth + 1) % 10, truth)
    two, three = (np.where(rng.random(len(truth)) < 0.2, (one + 3) % 10, one) for _ in range(2))
    arrays = {"clean_label": truth, "random_label1": one, "random_label2": two, "random_label3": three, **other}
    (folder / "cifar-n").mkdir(exist_ok=True)
    np.savez(folder / "cifar-n" / "CIFAR-10_human.npz", **{key: of for key, of in arrays.items() if of is not None})
    return arrays


def tiny(folder: Path, *settings: str) -> RunConfig:
    recipe = "agreement/cifar10n/fixmatch+prg"
    return configure(recipe=recipe, data=str(folder), iterations=4, settings=[*TINY, *settings])


def test_an_image_has_the_label_on_which_three_annotators_agree_right_or_wrong_and_its_true_label(
    tmp_path: Path,
) -> None:
    arrays = write_cifar10n(tmp_path)
    data = cifar10n_agreement(tmp_path)
    given = zip(*(arrays[f"random_label{annotator}"].tolist() for annotator in (1, 2, 3)), strict=True)
    assert data.labels.tolist() == [labels[0] if len(set(labels)) == 1 else -1 for labels in given]
    assert data.train_y.tolist() == arrays["clean_label"].tolist()
    is_labeled = data.labels >= 0
    assert 0 < is_labeled.sum() < len(is_labeled)
    assert (data.labels != data.train_y)[is_labeled].any()


def test_an_image_of_cifar100n_has_a_label_if_its_one_annotator_gave_the_true_label(
    tmp_path: Path,
) -> None:
    for folder in ("cifar-100-python", "cifar-n"):
        (tmp_path / folder).mkdir()
    _, truth = write_batch(tmp_path / "cifar-100-python" / "train", "fine_labels", 6, 100)
    write_batch(tmp_path / "cifar-100-python" / "test", "fine_labels", 2, 100)
    given = [truth[0], (truth[1] + 1) % 100, *truth[2:5], (truth[5] + 50) % 100]
    np.savez(tmp_path / "cifar-n" / "CIFAR-100_human.npz", clean_label=truth, noisy_label=given)
    data = cifar100n_agreement(tmp_path)
    assert data.labels.tolist() == [truth[0], -1, *truth[2:5], -1]
    assert data.train_y.tolist() == truth


def test_a_missing_label_file_is_an_error_with_its_path_and_the_way_to_make_it(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    lost = tmp_path / "cifar-n" / "CIFAR-10_human.npz"
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=rf"(?s)cifar10n_agreement.*--data.*see docs/human_labels\.md.*{lost}"):
        cifar10n_agreement(tmp_path)
    assert (Path(__file__).parents[2] / "docs" / "human_labels.md").exists()


def test_missing_images_are_named(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    (tmp_path / "cifar-10-batches-py").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"'cifar10' is not in .*cifar-10-batches-py/ with data_batch_1"):
        cifar10n_agreement(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"random_label2": None}, r"CIFAR-10_human\.npz has no 'random_label2'"),
        ({"clean_label": np.arange(50) % 10}, "clean_label differs from the labels of the 50 training images of CIFAR"),
        (
            {"clean_label": np.zeros(49, np.int64)},
            "clean_label differs from the labels of the 50 training images of CIFAR",
        ),
        ({"random_label3": np.zeros(49, np.int64)}, "random_label3 has 49 labels for 50 images"),
        ({"random_label1": np.full(50, 10)}, r"random_label1\[0\] is 10; .*0 to 9"),
        ({"random_label1": np.array([print] * 50)}, "not a complete .npz file of plain arrays"),
    ],
)
def test_bad_labels_are_named(tmp_path: Path, other: Arrays, message: str) -> None:
    write_cifar10n(tmp_path, **other)
    with pytest.raises(ValueError, match=message):
        cifar10n_agreement(tmp_path)


@given(
    st.lists(st.integers(LEFT_OUT, 4), min_size=5, max_size=40).filter(lambda y: sum(label >= 0 for label in y) >= 5),
    st.integers(5, 40),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_thinned_labels_are_as_many_as_asked_with_one_of_every_class_and_the_others_join_the_pool(
    targets: list[int], num_labels: int, include_labeled: bool, seed: int
) -> None:
    whole = split(targets, as_labeled(5), seed=seed, include_labeled=True)
    num_labels = min(num_labels, len(whole.labeled_index))
    rows = split(targets, as_labeled(5, num_labels=num_labels), seed=seed, include_labeled=include_labeled)
    assert rows.labeled_index.dtype == rows.unlabeled_index.dtype == np.int64
    assert len(rows.labeled_index) == num_labels
    assert (np.diff(rows.labeled_index) > 0).all()
    assert {targets[row] for row in rows.labeled_index} == {targets[row] for row in whole.labeled_index}
    pool = set(whole.unlabeled_index.tolist()) - (set() if include_labeled else set(rows.labeled_index.tolist()))
    assert rows.unlabeled_index.tolist() == sorted(pool)


def test_thinning_keeps_every_label_equally_often_so_the_class_mix_stays_as_it_is() -> None:
    targets = [0] * 30 + [UNLABELED] * 20 + [1] * 10
    draws = [split(targets, as_labeled(2, num_labels=20), seed=seed).labeled_index for seed in range(1000)]
    often = np.bincount(np.concatenate(draws), minlength=60) / 1000
    assert np.abs(often - np.repeat([1 / 2, 0, 1 / 2], [30, 20, 10])).max() < 0.07  # 4.4 standard deviations


def test_only_a_class_that_would_have_no_label_comes_before_its_turn() -> None:
    targets = np.repeat([0, 1], [999, 1])
    draws = [split(targets, as_labeled(2, num_labels=10), seed=seed).labeled_index for seed in range(50)]
    assert all(999 in rows for rows in draws)


def test_other_seeds_thin_otherwise() -> None:
    targets = np.arange(100) % 2
    first, again, other = (split(targets, as_labeled(2, num_labels=20), seed=seed).labeled_index for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_more_labels_than_there_are_or_fewer_than_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_labels is 4, and 3 samples have a label; ask for as many or fewer"):
        split([0, 1, 1, UNLABELED], as_labeled(2, num_labels=4), seed=0)
    with pytest.raises(ValueError, match="num_labels is 1 for 2 classes"):
        as_labeled(2, num_labels=1)


def assembled(folder: Path, *settings: str) -> tuple[RunConfig, DataSet, Split]:
    config = tiny(folder, *settings)
    data = load_data(config)
    return config, data, make_split(config, data)


def test_training_uses_the_given_labels_and_scores_use_the_true_labels(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    config, data, rows = assembled(tmp_path)
    given, truth = (y[torch.from_numpy(rows.labeled_index)] for y in (data.labels, data.train_y))
    assert (given != truth).any()
    trainer = make_trainer(config, data, rows)
    assert trainer.learner.task.labeled_targets is not None
    assert torch.equal(trainer.learner.task.labeled_targets, given)
    assert torch.equal(trainer.loader.unlabeled_targets, data.train_y[torch.from_numpy(rows.unlabeled_index)])

    for selection in (None, Selection(rows=torch.tensor([0]), labels=torch.tensor([7]))):
        if selection is not None:
            trainer.loader.adopt(selection)
        for step in range(5):
            trainer.loader.seek(step)
            batch = trainer.loader.batch()
            assert torch.equal(batch.y, torch.cat([given, torch.tensor([7])])[batch.x_index])


def test_held_out_labels_are_given_labels_too(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    config, data, rows = assembled(tmp_path, "train.validation=0.5")
    _, held_out = hold_out(rows, 0.5, seed=config.seed)
    given, truth = (y[torch.from_numpy(held_out)] for y in (data.labels, data.train_y))
    assert (given != truth).any()
    best = make_trainer(config, data, rows).best
    assert best is not None
    assert torch.equal(best.y, given)


def test_split_json_counts_the_labels_as_given_and_the_pool_as_it_is_and_knows_other_labels(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    config, data, rows = assembled(tmp_path)
    described = describe_split(config, data, rows)
    assert described["labeled"] == torch.bincount(data.labels[rows.labeled_index], minlength=10).tolist()
    assert described["unlabeled"] == torch.bincount(data.train_y, minlength=10).tolist()
    assert described["unknown"] == 0
    relabeled = data.labels.clone()
    relabeled[rows.labeled_index[0]] = (relabeled[rows.labeled_index[0]] + 1) % 10
    other = describe_split(config, data._replace(given_y=relabeled), rows)
    assert (other["hash"], other["data_hash"] != described["data_hash"]) == (described["hash"], True)


def test_another_seed_keeps_other_labels(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    config, data, rows = assembled(tmp_path)
    sections = config.to_dict()
    again, other = (make_split(RunConfig.from_dict({**sections, "seed": seed}), data) for seed in (config.seed, 7))
    assert again.labeled_index.tolist() == rows.labeled_index.tolist() != other.labeled_index.tolist()


@pytest.mark.usefixtures("without_report")
def test_a_stopped_run_resumed_equals_one_that_was_not(tmp_path: Path) -> None:
    write_cifar10n(tmp_path)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    new_run(tiny(tmp_path), straight)
    with pytest.raises(Interrupted):
        new_run(tiny(tmp_path), stopped, Watching(signal_at=2))
    resume_run(stopped)
    assert_same_run(stopped, straight)
    assert sum(json.loads((straight / "split.json").read_text())["labeled"]) == 20


@pytest.mark.parametrize(("images", "num_labels", "width"), [("cifar10n", 400, 2), ("cifar100n", 800, 8)])
def test_recipes_are_a_few_hundred_labels_and_no_figure_of_any_paper(images: str, num_labels: int, width: int) -> None:
    names = [name for name in RECIPES if name.startswith(f"agreement/{images}/")]
    methods = "supervised fixmatch fixmatch+prg fixmatch+prg_last fixmatch+cadr fixmatch+simpro fixmatch+cdmad"
    assert [name.rpartition("/")[2] for name in names] == methods.split()
    for name in names:
        config = configure(recipe=name)
        assert (config.dataset.name, config.model.options["width"]) == (f"{images}_agreement", width)
        assert config.protocol.options == {"num_labels": num_labels}
        assert RECIPES[name].accuracy is None
