"""Train a configuration into a run folder, and resume it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from mnar import distributed
from mnar.atomic_write import PART, check_writable
from mnar.augment import kind_of, kinds_of
from mnar.config import OWN_DATA, PUBLISHED, RunConfig
from mnar.run.assemble import (
    NUM_CHECKED,
    load_data,
    make_augment,
    make_split,
    make_trainer,
)
from mnar.run.calibration_file import write_network_calibration
from mnar.run.collapse_record import (
    CollapseRecord,
    complete_restart,
    is_restart_due,
    read_collapses,
    record_collapse,
    remedies,
)
from mnar.run.file_names import CONFIG, LOCK, MODEL, PORTFOLIO, PRETRAINING, resume_command
from mnar.run.folder import RunFolder, SplitRecord
from mnar.run.model_file import write_model
from mnar.run.pretraining import load_stage, load_start, pretraining_config, stage_of
from mnar.run.processes import ToldByFirst, check_same, check_shared, led, only_first, together, wait_for_first
from mnar.run.recorder import Display, Follower, RunRecorder
from mnar.run.restore import restore
from mnar.run.split_file import check_same_split, describe_split
from mnar.run.stopping import stopping_on_signals
from mnar.training.collapse import Collapsed
from mnar.training.meters import Diverged
from mnar.training.trainer import Interrupted, Trainer, train
from mnar.types import DataSet, Split

# of a run that was killed before its configuration was written
LEFTOVER_FILES = (LOCK, f"{CONFIG}{PART}", f"{PORTFOLIO}{PART}")
OnFinished = Callable[[Path], None]  # called with the folder of a finished run, e.g. to draw its report


def default_folder(config: RunConfig) -> Path:
    """runs/DATA-PROTOCOL-LEARNER-GUIDANCE-seedN; a user's own data is named by its file or folder.

    A schedule other than the published one stands before the seed.
    """
    root = config.dataset.options.get("root")
    task = root.stem if config.dataset.name == OWN_DATA and root else f"{config.dataset.name}-{config.protocol.name}"
    schedule = "" if config.schedule == PUBLISHED else f"-{config.schedule}"
    return Path("runs") / f"{task}-{config.learner.name}-{config.guidance.full_name}{schedule}-seed{config.seed}"


def check_new_folder(folder: Path) -> None:
    """Refuse a folder in which no run can start: it contains something already, or it cannot be written."""
    _refuse_used(folder)
    check_writable(folder / CONFIG)


def check_run(config: RunConfig, data: DataSet) -> None:
    """Raise the error with which `new_run` would refuse this configuration; train and write nothing."""
    _checked(config, data)


def new_run(
    config: RunConfig,
    folder: Path,
    display: Display | None = None,
    *,
    data: DataSet | None = None,
    until: float | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Train `config` into a new run folder.

    data           the data that `config` names, if the caller has read them already
    until          stop and save when `time.monotonic()` reaches this value
    on_finished    called with the folder of every run that reaches its end, the pretraining stage included
    """

    def prepare() -> tuple[DataSet, Split, Trainer, SplitRecord]:
        check_new_folder(folder)
        loaded = load_data(config) if data is None else data
        rows, trainer = _checked(config, loaded)
        return loaded, rows, trainer, describe_split(config, loaded, rows)

    def begin() -> None:
        _refuse_used(folder)  # another process may have started a run here in the meantime
        files.write_config(config)
        files.write_split(description)

    # Every check of the input happens here, before anything is written.
    data, rows, trainer, description = together(prepare)
    check_same(config, description, first_step=0)
    files, display = RunFolder(folder), _display_of_first(display)
    with led(folder):
        only_first(begin)
        try:
            check_shared(folder, config)
        except ValueError:  # in process 0, which wrote the files; the others raise ToldByFirst
            files.forget_beginning()  # another command can use the folder
            raise
        _pretrain(trainer, config, folder, display, data, until=until, on_finished=on_finished)
        try:
            _train(trainer, data, folder, 0, display, until, on_finished)
        except Restart:
            _train_again(folder, display, data, rows, until=until, on_finished=on_finished)


def resume_run(
    folder: Path,
    display: Display | None = None,
    *,
    root: Path | None = None,
    data: DataSet | None = None,
    settings: Sequence[str] = (),
    until: float | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Resume the run in `folder`, which contains its own configuration.

    root        the place of the data, if they have moved
    settings    options of the engine (`engine.…=…`) that change, e.g. on another machine

    `data`, `until` and `on_finished` are as in `new_run`.
    """
    display, files = _display_of_first(display), RunFolder(folder)

    def read() -> tuple[RunConfig, DataSet, Split]:
        config = files.config().with_engine(settings)
        loaded = load_data(config, root) if data is None else data
        return config, loaded, make_split(config, loaded)

    def prepare() -> tuple[Trainer, SplitRecord]:
        assert data is not None
        description, new_trainer = describe_split(config, data, rows), partial(make_trainer, config, data, rows)
        trainer = restore(config, folder, display, new_trainer, partial(check_same_split, files, description))
        if distributed.rank() == 0:
            files.write_split(description)
        return trainer, description

    def prepare_restart() -> SplitRecord:
        assert data is not None
        description = describe_split(config, data, rows)
        check_same_split(files, description)
        return description

    config, data, rows = together(read)
    with led(folder):
        if is_restart_due(folder):
            check_same(config, together(prepare_restart), first_step=0)
            _train_again(folder, display, data, rows, settings=settings, until=until, on_finished=on_finished)
            return
        trainer, description = together(prepare)
        first_step = int(trainer.steps_done)
        check_same(config, description, first_step=first_step)
        if first_step == 0:
            load_start(trainer, config)
            _pretrain(trainer, config, folder, display, data, settings=settings, until=until, on_finished=on_finished)
        try:
            _train(trainer, data, folder, first_step, display, until, on_finished)
        except Restart:
            _train_again(folder, display, data, rows, settings=settings, until=until, on_finished=on_finished)


def _refuse_used(folder: Path) -> None:
    if (folder / CONFIG).exists() or (folder / PORTFOLIO).exists():
        raise FileExistsError(
            f"{folder} already contains a run; continue it with `{resume_command(folder)}`, or choose another --out"
        )
    if folder.exists() and (not folder.is_dir() or any(entry.name not in LEFTOVER_FILES for entry in folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder; choose another --out")


def _checked(config: RunConfig, data: DataSet) -> tuple[Split, Trainer]:
    """Choose the rows and build the trainer of a new run. Parts and data that do not suit each other are refused."""
    rows = make_split(config, data)
    trainer = make_trainer(config, data, rows)
    _check_views(config, data, rows, trainer)
    load_start(trainer, config)
    return rows, trainer


def _check_views(config: RunConfig, data: DataSet, rows: Split, trainer: Trainer) -> None:
    """Make every view of a few samples, so that unsuitable data are refused now and not in the first step."""
    names = {"id", *kinds_of(trainer.loader.labeled_view), *trainer.learner.views}
    augment = make_augment(config, data, rows if "marginal" in names else None)
    with torch.random.fork_rng(devices=[]):
        views = {name: augment(data.train_x[:NUM_CHECKED], kind_of(name)) for name in names}
    trainer.learner.check_sample(views)


def _pretrain(
    trainer: Trainer,
    config: RunConfig,
    folder: Path,
    display: Display,
    data: DataSet,
    *,
    settings: Sequence[str] = (),
    until: float | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Train the first stage in a separate run inside `folder`, if the run has one."""
    if stage_of(config) is None:
        return
    stage = folder / PRETRAINING
    if not distributed.from_first((stage / MODEL).exists()):
        devices = [trainer.engine.device] if trainer.engine.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):  # pretraining must not change the numbers that the main run draws
                if distributed.from_first((stage / CONFIG).exists()):
                    resume_run(stage, display, data=data, settings=settings, until=until, on_finished=on_finished)
                else:
                    stage_config = pretraining_config(config, trainer.loader.num_unlabeled)
                    new_run(stage_config, stage, display, data=data, until=until, on_finished=on_finished)
        except Interrupted as error:
            stopped = str(error).partition(";")[0]
            raise Interrupted(f"pretraining {stopped}; saved. Continue with: {resume_command(folder)}") from error
        wait_for_first()  # which writes the model
    together(lambda: load_stage(trainer, config, stage))


class Restart(Exception):
    """The run has collapsed, and its configuration says that it starts again with a smaller learning rate."""


def _train_again(
    folder: Path,
    display: Display,
    data: DataSet,
    rows: Split,
    *,
    settings: Sequence[str] = (),
    until: float | None = None,
    on_finished: OnFinished | None = None,
) -> None:
    """Drop the collapsed attempt, and train with a smaller learning rate from the first step."""
    only_first(lambda: complete_restart(folder))
    config, collapse = RunFolder(folder).config().with_engine(settings), read_collapses(folder)[-1]
    display.warning(
        f"{collapse['seen']} after step {collapse['step']} of {config.train.iterations}; the run starts again with a "
        f"learning rate of {config.train.lr:g} instead of {collapse['lr']:g}"
    )
    trainer = make_trainer(config, data, rows)
    load_start(trainer, config)
    _pretrain(trainer, config, folder, display, data, settings=settings, until=until, on_finished=on_finished)
    _train(trainer, data, folder, 0, display, until, on_finished)


def _train(
    trainer: Trainer,
    data: DataSet,
    folder: Path,
    first_step: int,
    display: Display,
    until: float | None,
    on_finished: OnFinished | None,
) -> None:
    with stopping_on_signals(until) as stop:
        recorder: RunRecorder | Follower = Follower(first_step, stop)
        if distributed.rank() == 0:
            recorder = RunRecorder(folder, trainer, data.class_names, first_step, display, stop)
        display.started(RunFolder(folder).config(), folder, first_step)
        for note in data.notes if first_step == 0 else ():
            display.note(note)
        for name in _classes_without_labels(trainer, data):
            display.warning(f"train.validation holds out every label of {name}; choose a smaller share, or 0 for none")
        try:
            train(trainer, recorder)
            if trainer.stopped_early:
                display.note("stopped early: the loss on the held-out labels no longer improved (train.validation)")
        except Diverged as error:
            options, step = trainer.options, int(trainer.steps_done)
            if options.collapse == "restart":
                restarted: CollapseRecord = {"step": step, "lr": options.lr, "seen": str(error), "action": "restarted"}
                only_first(lambda: record_collapse(folder, restarted))
                if distributed.any_of(stop.is_set):
                    stopped = f"stopped at step {step}, where the run would start again with a smaller learning rate"
                    raise Interrupted(f"{stopped}; saved. Continue with: {resume_command(folder)}") from error
                raise Restart from error
            if distributed.rank() > 0:
                raise ToldByFirst from error
            if options.collapse == "fail":
                record_collapse(folder, {"step": step, "lr": options.lr, "seen": str(error), "action": "failed"})
                raise Collapsed(_failure(trainer, data, folder)) from error
            saved = recorder.saved_step
            kept = f"the checkpoint of step {saved} is kept" if saved else "there is no checkpoint yet"
            raise Diverged(
                f"{error} after step {recorder.last_step} in {folder}; {kept}. Start a new run with a lower learning "
                "rate (--set train.lr=0.01 --out ANOTHER), or continue with --set engine.precision=float32"
            ) from error
        except Interrupted as error:
            raise Interrupted(f"{error}; saved. Continue with: {resume_command(folder)}") from error
        except distributed.LostProcess as error:
            saved = recorder.saved_step
            kept = f"the checkpoint of step {saved} is kept" if saved else "there is no checkpoint yet"
            raise distributed.LostProcess(f"{error}; {kept}. Continue with: {resume_command(folder)}") from error
    if distributed.rank() > 0:
        return
    try:
        write_network_calibration(trainer, data, folder)
        if on_finished is not None:
            on_finished(folder)
        write_model(trainer, data, folder)  # last: a run with a model is finished, and nothing is written again
    except OSError as error:
        remedy = f"the training is saved; free some disk space, then run `{resume_command(folder)}`"
        raise OSError(f"could not write the model and the report ({error}); {remedy}") from error


def _display_of_first(display: Display | None) -> Display:
    """The display, if this is process 0; the other processes show nothing."""
    return display if display is not None and distributed.rank() == 0 else Display()


def _failure(trainer: Trainer, data: DataSet, folder: Path) -> str:
    """A message that says in words that the training has failed, what was seen, and what to try."""
    *earlier, last = read_collapses(folder)
    config, counts = RunFolder(folder).config(), trainer.learner.task.labeled_counts.long().tolist()
    side = min(data.train_x.shape[2:]) if data.is_image else None
    rates = [f"{record['lr']:g}" for record in earlier if record["action"] == "restarted"] + [f"{last['lr']:g}"]
    return (
        f"training failed in {folder}: {last['seen']} after step {last['step']} of {config.train.iterations} "
        f"(learning rate {', then '.join(rates)}). No model was written. "
        f"Try {', or '.join(remedies(config, data.class_names, counts, side))}, with another --out"
    )


def _classes_without_labels(trainer: Trainer, data: DataSet) -> list[str]:
    """The classes whose labels are all held out for validation."""
    targets = trainer.learner.task.labeled_targets
    if trainer.best is None or targets is None:
        return []
    return [data.class_names[c] for c in sorted({*trainer.best.y.tolist()} - {*targets.tolist()})]
