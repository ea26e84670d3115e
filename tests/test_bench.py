from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import NamedTuple

import pytest

import mnar.run
from mnar import cli, folder, side_by_side
from mnar.bench import Bench, choose, first_like
from mnar.config import RunConfig
from mnar.evaluate import headline
from mnar.folder import RunRecorder, locked
from mnar.meters import Diverged
from mnar.recipes import RECIPES, configure
from mnar.report import read_metrics
from mnar.side_by_side import steps_done
from mnar.train import Interrupted
from tests.benches import OTHER, RECIPE, SELDOM_SAVED, TINY, Clock, Here, make_up
from tests.test_cli import Outcome, start, stop_as_ctrl_c_does, stop_as_kill_does, wait_for
from tests.test_types_imports import modules

ABSENT = "table1/cifar10-cadr-g20/fixmatch"  # its data set is not on this machine
LONG = 200  # steps: enough to come between
STEPS = 6
Command = Callable[..., Outcome]
Files = dict[str, tuple[bytes, int]]


def nobody(share: float) -> None:
    """Wants to know how far it is."""


def bench_in(
    path: Path, *cells: str, seeds: tuple[int, ...] = (1,), iterations: int = STEPS, settings: tuple[str, ...] = TINY
) -> Bench:
    return Bench(path, cells or (RECIPE, OTHER), seeds=seeds, iterations=iterations, settings=settings)


def files_below(path: Path) -> Files:
    """Contents and times of all that was not there for a moment only."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def metrics_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("metrics.jsonl"))}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, without_report: None) -> None:
    """Train in this process."""
    monkeypatch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())


def train_here(bench: Bench) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())
        patch.setattr(mnar.run, "write_report", lambda *runs, **text: None)
        bench.run(nobody)
    return bench.folder


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_here(bench_in(tmp_path_factory.mktemp("trained") / "out", seeds=(1, 2)))


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """Two recipes with two seeds each, trained; nobody has looked at the results yet."""
    return Path(shutil.copytree(trained_once, tmp_path / "trained"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bench that every disturbed one must equal."""
    path = tmp_path_factory.mktemp("undisturbed")
    return train_here(bench_in(path, iterations=LONG, settings=SELDOM_SAVED))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`mnar bench` and its arguments, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["mnar", "bench", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        return Outcome(code, *capsys.readouterr())

    return run


def arguments_for(
    out: Path, *, seeds: int = 1, iterations: int = STEPS, settings: tuple[str, ...] = TINY
) -> tuple[str, ...]:
    chosen = [part for setting in settings for part in ("--set", setting)]
    return ("--out", str(out), "--seeds", str(seeds), "--iterations", str(iterations), *chosen)


def entries(out: Path) -> dict[str, dict[str, object]]:
    """The cells of results.json by name."""
    return {entry["recipe"]: entry for entry in json.loads((out / "results.json").read_text())["cells"]}


# Which cells


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        ([RECIPE], [RECIPE]),
        ([OTHER, RECIPE, OTHER], [RECIPE, OTHER]),
        (["gm"], [name for name in RECIPES if name.startswith("gm/")]),
        (["gm/"], [name for name in RECIPES if name.startswith("gm/")]),
        (["digits/cadr-g20"], [name for name in RECIPES if name.startswith("digits/cadr-g20/")]),
        (["table1/cifar10-*"], [name for name in RECIPES if name.startswith("table1/cifar10-")]),
        (
            ["digits/*/fixmatch"],
            [name for name in RECIPES if name.startswith("digits/") and name.endswith("/fixmatch")],
        ),
        (["tabular", "gm"], [name for name in RECIPES if name.startswith(("gm/", "tabular/"))]),
        (["*"], list(RECIPES)),
    ],
    ids=lambda value: " ".join(value) if len(value) < 4 else f"{len(value)} of them",
)
def test_cells_are_chosen_by_name_pattern_or_what_stands_before_a_slash_in_the_order_of_the_list(
    patterns: list[str], chosen: list[str]
) -> None:
    assert choose(patterns) == chosen
    assert chosen


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("table1/cifar10-cadr-g20/fixmatch+prgg", "table1/cifar10-cadr-g20/fixmatch+prg"),
        ("tabel1", "table1"),
        ("digits/cadr-g2", "digits/cadr-g20/fixmatch"),
        ("digit", "digits"),
        ("zzzz", "table1"),
        ("", "table1"),
        ("GM", "gm"),
    ],
)
def test_an_unknown_cell_is_refused_with_the_nearest_names(unknown: str, near: str) -> None:
    with pytest.raises(ValueError, match="mnar list recipes") as refusal:
        choose([RECIPE, unknown])
    assert f"no recipe is called {unknown!r}; nearest: " in str(refusal.value)
    assert f"'{near}'" in str(refusal.value)


def test_no_cell_no_seed_and_no_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no recipe was named; `mnar list recipes`"):
        choose([])
    with pytest.raises(ValueError, match="without a seed"):
        bench_in(tmp_path, seeds=())
    for iterations in (0, -3):
        with pytest.raises(ValueError, match=f"iterations is {iterations}; a run has at least one step"):
            bench_in(tmp_path, iterations=iterations)


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_no_time_is_refused_and_nothing_is_written(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give the runs some time"):
        bench_in(tmp_path / "out").run(nobody, minutes=minutes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("zzz", 1, "no recipe is called 'zzz'; nearest: "),
        (f"{RECIPE} --minutes 0", 1, "minutes is 0.0; give the runs some time"),
        (f"{RECIPE} --minutes -2", 1, "minutes is -2.0; give the runs some time"),
        (f"{RECIPE} --minutes nan", 1, "minutes is nan; give the runs some time"),
        (f"{RECIPE} --iterations 0", 2, "--iterations"),
        (f"{RECIPE} --seeds 0", 2, "--seeds"),
        (f"{RECIPE} --processes 0", 2, "--processes"),
        ("", 2, "CELLS"),
        (f"{RECIPE} --set train.nothing=3", 1, "unknown option of train: 'nothing'"),
        (f"{RECIPE} --set nonsense", 1, "cannot read --set 'nonsense'"),
    ],
)
def test_what_a_user_gets_wrong_is_an_error_and_nothing_is_written(
    arguments: str, code: int, message: str, command: Command, tmp_path: Path
) -> None:
    outcome = command(*arguments.split())
    assert outcome.code == code
    assert message in outcome.errors
    assert "Traceback" not in outcome.errors
    assert list(tmp_path.iterdir()) == []


# Which folders


def test_two_recipes_share_a_run_folder_if_and_only_if_their_configurations_are_equal(tmp_path: Path) -> None:
    by_folder, by_config = defaultdict[Path, list[str]](list), defaultdict[str, list[str]](list)
    bench = Bench(tmp_path, ["*"], seeds=[1])
    for name in RECIPES:
        by_folder[bench.folders[name][1]].append(name)
        by_config[configure(recipe=name).to_yaml()].append(name)
    assert sorted(by_folder.values()) == sorted(by_config.values())
    assert bench.configs.keys() == by_folder.keys()
    assert any(len(names) > 1 for names in by_folder.values())


@pytest.mark.parametrize(
    "settings",
    [
        ["train.batch_labeled=32"],
        ["guidance.name=prg"],
        ["learner.name=remixmatch"],
        ["dataset.name=digits"],
        ["model.name=mlp", "train.iterations=7"],
    ],
    ids=" ".join,
)
def test_recipes_that_share_a_run_folder_have_equal_configurations_whatever_is_set(settings: list[str]) -> None:
    shared = [name for name in RECIPES if first_like(name) != name]
    assert shared
    for name in shared:
        ours, first = (configure(recipe=each, settings=settings) for each in (name, first_like(name)))
        assert ours == first, name


def test_a_cell_that_several_tables_have_is_one_run_with_every_seed(tmp_path: Path) -> None:
    cell = "cifar10-cadr-g20/fixmatch+prg"
    names = [f"table1/{cell}", f"gm/{cell}", f"ablation/{cell}-steps-1"]
    bench = Bench(tmp_path, names, seeds=[1, 2])
    assert len(bench.configs) == 2
    for name in names:
        assert bench.folders[name] == {seed: tmp_path / f"runs/table1/{cell}/seed-{seed}" for seed in (1, 2)}
    assert [config.seed for config in bench.configs.values()] == [1, 2]
    alone = Bench(tmp_path, names[1:2], seeds=[1])
    assert alone.folders[names[1]][1] == bench.folders[names[0]][1], "whatever else was named"
    path, config = next(iter(bench.configs.items()))
    make_up(path, config, [0.5])
    assert [cell.results[0].accuracy_final for cell in bench.cells()] == [0.5] * 3


# What is trained, and what it comes to


def test_every_cell_is_trained_with_every_seed_and_its_results_are_the_headlines_of_its_runs(trained: Path) -> None:
    cells = bench_in(trained, seeds=(1, 2)).cells()
    assert [cell.name for cell in cells] == [RECIPE, OTHER]
    for cell in cells:
        assert [result.seed for result in cell.results] == [1, 2]
        assert (cell.missing, cell.failures) == ("", {})
        for result in cell.results:
            scores = headline(read_metrics(cell.folders[result.seed]))
            assert result.is_done
            assert (result.step, result.iterations) == (STEPS, STEPS)
            for figure in ("accuracy_median_last_20", "accuracy_final", "accuracy_best_on_test", "geometric_mean"):
                assert getattr(result, figure) == scores[figure]
    assert len(set(metrics_below(trained).values())) == 4, "seeds and methods differ"


def test_again_nothing_is_trained_no_file_of_a_run_changes_and_the_results_are_the_same(
    trained: Path, command: Command, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("new_run", "resume_run"):
        monkeypatch.setattr(side_by_side, what, lambda *arguments, **options: pytest.fail("trained"))
    first = command(RECIPE, OTHER, *arguments_for(trained, seeds=2))
    assert first.code == 0, first.errors
    before = files_below(trained / "runs")
    results = {file.name: file.read_bytes() for file in trained.glob("results.*")}
    assert len(results) == 4
    again = command(RECIPE, OTHER, *arguments_for(trained, seeds=2))
    assert (again.code, again.errors) == (0, "")
    assert again.output.splitlines()[1:] == first.output.splitlines()[1:]
    assert files_below(trained / "runs") == before
    assert {file.name: file.read_bytes() for file in trained.glob("results.*")} == results


def test_progress_ends_at_all_of_it_also_where_nothing_was_missing(trained: Path, here: None) -> None:
    shares = list[float]()
    bench_in(trained, seeds=(1, 2)).run(shares.append)
    assert shares[-1:] == [1.0]


def test_show_prints_what_a_bench_does_and_writes_nothing(trained: Path, command: Command, here: None) -> None:
    before = files_below(trained)
    shown = command(RECIPE, OTHER, *arguments_for(trained, seeds=2), "--show")
    assert (shown.code, shown.errors) == (0, "")
    assert files_below(trained) == before
    benched = command(RECIPE, OTHER, *arguments_for(trained, seeds=2))
    assert set(shown.output.splitlines()) <= set(benched.output.splitlines())
    nothing = command(RECIPE, *arguments_for(trained / "nothing"), "--show")
    assert (nothing.code, nothing.errors) == (0, f"{RECIPE}: seed 1 not begun\n")
    assert files_below(trained / "runs") == {name.removeprefix("runs/"): file for name, file in before.items()}


def test_more_seeds_train_only_the_new_ones(trained: Path, here: None) -> None:
    before = files_below(trained / "runs")
    bench = bench_in(trained, RECIPE, seeds=(1, 2, 3))
    assert bench.run(nobody) == 2, "were done already"
    after = files_below(trained / "runs")
    assert {name: after[name] for name in before} == before
    assert all("seed-3" in name for name in after.keys() - before.keys())
    assert [result.seed for result in bench.cells()[0].counted] == [1, 2, 3]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"settings": {}}', b'{"settings": {}, "result": {"seed": 1}}'],
    ids=["empty", "cut off", "a list", "null", "not text", "no result", "half a result"],
)
def test_a_damaged_result_is_made_again(damaged: bytes, trained: Path, here: None) -> None:
    bench = bench_in(trained, RECIPE)
    cells = bench.cells()
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    whole = kept.read_bytes()
    with_our_settings = json.dumps(json.loads(whole) | {"result": {"seed": 1}}).encode()
    for content in (damaged, with_our_settings):
        kept.write_bytes(content)
        assert bench.cells() == cells
        bench.run(nobody)
        assert kept.read_bytes() == whole
        assert bench.cells() == cells


def test_a_result_of_other_settings_is_not_taken_for_ours(trained: Path) -> None:
    bench = bench_in(trained, RECIPE)
    cells = bench.cells()
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    entry = json.loads(kept.read_text())
    entry["settings"]["train.iterations"] = 9
    entry["result"]["accuracy_final"] = 0.123
    kept.write_text(json.dumps(entry))
    assert bench.cells() == cells


def test_a_run_that_was_removed_is_trained_again_and_its_result_is_the_new_one(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path, RECIPE)
    (path,) = bench.configs
    for accuracy in (0.5, 0.7):  # as a newer version would come to something else

        def new_run(config: RunConfig, path: Path, *, until: float | None, accuracy: float = accuracy) -> None:
            make_up(path, config, [accuracy])

        monkeypatch.setattr(side_by_side, "new_run", new_run)
        bench.run(nobody)
        assert bench.cells()[0].results[0].accuracy_final == accuracy
        shutil.rmtree(path)
        assert bench.cells()[0].results == ()


def test_other_iterations_in_the_same_folder_are_refused_before_anything_is_trained(
    trained: Path, command: Command, here: None
) -> None:
    before = files_below(trained)
    new = "digits/cadr-g20/fixmatch+cadr"  # would be trained first, were it not for the others
    for more in ((), ("--show",), ()):
        outcome = command(new, RECIPE, *arguments_for(trained, iterations=9), *more)
        assert outcome.code == 1
        assert "seed-1 holds a run with other settings (train.iterations: 6 and 9); choose another --out" in (
            outcome.errors
        )
        assert files_below(trained) == before


def test_a_bench_that_is_refused_loses_no_reason(trained: Path, command: Command, here: None) -> None:
    missing = ("--data", trained / "nowhere")
    assert command(ABSENT, RECIPE, *arguments_for(trained), *missing).code == 1
    assert command(ABSENT, RECIPE, *arguments_for(trained, iterations=9), *missing).code == 1
    shown = command(ABSENT, RECIPE, *arguments_for(trained), "--show")
    assert "data set 'cifar10' is not in" in shown.errors


# Cells that fail


def test_a_data_set_that_is_not_there_is_shown_with_what_builds_it_and_does_not_stop_the_rest(
    command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = command(ABSENT, RECIPE, *arguments_for(out), "--data", tmp_path / "nowhere")
    assert outcome.code == 1
    assert f"{ABSENT}: seed 1 failed" in outcome.errors
    assert f"failed: {ABSENT}: data set 'cifar10' is not in {tmp_path / 'nowhere'}" in outcome.errors
    assert "to build it, unpack cifar-10-python.tar.gz" in outcome.errors
    cells = entries(out)
    assert (cells[ABSENT]["n"], cells[RECIPE]["n"]) == (0, 1)
    for kind in ("json", "md", "html"):
        assert "cifar-10-python.tar.gz" in (out / f"results.{kind}").read_text()
    shown = command(ABSENT, RECIPE, *arguments_for(out), "--show")
    assert (shown.code, shown.errors) == (1, outcome.errors)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Diverged("a loss is not a number"), "a loss is not a number"),
        (RuntimeError("CUDA is lost\nand so on\nfor pages"), "CUDA is lost"),
        (MemoryError(), "MemoryError"),
        (KeyError("name"), "'name'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_run_that_raises_is_shown_with_its_reason_and_tried_again_the_next_time(
    error: Exception, reason: str, command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def new_run(config: RunConfig, path: Path, *, until: float | None) -> None:
        if config.guidance.name == "none":
            raise error
        mnar.run.new_run(config, path, until=until)

    with monkeypatch.context() as patch:
        patch.setattr(side_by_side, "new_run", new_run)
        outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert outcome.errors == f"{RECIPE}: seed 1 failed\nfailed: {RECIPE}: {reason}\n"
    cells = entries(out)
    assert (cells[RECIPE]["n"], cells[RECIPE]["failures"]) == (0, {"1": reason})
    assert (cells[OTHER]["n"], cells[OTHER]["failures"]) == (1, {})

    again = command(RECIPE, OTHER, *arguments_for(out))
    assert (again.code, again.errors) == (0, "")
    assert list(out.rglob("*.failed")) == []
    assert {name: (entry["n"], entry["failures"]) for name, entry in entries(out).items()} == {
        RECIPE: (1, {}),
        OTHER: (1, {}),
    }


def test_a_setting_that_does_not_fit_one_cell_does_not_stop_the_rest(
    command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = command(RECIPE, OTHER, *arguments_for(out), "--set", "guidance.alpha=2")  # RECIPE has no guidance
    assert outcome.code == 1
    assert "unknown option of guidance none: 'alpha'" in outcome.errors
    assert entries(out)[OTHER]["n"] == 1


def test_a_run_that_failed_after_its_model_was_written_is_no_failure_for_ever(
    command: Command, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def write_report(*runs: object, **text: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mnar.run, "write_report", write_report)
        assert command(RECIPE, *arguments_for(out)).code == 1
    again = command(RECIPE, *arguments_for(out))
    assert (again.code, again.errors) == (0, "")


# Folders that were left half-written


@pytest.mark.parametrize(
    "left",
    [(), (".lock",), ("config.yaml.part",), (".lock", "config.yaml.part")],
    ids=lambda left: " ".join(left) or "empty",
)
def test_a_folder_whose_run_was_killed_before_it_began_is_trained_as_if_nothing_were_there(
    left: tuple[str, ...], trained: Path, here: None, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path / "out", RECIPE)
    path = bench.folders[RECIPE][1]
    path.mkdir(parents=True)
    for name in left:
        (path / name).write_text("dataset:\n  na")
    assert bench.cells()[0].missing == "seed 1 not begun"
    bench.run(nobody)
    cell = bench.cells()[0]
    assert (cell.missing, cell.failures) == ("", {})
    first = trained / path.relative_to(bench.folder)
    assert (path / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


def stop_at(step: int, path: Path, config: RunConfig) -> None:
    """Leave a run folder as a stop after some steps does."""
    looks = iter([False] * (step - 1) + [True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRecorder, "stop_requested", property(lambda recorder: next(looks)))
        with pytest.raises(Interrupted, match=f"stopped at step {step} "):
            mnar.run.new_run(config, path)


@pytest.mark.parametrize("left", ['{"step": 4, "te', '{"step": 4', "\0" * 100], ids=["a line", "a step", "zeros"])
def test_a_run_whose_last_line_of_metrics_was_cut_off_goes_on_to_the_same_end(
    left: str, trained: Path, here: None, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path / "out", RECIPE)
    ((path, config),) = bench.configs.items()
    stop_at(3, path, config)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(left)
    cell = bench.cells()[0]
    assert (cell.missing, cell.failures) == ("seed 1 at step 2", {})
    bench.run(nobody)
    assert bench.cells()[0].missing == ""
    first = trained / path.relative_to(bench.folder)
    assert (path / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()


def test_a_run_that_was_saved_before_its_first_evaluation_is_not_called_not_begun(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, RECIPE)
    ((path, config),) = bench.configs.items()
    stop_at(1, path, config)
    assert (path / "state.pt").exists()
    assert "not begun" not in bench.cells()[0].missing


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.yaml", lambda text: text[:100]),
        ("config.yaml", lambda text: b""),
        ("config.yaml", lambda text: b"\x80\xff"),
        ("metrics.jsonl", lambda text: b"}{\n" + text),
        ("state.pt", lambda text: text[:1000]),
        ("environment.json", lambda text: text[:20]),
        ("split.json", lambda text: text[:20]),
    ],
    ids=["config cut off", "config empty", "config not text", "metrics", "state", "environment", "split"],
)
def test_a_damaged_folder_is_shown_with_the_file_and_does_not_stop_the_rest(
    name: str, damage: Callable[[bytes], bytes], command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    stop_at(3, path, config)
    (path / name).write_bytes(damage((path / name).read_bytes()))
    before = (path / name).read_bytes()
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert "Traceback" not in outcome.errors
    assert (entries(out)[OTHER]["n"], entries(out)[OTHER]["failures"]) == (1, {})
    assert (path / name).read_bytes() == before, "whoever looks into it finds it as it was"
    assert f"failed: {RECIPE}: " in outcome.errors
    assert str(path / name) in outcome.errors

    shutil.rmtree(path)
    assert command(RECIPE, OTHER, *arguments_for(out)).code == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "dataset:\n  name: dig"),
        ("config.yaml", "dataset: [\n"),
        ("metrics.jsonl", "}{\n{}\n"),
        ("environment.json", "{"),
        ("split.json", "{"),
    ],
    ids=["config cut off", "config no YAML", "metrics", "environment", "split"],
)
def test_a_run_that_is_done_and_then_damaged_does_not_stop_the_rest(
    name: str, content: str, command: Command, here: None, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    path, config = next(iter(bench_in(out).configs.items()))
    make_up(path, config, [0.5])
    (path / name).write_text(content)
    outcome = command(RECIPE, OTHER, *arguments_for(out))
    assert outcome.code == 1
    assert entries(out)[OTHER]["n"] == 1
    assert entries(out)[RECIPE]["n"] == 0
    assert (path / name).read_text() == content
    assert str(path / name) in outcome.errors


# Time


def test_within_minutes_runs_share_the_time_are_saved_and_end_as_if_undisturbed(
    undisturbed: Path, here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock(tick=0.5)
    monkeypatch.setattr(side_by_side, "time", clock)
    monkeypatch.setattr(folder, "time", clock)
    bench = bench_in(tmp_path, iterations=LONG, settings=SELDOM_SAVED)
    began = clock.now
    bench.run(nobody, minutes=2, num_processes=1)
    assert clock.now - began < 130
    first, second = (cell.results[0] for cell in bench.cells())
    assert not first.is_done
    assert not second.is_done
    assert abs(first.step - second.step) <= 20
    assert first.step >= 60
    for path in bench.configs:
        assert (path / "state.pt").exists()
    for _ in range(5):
        if not any(cell.missing for cell in bench.cells()):
            break
        bench.run(nobody, minutes=2, num_processes=1)
    assert [cell.missing for cell in bench.cells()] == ["", ""]
    assert metrics_below(tmp_path) == metrics_below(undisturbed)


CLOCKS_THAT_CAN_BE_SET = {
    f"time.{name}" for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "mktime", "asctime")
}
FILE_TIMES = {"st_mtime", "st_mtime_ns", "st_ctime", "st_ctime_ns", "st_atime", "st_atime_ns", "getmtime", "getctime"}


def clocks_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "datetime")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            yield f"from {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr in FILE_TIMES:
            yield node.attr
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in CLOCKS_THAT_CAN_BE_SET:
            yield ast.unparse(node)


def test_a_clock_that_is_set_back_changes_nothing_since_nobody_looks_at_it() -> None:
    found = {name: clocks for name, tree in modules().items() if (clocks := set(clocks_in(tree)))}
    assert found.pop("inputs.image_cache", set()) <= FILE_TIMES, "which files are new, not how long anything took"
    assert found == {}
    assert set(clocks_in(ast.parse("import datetime, time\ntime.time()\nx.stat().st_mtime"))) == {
        "datetime",
        "time.time",
        "st_mtime",
    }, "they would be found"


# Several at a time


def test_a_second_bench_on_a_folder_is_refused_with_the_process_that_has_it_and_show_can_look_on(
    trained: Path, command: Command, here: None
) -> None:
    before = files_below(trained / "runs")
    with locked(trained):
        refused = command(RECIPE, OTHER, *arguments_for(trained, seeds=3))
        shown = command(RECIPE, OTHER, *arguments_for(trained, seeds=3), "--show")
    assert refused.code == 1
    assert f"{trained} is in use by process {os.getpid()}; wait for it, or choose another --out" in refused.errors
    assert files_below(trained / "runs") == before
    assert shown.code == 0
    assert f"{RECIPE}: seed 3 not begun" in shown.errors
    assert command(RECIPE, OTHER, *arguments_for(trained, seeds=2)).code == 0, "once the other has gone"


def test_a_second_bench_that_is_refused_leaves_the_results_of_the_first_alone(
    trained: Path, command: Command, here: None
) -> None:
    assert command(RECIPE, OTHER, *arguments_for(trained, seeds=2)).code == 0
    before = files_below(trained)
    with locked(trained):
        assert command("digits/cadr-g20/fixmatch+cadr", *arguments_for(trained)).code == 1
    assert files_below(trained) == before


# Stops and kills


def progress_in(bench: Bench) -> int:
    return sum(steps_done(path, config) for path, config in bench.configs.items())


def test_sigterm_and_ctrl_c_stop_a_bench_at_once_with_results_and_it_goes_on_to_the_same_end(
    undisturbed: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    bench = bench_in(out, iterations=LONG, settings=SELDOM_SAVED)
    arguments = (RECIPE, OTHER, *arguments_for(out, iterations=LONG, settings=SELDOM_SAVED))
    stopped_at = list[float]()

    def stop_at_next_evaluation(stop: Callable[[], None], already: int) -> None:
        wait_for(lambda: progress_in(bench) > already)
        stopped_at.append(time.monotonic())
        stop()

    for num_processes, stop in ((2, stop_as_kill_does), (1, stop_as_ctrl_c_does)):
        threading.Thread(target=stop_at_next_evaluation, args=(stop, progress_in(bench)), daemon=True).start()
        outcome = command(*arguments, "--processes", num_processes)
        assert time.monotonic() - stopped_at[-1] < 5
        assert (outcome.code, outcome.errors) == (130, "stopped; go on with the same command\n")
        assert active_children() == []
        steps = [cell.results[0].step if cell.results else 0 for cell in bench.cells()]
        assert 0 < sum(steps) < 2 * LONG
        written = [run["step"] for name in (RECIPE, OTHER) for run in entries(out)[name]["runs"]]  # type: ignore[attr-defined]
        assert written == [step for step in steps if step]
        assert {file.name for file in out.glob("results.*")} == {
            f"results.{kind}" for kind in ("json", "csv", "md", "html")
        }

    monkeypatch.setattr(side_by_side, "_new_pool", lambda num_processes: Here())
    monkeypatch.setattr(mnar.run, "write_report", lambda *runs, **text: None)
    assert command(*arguments).code == 0
    assert metrics_below(out) == metrics_below(undisturbed)


class Killed(NamedTuple):
    out: Path
    worker: int
    at: float


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith(("Z", "X"))  # ended, though nobody may have asked how


def workers_of(process: int) -> list[int]:
    try:
        children = [
            int(child)
            for path in Path(f"/proc/{process}/task").glob("*/children")
            for child in path.read_text().split()
        ]
        return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


@contextmanager
def killed_when(out: Path, is_time: Callable[[int], list[int]]) -> Iterator[Killed]:
    """Kill a bench as soon as the worker to watch is known; what is left of it is ended in the end."""
    arguments = arguments_for(out, iterations=LONG, settings=SELDOM_SAVED)
    process = start("bench", RECIPE, *arguments, "--processes", "1")
    try:
        wait_for(lambda: is_time(process.pid))
    finally:
        workers = workers_of(process.pid)
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    (worker,) = workers
    try:
        yield Killed(out, worker, time.monotonic())
    finally:
        if is_alive(worker):
            os.kill(worker, signal.SIGKILL)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """A bench that was killed in the middle of its run, and its worker."""
    out = tmp_path_factory.mktemp("killed")
    metrics = out / "runs" / RECIPE / "seed-1/metrics.jsonl"
    with killed_when(
        out, lambda bench: workers_of(bench) if metrics.exists() and metrics.read_bytes() else []
    ) as killed:
        yield killed


@needs_proc
def test_a_killed_bench_goes_on_to_the_same_end_though_its_worker_is_still_saving(
    killed: Killed, undisturbed: Path, here: None
) -> None:
    bench = bench_in(killed.out, RECIPE, iterations=LONG, settings=SELDOM_SAVED)
    assert bench.cells()[0].missing.startswith("seed 1 at step ")
    bench.run(nobody)
    assert (bench.cells()[0].missing, bench.cells()[0].failures) == ("", {})
    assert metrics_below(killed.out / "runs" / RECIPE) == metrics_below(undisturbed / "runs" / RECIPE)


@needs_proc
def test_the_worker_of_a_killed_bench_is_gone_after_a_few_seconds(killed: Killed) -> None:
    wait_for(lambda: not is_alive(killed.worker), seconds=max(0.1, killed.at + 6 - time.monotonic()))


@needs_proc
def test_a_worker_whose_bench_was_killed_while_it_was_starting_is_gone_after_a_few_seconds(tmp_path: Path) -> None:
    with killed_when(tmp_path, workers_of) as killed:
        wait_for(lambda: not is_alive(killed.worker), seconds=8)
