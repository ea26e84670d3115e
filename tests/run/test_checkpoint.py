from __future__ import annotations

import errno
import os
import random
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mnar.atomic_write import write_atomically
from mnar.run.checkpoint import DamagedCheckpoint, complete_save, load, previous, save
from tests.support.equality import assert_same
from tests.support.killing import NEVER, Trap, in_a_child, kill_me, was_killed


def make_state(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    meters = {"names": ["loss"], "sums": torch.ones(1), "num_steps": torch.tensor(1), "pseudo_confusion": torch.eye(2)}
    return {
        "steps_done": step,
        "config": "seed: 1\n",
        "model": {"weight": torch.randn(50, 40)},
        "average": {},
        "optimizer": {"state": {}, "param_groups": [{"params": [0]}]},
        "learner": {},
        "meters": meters,
        "random": {"cpu": torch.get_rng_state()},
    }


def save_two(folder: Path) -> Path:
    """Write a checkpoint of step 1 and then one of step 2 into a new folder."""
    folder.mkdir()
    path = folder / "state.pt"
    save(path, make_state(1))
    save(path, make_state(2))
    return path


@pytest.fixture
def two_saved(tmp_path: Path) -> Path:
    """A checkpoint of step 2, with the one of step 1 before it."""
    return save_two(tmp_path / "two")


def flip_a_byte_of_the_weights(path: Path) -> None:
    weights = make_state(2)["model"]["weight"].numpy().tobytes()
    content = bytearray(path.read_bytes())
    place = content.find(weights[:64])
    assert place > 0, "the weights stand in the file as they are"
    content[place + len(weights) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


every_damage = pytest.mark.parametrize("damage", [flip_a_byte_of_the_weights, truncate, empty, fill_with_zeros])


def test_what_was_saved_is_loaded(two_saved: Path) -> None:
    state, problems = load(two_saved)
    assert_same(state, make_state(2))
    assert problems == []
    assert_same(load(previous(two_saved))[0], make_state(1))
    assert sorted(path.name for path in two_saved.parent.iterdir()) == ["state.previous.pt", "state.pt"]


def test_no_checkpoint_is_no_damaged_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"state\.pt"):
        load(tmp_path / "state.pt")


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def save_and_be_killed(path: Path, step: int, count: int) -> bool:
    """Save in a process that is killed at the count-th moment; False when it lived to the end."""

    def save_into_a_trap() -> None:
        Trap(count, kill_me).set(pytest.MonkeyPatch())
        save(path, make_state(step))

    return was_killed(in_a_child(save_into_a_trap))


@pytest.fixture
def moments(two_saved: Path, monkeypatch: pytest.MonkeyPatch) -> range:
    """All moments of a save at which it can be cut off."""
    copy = Path(shutil.copy(two_saved, two_saved.with_name("copy.pt")))
    trap = Trap(NEVER, kill_me)
    with monkeypatch.context() as context:
        trap.set(context)
        save(copy, make_state(3))
    assert trap.moments >= 14, "a file opened, half written, flushed and renamed; the old one moved; the folder flushed"
    return range(1, trap.moments + 1)


def test_kill_9_at_any_moment_of_a_save_leaves_the_old_or_the_new_checkpoint_whole(
    tmp_path: Path, moments: range
) -> None:
    found = set()
    for moment in moments:
        path = tmp_path / f"{moment}.pt"
        save(path, make_state(1))
        save(path, make_state(2))
        assert save_and_be_killed(path, 3, moment)
        state, problems = load(path)
        assert problems == []
        assert_same(state, make_state(state["steps_done"]))
        found.add(state["steps_done"])
        save(path, make_state(4))
        assert_same(load(path)[0], make_state(4))
    assert found == {2, 3}


def test_kill_9_during_the_first_save_leaves_nothing_or_the_new_checkpoint_whole(
    tmp_path: Path, moments: range
) -> None:
    found = set()
    for moment in moments:
        path = tmp_path / f"{moment}.pt"
        killed = save_and_be_killed(path, 1, moment)
        try:
            found.add(load(path)[0]["steps_done"])
        except FileNotFoundError:
            found.add(0)
        if not killed:  # the first save has nothing to move aside, so it has fewer moments
            break
    assert found == {0, 1}


def test_saves_killed_again_and_again_never_go_back(two_saved: Path, moments: range) -> None:
    newest = 2
    random = torch.Generator().manual_seed(0)
    for step in range(3, 60):
        count = int(torch.randint(1, len(moments) + 2, (), generator=random))
        killed = save_and_be_killed(two_saved, step, count)
        state, problems = load(two_saved)
        assert problems == []
        assert_same(state, make_state(state["steps_done"]))
        assert state["steps_done"] in ((newest, step) if killed else (step,))
        newest = state["steps_done"]


def test_a_disk_that_fills_at_any_moment_keeps_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, moments: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moment in moments:
        path = save_two(tmp_path / str(moment))
        with monkeypatch.context() as context:
            Trap(moment, no_space).set(context)
            with pytest.raises(OSError, match="No space left"):
                save(path, make_state(3))
        state, problems = load(path)
        assert problems == []
        assert_same(state, make_state(state["steps_done"]))
        assert state["steps_done"] in (2, 3)
        save(path, make_state(4))
        assert_same(load(path)[0], make_state(4))
        assert {file.name for file in path.parent.iterdir()} == {"state.pt", "state.previous.pt"}


@every_damage
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    two_saved: Path, damage: Callable[[Path], None]
) -> None:
    damage(two_saved)
    state, problems = load(two_saved)
    assert_same(state, make_state(1))
    (problem,) = problems
    assert str(two_saved) in problem
    assert "damaged" in problem


def test_of_300_flipped_bits_none_gives_another_state_without_a_word(two_saved: Path) -> None:
    whole, dice = two_saved.read_bytes(), random.Random(0)
    with zipfile.ZipFile(two_saved) as archive:  # names and sizes of entries are in no checksum
        places = [*range(archive.start_dir, len(whole))]
        for entry in archive.infolist():
            places += range(entry.header_offset, entry.header_offset + 100)
    chosen = [*dice.sample(range(len(whole)), 100), *dice.sample(places, 200)]
    num_found = 0
    for place in chosen:
        content = bytearray(whole)
        content[place] ^= 1 << dice.randrange(8)
        two_saved.write_bytes(content)
        state, problems = load(two_saved)
        assert_same(state, make_state(1 if problems else 2))
        num_found += len(problems)
    assert num_found > 150


@every_damage
def test_two_damaged_checkpoints_are_an_error_that_names_both(two_saved: Path, damage: Callable[[Path], None]) -> None:
    damage(two_saved)
    truncate(previous(two_saved))
    with pytest.raises(DamagedCheckpoint) as error:
        load(two_saved)
    assert str(two_saved) in str(error.value)
    assert str(previous(two_saved)) in str(error.value)
    assert "start a new run" in str(error.value)


def test_a_crash_between_the_two_renames_of_a_save_does_not_lose_the_newest(two_saved: Path) -> None:
    two_saved.rename(two_saved.with_name("state.pt.new"))
    assert_same(load(two_saved)[0], make_state(2))


def test_kill_9_at_any_moment_of_a_save_leaves_no_temporary_file_after_the_next_start(
    tmp_path: Path, moments: range
) -> None:
    for moment in moments:
        path = save_two(tmp_path / str(moment))
        assert save_and_be_killed(path, 3, moment)
        newest = load(path)[0]["steps_done"]
        complete_save(path)
        assert load(path)[0]["steps_done"] == newest
        if newest == 2:  # training repeats the third step
            save(path, make_state(3))
        assert {file.name for file in path.parent.iterdir()} == {"state.pt", "state.previous.pt"}


def test_half_a_temporary_file_is_never_read(two_saved: Path) -> None:
    whole = two_saved.read_bytes()
    for suffix in (".new", ".new.part"):
        two_saved.with_name(two_saved.name + suffix).write_bytes(whole[: len(whole) // 2])
    assert_same(load(two_saved)[0], make_state(2))


class Malicious:
    """A pickle that runs a command when it is loaded as pickles usually are."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)


def test_a_checkpoint_that_carries_code_is_refused_and_the_code_not_run(two_saved: Path, tmp_path: Path) -> None:
    marker = tmp_path / "was_run"
    torch.save({"steps_done": 3, "model": Malicious(marker)}, two_saved)
    state, problems = load(two_saved)
    assert_same(state, make_state(1))
    assert len(problems) == 1
    assert not marker.exists()
    torch.load(two_saved, weights_only=False)
    assert marker.exists(), "the code would have run"


def test_writing_atomically_replaces_text_and_bytes_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for content in ("größer", b"\x00\x01"):
        write_atomically(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), MemoryError()])
def test_what_is_no_damage_is_not_called_damage_and_no_older_checkpoint_is_taken(
    two_saved: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        load(two_saved)


def test_a_write_that_fails_names_the_file_that_it_was_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: no_space())
    with pytest.raises(OSError, match=rf"No space left on device: '{re.escape(str(tmp_path / 'report.html'))}'"):
        write_atomically(tmp_path / "report.html", "text")
