"""`--launcher ray` of predict and relabel: two workers of a real Ray write the bytes that one machine writes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mnar
from mnar.trained.labelling import Pool
from mnar.trained.predict import predict_file
from mnar.trained.relabel import relabel_file
from mnar.trained.workers import make_workers
from tests.support.command import run_here, start, wait_for
from tests.trained.pools import array_pool, csv_pool, image_pool, parquet_pool

pytest.importorskip("ray", reason="needs pip install 'mnar[ray]'")
pytest.importorskip("pyarrow", reason="needs pip install 'mnar[ray]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow]


def write_both(run: Path, source: Path, folder: Path, **options: Any) -> list[str]:
    """Predict and label a pool on one machine and with Ray; compare the files and the counts, and return the notes."""
    model = mnar.load(run)
    workers = make_workers("ray", (), "auto")
    one = predict_file(model, source, folder / "one.csv", probabilities=True, **options)
    many = predict_file(model, source, folder / "many.csv", probabilities=True, workers=workers, **options)
    assert (folder / "many.csv").read_bytes() == (folder / "one.csv").read_bytes()
    assert many.counts.tolist() == one.counts.tolist()
    assert many.num_rows == one.num_rows == one.counts.sum() + sum("damaged" in note for note in one.notes)
    one_relabeled = relabel_file(model, folder / "one-labels.csv", source=source, precision=0.8)
    many_relabeled = relabel_file(model, folder / "many-labels.csv", source=source, precision=0.8, workers=workers)
    assert (folder / "many-labels.csv").read_bytes() == (folder / "one-labels.csv").read_bytes()
    assert many_relabeled.counts.tolist() == one_relabeled.counts.tolist()
    assert many_relabeled.mix.description == one_relabeled.mix.description
    assert [note.partition(" (rows")[0] for note in many.notes] == list(one.notes)
    return list(one.notes)


def test_csv_shards_are_labelled_with_the_bytes_of_one_machine(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    first = shards / "part-1.csv"
    header, *lines = first.read_text().splitlines()
    violet = f"{lines[1].rpartition(',')[0]},violet"
    first.write_text("\n".join([header, lines[0], ",,", violet, *lines[2:]]) + "\n")
    notes = write_both(table_run, shards, tmp_path)
    assert ["'violet'" in note for note in notes] == [False, True]


def test_parquet_shards_are_labelled_with_the_bytes_of_one_machine(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = parquet_pool(table_file, tmp_path)
    write_both(table_run, shards, tmp_path)


def test_one_parquet_file_is_cut_into_pieces_and_labelled_with_the_bytes_of_one_machine(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnar.trained.ray_workers.BLOCKS_PER_PIECE", 1)
    whole, _ = parquet_pool(table_file, tmp_path, copies=140)  # 21,000 rows, three blocks
    write_both(table_run, whole, tmp_path)


@pytest.mark.parametrize(("run", "kind"), [("digits_run", "npz"), ("network_run", "npy")])
def test_shards_of_images_are_labelled_with_the_bytes_of_one_machine(
    cluster: str, run: str, kind: str, digits_file: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    _, shards = array_pool(digits_file, tmp_path, kind)
    write_both(request.getfixturevalue(run), shards, tmp_path)


def test_folders_of_images_are_decoded_by_the_workers_with_the_bytes_of_one_machine(
    cluster: str, photos_run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path: the workers look for it where the command was started."""
    pool = image_pool(photos, tmp_path)
    monkeypatch.chdir(tmp_path)
    write_both(photos_run, Path(pool.name), tmp_path)


@contextmanager
def at_row(num_rows: int, action: Callable[[], None]) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function that performs an action once when this number of rows is finished."""
    done_rows: list[int] = []

    def on_rows(done: int, total: int | None) -> None:
        if done >= num_rows and not done_rows:
            done_rows.append(done)
            action()

    yield on_rows
    assert done_rows, "the command ended before the action"


def labelling_processes() -> list[int]:
    """The processes of Ray workers that label pieces."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if "ray::" in command and "MapWorker" in command:
                found.append(int(folder.name))
    return found


def test_the_pieces_of_a_killed_worker_are_labelled_again_with_the_same_bytes(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path, copies=2000)  # 60,000 rows per shard, which take more than a second
    model, killed = mnar.load(table_run), list[int]()
    predict_file(model, shards, tmp_path / "one.csv")

    def kill_one() -> None:
        wait_for(labelling_processes, seconds=60)
        killed.extend(labelling_processes()[:1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    with at_row(1, killer.start) as on_rows:
        predict_file(model, shards, tmp_path / "many.csv", workers=make_workers("ray", (), "auto"), on_rows=on_rows)
    killer.join(60)
    assert killed, "no worker was killed"
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


def test_a_piece_that_ends_its_worker_each_time_is_an_error_and_not_repeated_for_ever(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly:
        shares = None
        counts_shape = (1,)

        def __call__(self, block: Any, probs: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("mnar.trained.ray_workers.MOST_LOSSES", 1)
    whole, _ = csv_pool(table_file, tmp_path)
    model, workers, pool = mnar.load(table_run), make_workers("ray", (), "auto"), Pool(whole)
    with workers.opened(model, pool):
        labelled = workers.labelled(model, pool, model.open(whole), 0, Deadly())
        with pytest.raises(
            ValueError, match=r"workers were lost while they labelled .*pool\.csv from row 1 on, perhaps"
        ):
            list(labelled)


@pytest.mark.parametrize("first", ["ray", "local"])
def test_one_machine_continues_what_ray_began_and_ray_what_one_machine_began(
    cluster: str, first: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    model, out = mnar.load(table_run), tmp_path / "out.csv"
    predict_file(model, shards, tmp_path / "straight.csv")

    def stop(done: int, total: int | None) -> None:
        if done >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_file(model, shards, out, on_rows=stop, workers=make_workers(first, (), "auto"))
    second, seen = "local" if first == "ray" else "ray", list[int]()
    workers = make_workers(second, (), "auto")
    predict_file(model, shards, out, on_rows=lambda done, total: seen.append(done), workers=workers)
    assert seen == [90, 120, 150]
    assert out.read_bytes() == (tmp_path / "straight.csv").read_bytes()


# --- bad input ---


def test_a_bad_cell_in_a_shard_is_the_error_of_one_machine(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    path = shards / "part-3.csv"
    path.write_text(path.read_text().replace(path.read_text().splitlines()[4].split(",")[0], "heavy"))
    messages = []
    for launcher in ("local", "ray"):
        workers = make_workers(launcher, (), "auto")
        with pytest.raises(ValueError, match=r"part-3\.csv, line 5: 'weight' is 'heavy'") as error:
            predict_file(mnar.load(table_run), shards, tmp_path / f"{launcher}.csv", workers=workers)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_shard_with_another_column_is_named_before_the_work(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    (shards / "part-2.csv").write_text("weight,length,colour,size\n1,2,red,3\n")
    with pytest.raises(ValueError, match=r"part-2\.csv has the column 'size', but part-0\.csv does not"):
        predict_file(mnar.load(table_run), shards, tmp_path / "out.csv", workers=make_workers("ray", (), "auto"))
    assert not list(tmp_path.glob("out.csv*"))


def test_a_worker_that_sees_other_files_is_found_before_the_work(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process sees another size of the pool than the workers."""
    from mnar.bench.launchers import ray_files

    _, shards = csv_pool(table_file, tmp_path)
    size = ray_files._size
    monkeypatch.setattr(ray_files, "_size", lambda path: size(path) + (path == shards))
    with pytest.raises(ValueError, match=r"does not see .*pool as this machine does; put the run and the pool on a"):
        predict_file(mnar.load(table_run), shards, tmp_path / "out.csv", workers=make_workers("ray", (), "auto"))
    assert not list(tmp_path.glob("out.csv*"))


def test_workers_that_need_more_than_every_node_has_are_refused(
    cluster: str, table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    workers = make_workers("ray", ["num_cpus=64"], "auto")
    with pytest.raises(ValueError, match=r"a worker needs 64 CPU, and no node .* or --device cpu"):
        predict_file(mnar.load(table_run), shards, tmp_path / "out.csv", workers=workers)


def test_a_gpu_with_a_number_is_refused(cluster: str) -> None:
    with pytest.raises(ValueError, match="the cluster chooses the GPU of each worker; use --device cuda"):
        make_workers("ray", (), "cuda:1")


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from mnar.trained import ray_workers

    monkeypatch.setattr(ray_workers, "find_spec", lambda name: None if name == "pandas" else name)
    with pytest.raises(ValueError, match=r"needs the package pandas; install it with pip install 'mnar\[ray\]'"):
        make_workers("ray", (), "auto")


def test_the_commands_take_the_address_of_the_cluster_and_print_what_one_machine_prints(
    cluster: str,
    table_run: Path,
    table_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, shards = csv_pool(table_file, tmp_path)
    for command in (("predict", str(table_run), str(shards)), ("relabel", str(table_run), "--pool", str(shards))):
        one = run_here(capsys, monkeypatch, *command, "--out", tmp_path / "out.csv")
        content = (tmp_path / "out.csv").read_bytes()
        (tmp_path / "out.csv").unlink()
        options = ("--launcher", "ray", "--launcher-option", f"address={cluster}")
        with start(*command, "--out", str(tmp_path / "out.csv"), *options) as process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert (tmp_path / "out.csv").read_bytes() == content
        (tmp_path / "out.csv").unlink()
        assert below_the_bar(output) == below_the_bar(one.output)
        assert "warning" not in errors


def below_the_bar(output: str) -> str:
    """The table and the sentences below it, without spaces, because the width of the terminal may differ."""
    return "".join(output.partition("┏")[2].split())


def test_an_address_where_no_ray_answers_is_an_error_with_a_remedy(
    table_run: Path, table_file: Path, tmp_path: Path
) -> None:
    """In a process of its own, because this process is already connected."""
    options = ("--out", str(tmp_path / "out.csv"), "--launcher", "ray", "--launcher-option", "address=127.0.0.1:1")
    with start("predict", str(table_run), str(table_file), *options) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Ray at 127.0.0.1:1 does not answer" in " ".join(errors.split())
    assert not list(tmp_path.glob("out.csv*"))
