from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mnar import distributed
from mnar.augment import Augment
from mnar.datasets.user_files.arrays import tensor_of
from mnar.training.loader import STEPS_AHEAD, Loader, fits_on_device
from mnar.types import DataSet, Selection, Split
from tests.support.equality import assert_same
from tests.support.little_memory import run_with_little_memory

NUM_ROWS, NUM_CLASSES = 60, 6
LABELED = np.array([3, 8, 11, 40], dtype=np.int64)
UNLABELED = np.arange(10, NUM_ROWS, dtype=np.int64)


def numbered_data() -> DataSet:
    """Every pixel of row i is i, and its class is i modulo the number of classes."""
    rows = torch.arange(NUM_ROWS)
    images = rows.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    names = tuple(str(c) for c in range(NUM_CLASSES))
    return DataSet(images, rows % NUM_CLASSES, images, rows % NUM_CLASSES, names, (0.5,), (0.25,))


def marked(images: Tensor, view: str) -> Tensor:
    """A view that can be told from others: the row number and a constant of the view's."""
    return images.float() + {"id": 0.0, "weak": 0.25, "strong": 0.5}[view]


def make_loader(
    *,
    seed: int = 1,
    batch_labeled: int = 6,
    batch_unlabeled: int = 20,
    views: tuple[str, ...] = ("weak", "strong"),
    labeled_view: str = "weak",
    augment: Callable[[Tensor, str], Tensor] = marked,
    data: DataSet | None = None,
    on_device: bool | None = None,
    device: str = "cpu",
) -> Loader:
    return Loader(
        data or numbered_data(),
        Split(LABELED, UNLABELED),
        augment,
        views=views,
        labeled_view=labeled_view,
        batch_labeled=batch_labeled,
        batch_unlabeled=batch_unlabeled,
        seed=seed,
        device=torch.device(device),
        on_device=on_device,
    )


def test_rows_of_a_step_are_a_function_of_seed_and_step_alone() -> None:
    steps = [0, STEPS_AHEAD - 1, STEPS_AHEAD, 3, 5 * STEPS_AHEAD + 7, 3, 0]  # back and forth across blocks
    loader = make_loader()
    for step in steps:
        loader.seek(step)
        batch, (x_index, u_index) = loader.batch(), make_loader().indices(step)
        assert batch.x_index.tolist() == x_index.tolist()
        assert batch.u_index.tolist() == u_index.tolist()


def test_other_seeds_and_other_steps_draw_other_rows() -> None:
    drawn = {tuple(make_loader(seed=seed).indices(step)[1]) for seed in range(5) for step in range(20)}
    assert len(drawn) == 100


def test_batch_holds_the_images_and_targets_of_its_rows() -> None:
    loader = make_loader()
    for step in range(5):
        loader.seek(step)
        batch = loader.batch()
        x_rows, u_rows = LABELED[batch.x_index], UNLABELED[batch.u_index]
        assert batch.x[:, 0, 0, 0].tolist() == (x_rows + 0.25).tolist()
        assert batch.y.tolist() == (x_rows % NUM_CLASSES).tolist()
        assert set(batch.u) == {"weak", "strong"}
        assert batch.u["weak"][:, 0, 0, 0].tolist() == (u_rows + 0.25).tolist()
        assert batch.u["strong"][:, 0, 0, 0].tolist() == (u_rows + 0.5).tolist()
        assert loader.unlabeled_targets[batch.u_index].tolist() == (u_rows % NUM_CLASSES).tolist()
        assert loader.batch_targets.tolist() == (u_rows % NUM_CLASSES).tolist()


def test_labelled_images_come_in_the_view_asked_for() -> None:
    loader = make_loader(labeled_view="strong")
    loader.seek(0)
    batch = loader.batch()
    assert batch.x[:, 0, 0, 0].tolist() == (LABELED[batch.x_index] + 0.5).tolist()


def noisy(images: Tensor, view: str) -> Tensor:
    assert view in ("weak", "strong"), "one of these is compiled, and no other"
    return images.float() + torch.rand(len(images), 1, 1, 1)


def test_a_numbered_view_is_another_draw_of_the_one_it_is_named_after() -> None:
    loader = make_loader(views=("weak", "weak2", "weak10"), augment=noisy)
    loader.seek(0)
    batch = loader.batch()
    first, second, third = (batch.u[view].flatten(1)[:, 0] for view in ("weak", "weak2", "weak10"))
    rows = torch.from_numpy(UNLABELED)[batch.u_index]
    for drawn in (first, second, third):
        assert torch.equal(drawn.floor().long(), rows), "the same images"
    assert not (first == second).any()
    assert not (second == third).any()


def test_unlabelled_rows_are_distinct_within_a_batch_even_when_it_is_the_whole_set() -> None:
    for size in (20, len(UNLABELED)):
        loader = make_loader(batch_unlabeled=size)
        for step in range(20):
            assert len(set(loader.indices(step)[1])) == size


def test_rows_are_drawn_uniformly() -> None:
    loader, steps = make_loader(), 2000
    x_count, u_count = np.zeros(len(LABELED)), np.zeros(len(UNLABELED))
    for step in range(steps):
        x_index, u_index = loader.indices(step)
        np.add.at(x_count, x_index, 1)
        np.add.at(u_count, u_index, 1)
    for count, draws in ((x_count, 6 * steps), (u_count, 20 * steps)):
        share = 1 / len(count)
        deviation = np.sqrt(draws * share * (1 - share))
        assert np.abs(count - draws * share).max() < 5 * deviation


def test_batches_are_independent_so_a_sample_can_come_again_at_once() -> None:
    loader, steps = make_loader(), 2000
    batches = [set(loader.indices(step)[1]) for step in range(steps)]
    shared = [len(a & b) for a, b in pairwise(batches)]
    assert np.mean(shared) == pytest.approx(20 * 20 / len(UNLABELED), abs=0.15)  # hypergeometric, sd 1.7 a pair


def test_index_tensors_keep_their_address_so_a_captured_graph_finds_them() -> None:
    loader = make_loader()
    addresses = set()
    for step in (0, 1, STEPS_AHEAD):
        loader.seek(step)
        batch = loader.batch()
        addresses.add((batch.x_index.data_ptr(), batch.u_index.data_ptr()))
    assert len(addresses) == 1


def test_a_learner_without_views_gets_the_same_labelled_rows_and_no_unlabelled_ones() -> None:
    blind, seeing = make_loader(views=(), batch_unlabeled=len(UNLABELED) + 1), make_loader()
    for step in (0, STEPS_AHEAD):
        blind.seek(step)
        batch = blind.batch()
        assert batch.u == {}
        assert batch.u_index.shape == (0,)
        assert batch.x_index.tolist() == seeing.indices(step)[0].tolist()


def test_two_processes_share_the_batch_that_one_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = make_loader()
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    loaders = []
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        loaders.append(make_loader())
    for step in (0, 9):
        batches = []
        for loader in loaders:
            loader.seek(step)
            batches.append(loader.batch())
        x_index, u_index = alone.indices(step)
        assert sorted(torch.cat([batch.x_index for batch in batches]).tolist()) == sorted(x_index)
        assert sorted(torch.cat([batch.u_index for batch in batches]).tolist()) == sorted(u_index)


def test_a_batch_larger_than_the_unlabelled_set_is_refused_with_the_largest_possible() -> None:
    with pytest.raises(ValueError, match=r"batch_unlabeled is 51, but there are 50 .* choose at most 50"):
        make_loader(batch_unlabeled=51)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (-1, 5)])
def test_empty_batches_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_loader(batch_labeled=sizes[0], batch_unlabeled=sizes[1])


# ---- what a generation hands to the next

SELECTED = Selection(torch.tensor([4, 30]), torch.tensor([5, 0]), torch.tensor([1, 7, 9, 20, 21, 40, 41, 42]))


def seen(loader: Loader, steps: range = range(50)) -> tuple[set[tuple[int, int]], set[int]]:
    """Images and targets of the labelled batches, and rows of the unlabelled ones."""
    labeled: set[tuple[int, int]] = set()
    unlabeled: set[int] = set()
    for step in steps:
        loader.seek(step)
        batch = loader.batch()
        labeled |= {(int(x), int(y)) for x, y in zip(batch.x[:, 0, 0, 0], batch.y, strict=True)}
        unlabeled |= set(batch.u_index.tolist())
    return labeled, unlabeled


GIVEN = {(row, row % NUM_CLASSES) for row in LABELED.tolist()}


def test_what_is_adopted_joins_the_labelled_set_as_what_it_was_selected_for() -> None:
    loader = make_loader()
    assert seen(loader) == (GIVEN, set(range(len(UNLABELED))))
    loader.adopt(SELECTED)
    labeled, unlabeled = seen(loader)
    assert labeled == GIVEN | {(UNLABELED[4], 5), (UNLABELED[30], 0)}, "with their new labels, not their own"
    assert unlabeled == set(SELECTED.pool.tolist())  # type: ignore[union-attr]
    assert loader.num_labeled == len(LABELED) + 2


def test_a_second_selection_takes_the_place_of_the_first() -> None:
    loader = make_loader()
    loader.adopt(SELECTED)
    loader.adopt(Selection(torch.tensor([8]), torch.tensor([3]), torch.tensor([0, 1])))
    labeled, unlabeled = seen(loader)
    assert (labeled, unlabeled) == (GIVEN | {(UNLABELED[8], 3)}, {0, 1})


def test_an_adopted_selection_counts_from_the_next_step_though_rows_were_drawn_ahead() -> None:
    late, early = make_loader(), make_loader()
    late.seek(0)
    late.adopt(SELECTED)
    early.adopt(SELECTED)
    assert seen(late, range(1, 4)) == seen(early, range(1, 4))


@pytest.mark.parametrize("pool", [None, torch.tensor([], dtype=torch.int64)], ids=["none", "empty"])
def test_without_a_pool_unlabelled_batches_are_drawn_from_all(pool: Tensor | None) -> None:
    loader = make_loader()
    loader.adopt(SELECTED._replace(pool=pool))
    assert seen(loader)[1] == set(range(len(UNLABELED)))
    for step in range(5):
        assert loader.indices(step)[1].tolist() == make_loader().indices(step)[1].tolist()


def test_nothing_selected_leaves_the_labelled_set_as_given() -> None:
    loader, nobody = make_loader(), torch.tensor([], dtype=torch.int64)
    loader.adopt(Selection(nobody, nobody))
    assert seen(loader)[0] == GIVEN


def test_a_pool_smaller_than_the_batch_repeats_and_a_larger_one_does_not() -> None:
    loader = make_loader(batch_unlabeled=8)
    loader.adopt(SELECTED)
    assert all(len(set(loader.indices(step)[1])) == 8 for step in range(20)), "as large as the batch"
    loader.adopt(SELECTED._replace(pool=torch.tensor([3, 11])))
    for step in range(20):
        _, u_index = loader.indices(step)
        assert len(u_index) == 8
        assert set(u_index) <= {3, 11}


def test_index_tensors_keep_their_address_through_a_selection() -> None:
    loader = make_loader()
    loader.seek(0)
    before = loader.batch()
    loader.adopt(SELECTED)
    loader.seek(1)
    after = loader.batch()
    assert (before.x_index.data_ptr(), before.u_index.data_ptr()) == (
        after.x_index.data_ptr(),
        after.u_index.data_ptr(),
    )


@pytest.mark.parametrize("batch", [1, 7, 50, 64])
def test_the_whole_unlabelled_set_comes_once_and_in_order_whatever_was_adopted(batch: int) -> None:
    loader = make_loader()
    loader.adopt(SELECTED)
    parts = list(loader.unlabeled("id", batch=batch))
    assert max(len(rows) for rows, _ in parts) <= batch
    assert torch.cat([rows for rows, _ in parts]).tolist() == list(range(len(UNLABELED)))
    assert torch.cat([images for _, images in parts])[:, 0, 0, 0].tolist() == UNLABELED.tolist()


@pytest.mark.parametrize("selection", [None, SELECTED, SELECTED._replace(pool=None)], ids=["none", "all", "no pool"])
def test_a_loader_with_the_state_of_another_draws_the_same(selection: Selection | None) -> None:
    loader, resumed = make_loader(), make_loader()
    if selection is not None:
        loader.adopt(selection)
    resumed.seek(0)
    resumed.load_state_dict(loader.state_dict())
    for step in (1, STEPS_AHEAD):
        for each in (loader, resumed):
            each.seek(step)
        assert_same(resumed.batch()._asdict(), loader.batch()._asdict())
    assert_same(resumed.state_dict(), loader.state_dict())


# ---- samples that stay on the host


def random_images() -> DataSet:
    images = torch.randint(256, (NUM_ROWS, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return numbered_data()._replace(train_x=images)


def mapped(data: DataSet, folder: Path) -> DataSet:
    np.save(folder / "x.npy", data.train_x.numpy())
    return data._replace(train_x=tensor_of(np.load(folder / "x.npy", mmap_mode="r")))


def everything(loader: Loader) -> list[object]:
    """All that a training gets from a loader: batches across blocks and back, before and after a selection."""
    torch.manual_seed(3)
    got: list[object] = []
    for selection in (None, SELECTED, SELECTED._replace(pool=None)):
        if selection is not None:
            loader.adopt(selection)
        for step in (0, 1, 2, STEPS_AHEAD - 1, STEPS_AHEAD, 7 * STEPS_AHEAD + 3, 1):
            loader.seek(step)
            got.append({name: _copied(value) for name, value in loader.batch()._asdict().items()})
        got += [(rows, images.clone()) for rows, images in loader.unlabeled("id", batch=7, labeled=False)]
    return [*got, torch.get_rng_state()]


def _copied(value: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    return value.cpu().clone() if isinstance(value, Tensor) else {view: x.cpu().clone() for view, x in value.items()}


@pytest.mark.parametrize("views", [("weak", "strong", "strong2"), ()], ids=["views", "no views"])
def test_batches_are_the_same_to_the_bit_wherever_the_samples_are(tmp_path: Path, views: tuple[str, ...]) -> None:
    augment = Augment((0.5,) * 3, (0.25,) * 3)
    in_memory, in_a_file = random_images(), mapped(random_images(), tmp_path)
    expected = everything(make_loader(augment=augment, views=views, data=in_memory, on_device=True))
    for data, on_device in ((in_memory, False), (in_a_file, True), (in_a_file, False)):
        assert_same(everything(make_loader(augment=augment, views=views, data=data, on_device=on_device)), expected)


def test_two_processes_stage_the_samples_of_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    loader = make_loader(on_device=False)
    for step in range(3):
        loader.seek(step)
        batch = loader.batch()
        assert batch.x[:, 0, 0, 0].tolist() == (LABELED[batch.x_index] + 0.25).tolist()
        assert batch.u["weak"][:, 0, 0, 0].tolist() == (UNLABELED[batch.u_index] + 0.25).tolist()


def test_staged_samples_keep_their_address_so_a_captured_graph_finds_them() -> None:
    addresses = set()

    def noting(images: Tensor, view: str) -> Tensor:
        addresses.add((len(images), images.data_ptr()))
        return images.clone()

    loader = make_loader(augment=noting, on_device=False)
    for step in (0, 1, 2, STEPS_AHEAD):
        loader.seek(step)
        loader.batch()
    assert len(addresses) == 2, "one for labelled samples, one for unlabelled ones"


@pytest.mark.parametrize(("num_bytes", "expected"), [(499, True), (500, True), (501, False)])
def test_samples_go_to_a_gpu_if_they_take_no_more_than_half_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert fits_on_device(num_bytes, torch.device("cuda", 0)) is expected
    assert fits_on_device(num_bytes, torch.device("cpu"))


@pytest.mark.parametrize("on_device", [True, False])
def test_batches_of_a_mapped_file_take_less_memory_than_the_file(tmp_path: Path, on_device: bool) -> None:
    code = f"""
labels, rows = torch.arange(len(images)) % 2, np.arange(len(images))
data = DataSet(images, labels, images[:2], labels[:2], ("a", "b"), (0.5,) * 3, (0.25,) * 3)
loader = Loader(data, Split(rows[:10], rows), lambda x, view: x.float(), views=("weak",), batch_labeled=64,
                batch_unlabeled=448, seed=1, device=torch.device("cpu"), on_device={on_device})
for step in range(70):
    loader.seek(step)
    assert loader.batch().u["weak"].shape == (448, 3, 32, 32)
assert sum(len(rows) for rows, _ in loader.unlabeled("id", batch=100)) == len(images)
"""
    run_with_little_memory(code, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_staged_batches_on_a_gpu_are_those_of_samples_on_it() -> None:
    """Many steps without a pause: a buffer that is filled again before it was copied would show."""
    expected, got = (make_loader(on_device=on_device, device="cuda") for on_device in (True, False))
    for step in range(500):
        for loader in (expected, got):
            loader.seek(step)
        assert_same(_copied(got.batch().u), _copied(expected.batch().u))
    staged = make_loader(on_device=False, device="cuda", batch_unlabeled=len(UNLABELED))
    sums = []
    for step in range(500):  # nothing here waits for the device
        staged.seek(step)
        sums.append(staged.batch().u["strong"].sum())
    assert len(set(torch.stack(sums).tolist())) == 1, "every batch is the whole set, in another order"
