from __future__ import annotations

import json
import os
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
import torch

import mnar.run
import mnar.run.assemble
from mnar.bench import Bench, Cell, choose, first_like, parallel
from mnar.bench import bench as mnar_bench
from mnar.bench.rows import HOW_TO_READ, row
from mnar.config import RunConfig
from mnar.recipes import RECIPES, configure
from mnar.run.folder import RunFolder
from mnar.run.lock import InUse, locked
from mnar.terminal.console import console
from mnar.training.engine import Engine
from mnar.training.headline import FINAL, headline
from mnar.training.options import EngineOptions
from mnar.training.trainer import Interrupted
from tests.bench.benches import (
    ABSENT,
    OTHER,
    RECIPE,
    STEPS,
    TINY,
    Command,
    arguments_for,
    bench_in,
    files_below,
    ignore_progress,
    make_up,
    metrics_below,
    stop_at,
)
from tests.datasets.test_cifar import write_batch

OTHER_ITERATIONS = "a run with other settings (train.iterations: 6 and 9); use the settings of that run"

# The choice of cells


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
def test_cells_are_chosen_by_name_by_pattern_or_by_table_in_the_order_of_the_list(
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
def test_the_error_for_an_unknown_cell_names_the_nearest_recipes(unknown: str, near: str) -> None:
    with pytest.raises(ValueError, match="mnar list recipes") as refusal:
        choose([RECIPE, unknown])
    assert f"no recipe is called {unknown!r}; nearest: " in str(refusal.value)
    assert f"'{near}'" in str(refusal.value)


def test_a_bench_without_cells_seeds_or_steps_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no recipe was named; `mnar list recipes`"):
        choose([])
    with pytest.raises(ValueError, match="no seed was given; choose at least one"):
        bench_in(tmp_path, seeds=())
    for iterations in (0, -3):
        with pytest.raises(ValueError, match=f"iterations is {iterations}; a run has at least one step"):
            bench_in(tmp_path, iterations=iterations)


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_a_time_limit_that_is_not_positive_is_an_error_before_anything_is_written(
    minutes: float, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"minutes is {minutes}; the time must be positive"):
        bench_in(tmp_path / "out").run(ignore_progress, minutes=minutes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("zzz", 1, "no recipe is called 'zzz'; nearest: "),
        (f"{RECIPE} --minutes 0", 1, "minutes is 0.0; the time must be positive"),
        (f"{RECIPE} --minutes -2", 1, "minutes is -2.0; the time must be positive"),
        (f"{RECIPE} --minutes nan", 1, "minutes is nan; the time must be positive"),
        (f"{RECIPE} --iterations 0", 2, "--iterations"),
        (f"{RECIPE} --seeds 0", 2, "--seeds"),
        (f"{RECIPE} --processes 0", 2, "--processes"),
        ("", 1, "no recipe was named; `mnar list recipes` shows them all"),
        ("--show", 1, "there is no bench in runs/bench"),
        (f"{RECIPE} --show --out nope", 1, "there is no bench in nope"),
        (f"{RECIPE} --set train.nothing=3", 1, "unknown option of train: 'nothing'"),
        (f"{RECIPE} --set nonsense", 1, "cannot read --set 'nonsense'"),
    ],
)
def test_wrong_arguments_are_an_error_before_anything_is_written(
    arguments: str, code: int, message: str, command: Command, tmp_path: Path
) -> None:
    outcome = command(*arguments.split())
    assert outcome.code == code
    assert message in outcome.errors
    assert outcome.output == "", "no progress bar before the check"
    assert "Traceback" not in outcome.errors
    assert list(tmp_path.iterdir()) == []


# The folders of the runs


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
def test_recipes_that_share_a_run_folder_have_equal_configurations_with_any_settings(settings: list[str]) -> None:
    shared = [name for name in RECIPES if first_like(name) != name]
    assert shared
    for name in shared:
        ours, first = (configure(recipe=each, settings=settings) for each in (name, first_like(name)))
        assert ours == first, name


def test_a_cell_in_several_tables_is_one_run_per_seed(tmp_path: Path) -> None:
    cell = "cifar10-cadr-g20/fixmatch+prg"
    names = [f"table1/{cell}", f"gm/{cell}", f"ablation/{cell}-steps-1"]
    bench = Bench(tmp_path, names, seeds=[1, 2])
    assert len(bench.configs) == 2
    for name in names:
        assert bench.folders[name] == {seed: tmp_path / f"runs/table1/{cell}/seed-{seed}" for seed in (1, 2)}
    assert [config.seed for config in bench.configs.values()] == [1, 2]
    alone = Bench(tmp_path, names[1:2], seeds=[1])
    assert alone.folders[names[1]][1] == bench.folders[names[0]][1], "the other names do not matter"
    path, config = next(iter(bench.configs.items()))
    make_up(path, config, [0.5])
    assert [cell.results[0].headline[FINAL] for cell in bench.cells()] == [0.5] * 3


# Training and results


def test_every_cell_is_trained_with_every_seed_and_has_the_headlines_of_its_runs(trained: Path) -> None:
    cells = bench_in(trained, seeds=(1, 2)).cells()
    assert [cell.name for cell in cells] == [RECIPE, OTHER]
    for cell in cells:
        assert [result.seed for result in cell.results] == [1, 2]
        assert (cell.missing, cell.failures) == ("", {})
        for result in cell.results:
            assert result.is_done
            assert (result.step, result.iterations) == (STEPS, STEPS)
            files = RunFolder(cell.folders[result.seed])
            assert result.headline == headline(files.evaluations(), files.split()["test"])
    assert len(set(metrics_below(trained).values())) == 4, "seeds and methods differ"


def test_the_same_command_again_trains_nothing_and_gives_the_same_results(
    trained: Path, command: Command, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what in ("new_run", "resume_run"):
        monkeypatch.setattr(parallel, what, lambda *arguments, **options: pytest.fail("trained"))
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


def test_progress_ends_at_1_also_if_all_runs_were_finished_before(trained: Path, here: None) -> None:
    shares = list[float]()
    bench_in(trained, seeds=(1, 2)).run(shares.append)
    assert shares[-1:] == [1.0]


def test_show_prints_the_tables_of_the_bench_and_writes_nothing(trained: Path, command: Command, here: None) -> None:
    before = files_below(trained)
    shown = command(RECIPE, OTHER, *arguments_for(trained, seeds=2), "--show")
    assert (shown.code, shown.errors) == (0, "")
    assert files_below(trained) == before
    benched = command(RECIPE, OTHER, *arguments_for(trained, seeds=2))
    assert set(shown.output.splitlines()) <= set(benched.output.splitlines())


def test_show_without_arguments_shows_all_runs_with_the_settings_they_have(
    trained: Path, command: Command, here: None
) -> None:
    third = "digits/cadr-g20/fixmatch+cadr"
    assert command(third, *arguments_for(trained, iterations=4)).code == 0
    before = files_below(trained)
    shown = command("--show", "--out", trained)
    assert (shown.code, shown.errors) == (0, "")
    assert files_below(trained) == before
    assert "steps: 4, 6 (fewer than in the recipes)" in shown.output
    cells = {cell.name: cell for cell in Bench.existing(trained).cells()}
    assert {name: (len(cell.folders), cell.num_done) for name, cell in cells.items()} == {
        RECIPE: (2, 2),
        OTHER: (2, 2),
        third: (2, 1),
    }
    assert f"{third}: seed 2 not started" in shown.output.splitlines()
    named = command(third, "--show", "--out", trained, "--seeds", 1)
    assert (named.code, named.errors) == (0, "")
    assert row(cells[third])["accuracy"] in named.output
    assert "steps: 4 " in named.output
    assert "not started" not in named.output


def test_show_with_settings_shows_runs_with_other_settings_as_failures(trained: Path, command: Command) -> None:
    for given in (["--iterations", "9"], ["--set", "train.lr=1"]):
        shown = command("--show", "--out", trained, *given)
        assert shown.code == 1
        assert (
            f"failed: {RECIPE}: {trained / 'runs' / RECIPE / 'seed-1'} holds a run with other settings" in shown.output
        )


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        ([], None),
        (["--iterations", "6"], None),
        (["--set", "train.optimizer=muon"], None),
        (["--set", "guidance.name=none", "--set", "train.ema=auto"], None),
        (["--iterations", "9"], "train.iterations: 6 and 9"),
        (["--set", "learner.name=mixmatch"], "learner.name: fixmatch and mixmatch"),
        (["--set", "train.lr=1"], "train.lr: 0.02 and 1.0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_show_with_a_schedule_finds_runs_whose_other_options_are_not_those_of_the_recipe(
    given: list[str], difference: str | None, tmp_path: Path, command: Command, here: None
) -> None:
    # 6 steps instead of 900, and other batches and intervals
    assert command(RECIPE, *arguments_for(tmp_path), "--schedule", "fast").code == 0
    shown = command(RECIPE, "--show", "--out", tmp_path, "--schedule", "fast", *given)
    assert (shown.code, shown.errors) == (0 if difference is None else 1, "")
    if difference is None:
        assert "schedule: fast; steps: 6 (fewer than in the recipes)" in shown.output
        assert "failed" not in shown.output
    else:
        assert f"holds a run with other settings ({difference}" in shown.output


def test_show_with_another_schedule_than_that_of_the_runs_names_both(trained: Path, command: Command) -> None:
    shown = command(RECIPE, "--show", "--out", trained, "--schedule", "fast")
    assert (shown.code, shown.errors) == (1, "")
    assert "holds a run with other settings (schedule: published and fast)" in shown.output


@pytest.mark.parametrize("left", ["seed-x", "seed-1 (copy)", "seed-1.json.part"])
def test_show_ignores_folders_that_are_not_runs(left: str, trained: Path) -> None:
    (trained / "runs" / RECIPE / left).mkdir()
    assert [*Bench.existing(trained).cells()[0].folders] == [1, 2]


def test_show_includes_a_run_that_failed_before_it_wrote_anything(command: Command, here: None, tmp_path: Path) -> None:
    assert command(ABSENT, RECIPE, *arguments_for(tmp_path), "--data", tmp_path / "nowhere").code == 1
    shown = command("--show", "--out", tmp_path)
    assert shown.code == 1
    assert f"failed: {ABSENT}: data set 'cifar10' is not in" in shown.output


@pytest.mark.parametrize("is_terminal", [True, False])
def test_sentences_are_wrapped_at_words_on_a_terminal_only(
    is_terminal: bool, trained: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(console, "_force_terminal", is_terminal)
    monkeypatch.setattr(console, "no_color", True)
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in command("--show", "--out", trained).output.splitlines()]
    assert (max(map(len, lines)) <= 80) is is_terminal
    words = {word for line in lines for word in line.split()}
    assert words >= set(HOW_TO_READ.split())


@pytest.mark.parametrize(("seeds", "said"), [(1, "1 run "), (2, "2 runs ")])
def test_the_progress_bar_shows_the_number_of_runs(
    seeds: int, said: str, trained: Path, command: Command, here: None
) -> None:
    assert command(RECIPE, *arguments_for(trained, seeds=seeds)).output.startswith(said)


def test_more_seeds_train_only_the_new_seeds(trained: Path, here: None) -> None:
    before = files_below(trained / "runs")
    bench = bench_in(trained, RECIPE, seeds=(1, 2, 3))
    bench.run(ignore_progress)
    after = files_below(trained / "runs")
    assert {name: after[name] for name in before} == before
    assert all("seed-3" in name for name in after.keys() - before.keys())
    assert [result.seed for result in bench.cells()[0].counted] == [1, 2, 3]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"settings": {}}', b'{"settings": {}, "result": {"seed": 1}}'],
    ids=["empty", "cut off", "a list", "null", "not text", "no result", "half a result"],
)
def test_a_damaged_result_file_is_written_again(damaged: bytes, trained: Path, here: None) -> None:
    bench = bench_in(trained, RECIPE)
    cells = bench.cells()
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    whole = kept.read_bytes()
    with_our_settings = json.dumps(json.loads(whole) | {"result": {"seed": 1}}).encode()
    for content in (damaged, with_our_settings):
        kept.write_bytes(content)
        assert bench.cells() == cells
        bench.run(ignore_progress)
        assert kept.read_bytes() == whole
        assert bench.cells() == cells


def test_a_result_file_with_a_changed_number_is_written_again_from_the_run(trained: Path, here: None) -> None:
    bench = bench_in(trained, RECIPE)
    cells = bench.cells()
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    whole = kept.read_bytes()
    entries = json.loads(whole)
    entries["result"]["headline"][FINAL] = 0.999
    kept.write_text(json.dumps(entries, indent=1))
    assert bench.cells() == cells
    bench.run(ignore_progress)
    assert kept.read_bytes() == whole


def test_a_result_file_without_a_digest_may_have_been_changed_and_the_run_is_read_instead(trained: Path) -> None:
    """Earlier versions wrote no digest."""
    bench = bench_in(trained, RECIPE)
    straight = bench.cells()[0].results[0].headline[FINAL]
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    entries = json.loads(kept.read_text())
    del entries["digest"]
    entries["result"]["headline"][FINAL] = 0.999
    kept.write_text(json.dumps(entries, indent=1))
    assert bench.cells()[0].results[0].headline[FINAL] == straight != 0.999


def test_a_bench_removes_what_a_killed_bench_has_left_beside_its_runs(trained: Path, here: None) -> None:
    bench = bench_in(trained, RECIPE)
    path = bench.folders[RECIPE][1]
    left = [path.with_suffix(".json.part"), path.with_suffix(".failed.part")]
    for file in left:
        file.write_text("half")
    bench.run(ignore_progress)
    assert not any(file.exists() for file in left)


def test_a_result_file_of_other_settings_is_ignored(trained: Path) -> None:
    bench = bench_in(trained, RECIPE)
    cells = bench.cells()
    kept = bench.folders[RECIPE][1].with_suffix(".json")
    entry = json.loads(kept.read_text())
    entry["settings"]["train.iterations"] = 9
    entry["result"]["accuracy_final"] = 0.123
    kept.write_text(json.dumps(entry))
    assert bench.cells() == cells


def test_a_removed_run_is_trained_again_and_gets_a_new_result(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = bench_in(tmp_path, RECIPE)
    (path,) = bench.configs
    for accuracy in (0.5, 0.7):  # a newer version may give another result

        def new_run(config: RunConfig, path: Path, accuracy: float = accuracy, **options: object) -> None:
            make_up(path, config, [accuracy])

        monkeypatch.setattr(parallel, "new_run", new_run)
        bench.run(ignore_progress)
        assert bench.cells()[0].results[0].headline[FINAL] == accuracy
        shutil.rmtree(path)
        assert bench.cells()[0].results == ()


def test_other_iterations_in_the_same_folder_are_an_error_before_any_run_is_trained(
    trained: Path, command: Command, here: None
) -> None:
    before = files_below(trained)
    new = "digits/cadr-g20/fixmatch+cadr"  # not trained yet
    for _ in range(2):
        outcome = command(new, RECIPE, *arguments_for(trained, iterations=9))
        assert outcome.code == 1
        assert f"seed-1 holds {OTHER_ITERATIONS}" in outcome.errors
        assert files_below(trained) == before


def test_show_with_other_iterations_shows_a_failure_for_that_cell_and_the_results_of_the_others(
    trained: Path, command: Command, here: None
) -> None:
    shutil.rmtree(trained / "runs" / OTHER)
    assert command(OTHER, *arguments_for(trained, iterations=9)).code == 0
    before = files_below(trained)
    outcome = command(RECIPE, OTHER, *arguments_for(trained, iterations=9), "--show")
    assert (outcome.code, outcome.errors) == (1, "")
    path = trained / "runs" / RECIPE / "seed-1"
    assert f"failed: {RECIPE}: {path} holds {OTHER_ITERATIONS}" in outcome.output
    cells = {cell.name: cell for cell in bench_in(trained, iterations=9).cells()}
    assert row(cells[OTHER])["accuracy"] in outcome.output
    assert (cells[RECIPE].missing, cells[OTHER].missing) == ("seed 1 failed", "")
    assert files_below(trained) == before


def test_a_bench_with_wrong_settings_keeps_the_reasons_of_earlier_failures(
    trained: Path, command: Command, here: None
) -> None:
    missing = ("--data", trained / "nowhere")
    assert command(ABSENT, RECIPE, *arguments_for(trained), *missing).code == 1
    assert command(ABSENT, RECIPE, *arguments_for(trained, iterations=9), *missing).code == 1
    shown = command(ABSENT, RECIPE, *arguments_for(trained), "--show")
    assert "data set 'cifar10' is not in" in shown.output


# Several benches at the same time


def test_a_second_bench_in_a_folder_is_an_error_that_names_the_process_and_show_still_works(
    trained: Path, command: Command, here: None
) -> None:
    before = files_below(trained / "runs")
    with locked(trained):
        refused = command(RECIPE, OTHER, *arguments_for(trained, seeds=3))
        shown = command(RECIPE, OTHER, *arguments_for(trained, seeds=3), "--show")
    assert refused.code == 1
    assert f"{trained} is in use by process {os.getpid()}; wait until that process ends, or choose" in refused.errors
    assert refused.output == "", "no progress bar before the check"
    assert files_below(trained / "runs") == before
    assert shown.code == 0
    assert f"{RECIPE}: seed 3 not started" in shown.output.splitlines()
    assert command(RECIPE, OTHER, *arguments_for(trained, seeds=2)).code == 0, "after the other bench has ended"


def test_a_second_bench_in_a_folder_does_not_change_the_results_of_the_first(
    trained: Path, command: Command, here: None
) -> None:
    assert command(RECIPE, OTHER, *arguments_for(trained, seeds=2)).code == 0
    before = files_below(trained)
    with locked(trained):
        assert command("digits/cadr-g20/fixmatch+cadr", *arguments_for(trained)).code == 1
    assert files_below(trained) == before


def test_on_change_gets_the_present_cells_while_the_folder_is_locked(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench, missing = bench_in(tmp_path), list[list[str]]()

    def on_change(cells: list[Cell]) -> None:
        missing.append([cell.missing for cell in cells])
        with pytest.raises(InUse), locked(tmp_path):
            pass

    def stopped_run(config: RunConfig, path: Path, **options: object) -> None:
        stop_at(3, path, config)
        raise Interrupted("stopped at step 3")

    with monkeypatch.context() as patch:
        patch.setattr(parallel, "new_run", stopped_run)
        with pytest.raises(Interrupted):
            bench.run(ignore_progress, num_processes=1, on_change=on_change)
    assert bench.run(ignore_progress, num_processes=1, on_change=on_change) == bench.cells()
    assert missing[0] == ["seed 1 at step 2", "seed 1 not started"]
    assert missing[-1] == ["", ""]
    assert ["", "seed 1 not started"] in missing, "whenever a run is finished"


# Another folder, another machine


def test_an_unfinished_run_resumes_with_the_data_folder_and_the_engine_of_the_new_command(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "data/cifar-10-batches-py").mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        write_batch(old / "data/cifar-10-batches-py" / name, "labels", 40, 10)

    def bench_at(place: Path, *engine: str) -> Bench:
        settings = (*TINY, "protocol.gamma=2", "model.depth=10", "model.width=1", "train.batch_unlabeled=16", *engine)
        return Bench(place / "out", [ABSENT], seeds=[1], iterations=4, data=str(place / "data"), settings=settings)

    ((path, config),) = bench_at(old).configs.items()
    mnar.run.new_run(config, tmp_path / "straight")
    stop_at(3, path, config)
    old.rename(new)
    engines = list[EngineOptions]()

    def engine_of(options: EngineOptions) -> Engine:
        engines.append(options)
        return Engine(options)

    monkeypatch.setattr(mnar.run.assemble, "Engine", engine_of)
    moved = bench_at(new, "engine.precision=float32", "engine.compile=false")
    moved.run(ignore_progress)
    (cell,) = moved.cells()
    assert (cell.missing, cell.failures) == ("", {})
    assert engines == [EngineOptions(device="cpu", precision="float32", compile=False)]
    (metrics,) = metrics_below(new).values()
    assert metrics == (tmp_path / "straight/metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("has_gpu", "settings", "num_processes"),
    [
        (True, [], 1),
        (True, ["engine.device=cuda:1"], 1),
        (True, ["engine.device=cpu"], 7),
        (False, [], 7),
    ],
)
def test_a_gpu_trains_one_run_at_a_time_and_a_cpu_one_run_per_core(
    has_gpu: bool, settings: list[str], num_processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    used = list[int]()

    def run_all(configs: dict[Path, RunConfig], *arguments: object, num_processes: int, **options: object) -> None:
        used.append(num_processes)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(parallel, "num_cores", lambda: 7)
    monkeypatch.setattr(mnar_bench, "run_all", run_all)
    Bench(tmp_path, [RECIPE], seeds=range(1, 10), settings=settings).run(ignore_progress)
    assert used == [num_processes]
