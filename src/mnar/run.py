"""RunConfig -> an assembled trainer -> training -> a run folder, and on from there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mnar import checkpoint
from mnar.assembly import (
    NUM_CHECKED,
    load_data,
    make_augment,
    make_model,
    make_split,
    make_trainer,
    pretraining_config,
)
from mnar.augment import kind_of
from mnar.config import RunConfig
from mnar.engine import Engine
from mnar.evaluate import scores_on
from mnar.folder import Display, RunRecorder, Silent, locked, read_config, stopping_on_signals
from mnar.meters import Diverged
from mnar.model_file import read_weights, write_model
from mnar.report import read_run, write_report
from mnar.run_files import (
    CONFIG,
    LOCK,
    MODEL,
    PRETRAINING,
    REPORT,
    SPLIT,
    STATE,
    read_metrics,
    resume_command,
)
from mnar.split_file import check_same_split, describe_split
from mnar.train import Interrupted, Trainer, train
from mnar.types import DataSet, Split

LEFT_BY_A_KILL = (LOCK, f"{CONFIG}.part")  # what a run leaves that was killed before it began


def is_own(config: RunConfig) -> bool:
    return config.dataset.name == "own"


def default_folder(config: RunConfig) -> Path:
    """Named after what makes the run; of own data, after where they are."""
    root = config.dataset.options.get("root")
    what = root.stem if is_own(config) and root else f"{config.dataset.name}-{config.protocol.name}"
    return Path("runs") / f"{what}-{config.learner.name}-{config.guidance.full_name}-seed{config.seed}"


def new_run(
    config: RunConfig,
    folder: Path,
    display: Display | None = None,
    *,
    data: DataSet | None = None,
    until: float | None = None,
) -> None:
    """Train `config` into a new run folder.

    `data` are those that it names, if they have been read already. `until`, a time of `time.monotonic()`, is when to
    stop and save as if asked to.
    """
    _refuse_used(folder)
    # All that can be wrong with the input comes out here, before anything is written.
    data = load_data(config) if data is None else data
    rows = make_split(config, data)
    trainer = make_trainer(config, data, rows)
    _check_views(config, data, rows, trainer)
    _take_encoder(trainer, config.learner.options.get("encoder"))
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _refuse_used(folder)  # by another process, meanwhile
        checkpoint.write_atomically(folder / CONFIG, config.to_yaml())
        checkpoint.write_atomically(folder / SPLIT, json.dumps(describe_split(config, data, rows)))
        _pretrain(trainer, config, folder, display, data, until=until)
        _train(trainer, data, folder, 0, display or Silent(), until)


def resume_run(
    folder: Path,
    display: Display | None = None,
    *,
    root: Path | None = None,
    data: DataSet | None = None,
    settings: Sequence[str] = (),
    until: float | None = None,
) -> None:
    """Go on with the run in `folder`, which knows its configuration.

    On another machine, `root` names the data if it has moved, and `settings` may change the engine's options. `data`
    and `until` are as in `new_run`.
    """
    display = display or Silent()
    config = read_config(folder).with_engine(settings)
    data = load_data(config, root) if data is None else data
    rows = make_split(config, data)
    with locked(folder):
        trainer = make_trainer(config, data, rows)
        state = _checkpoint(config, folder, display, first_due=min(config.train.save_every, trainer.generation_end(0)))
        check_same_split(folder, describe_split(config, data, rows))
        first_step = 0 if state is None else int(state["steps_done"])
        if state is not None:
            trainer.load_state_dict(state)
        if first_step == 0:
            _take_encoder(trainer, config.learner.options.get("encoder"))
            _pretrain(trainer, config, folder, display, data, settings=settings, until=until)
        _train(trainer, data, folder, first_step, display, until)


def _classes_without_labels(trainer: Trainer, data: DataSet) -> list[str]:
    """Those whose labels are all held out."""
    targets = trainer.learner.task.labeled_targets
    if trainer.best is None or targets is None:
        return []
    return [data.class_names[c] for c in sorted({*trainer.best.y.tolist()} - {*targets.tolist()})]


def _refuse_used(folder: Path) -> None:
    if (folder / CONFIG).exists():
        raise FileExistsError(
            f"{folder} holds a run already; go on with `{resume_command(folder)}` or choose another --out"
        )
    if folder.exists() and (not folder.is_dir() or any(entry.name not in LEFT_BY_A_KILL for entry in folder.iterdir())):
        raise FileExistsError(f"{folder} is there and is not an empty folder; choose another --out")


def _check_views(config: RunConfig, data: DataSet, rows: Split, trainer: Trainer) -> None:
    """Make each view of some samples: what the data cannot give shows now, not in the first step."""
    names = {"id", trainer.learner.labeled_view, *trainer.learner.views}
    augment = make_augment(config, data, rows if "marginal" in names else None)
    with torch.random.fork_rng(devices=[]):
        views = {name: augment(data.train_x[:NUM_CHECKED], kind_of(name)) for name in names}
    trainer.learner.check_sample(views)


def evaluate_run(folder: Path, *, root: Path | None = None, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Scores of a run's averaged model on its test set, as far as the run has got.

    `root` and `settings` are as in `resume_run`.
    """
    config = read_config(folder).with_engine(settings)
    data, engine = load_data(config, root), Engine(config.engine)
    network, prepare = trained_network(folder, config, data, engine)
    test_y, num_classes = data.test_y.to(engine.device), len(data.class_names)
    scores, confusion = scores_on(network, data.test_x, test_y, prepare, num_classes=num_classes)
    return {**scores, "confusion": confusion.tolist(), "class_names": list(data.class_names)}


def trained_network(
    folder: Path, config: RunConfig, data: DataSet, engine: Engine
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The averaged model of a run, as far as it has got, ready to predict; and what makes its input of samples."""
    model = make_model(config, data)
    try:
        model.load_state_dict(read_weights(folder))
    except FileNotFoundError as error:
        remedy = f"train it further with `{resume_command(folder)}`"
        raise FileNotFoundError(f"{folder} has no model yet, not even a checkpoint; {remedy}") from error
    except (SafetensorError, RuntimeError) as error:
        remedy = f"write it again with `{resume_command(folder)}`"
        raise ValueError(f"the model in {folder} is damaged or of another kind ({error}); {remedy}") from error
    augment = make_augment(config, data).to(engine.device)
    return engine.inference(engine.place(model).eval()), lambda x: augment(x.to(engine.device), "id")


def _pretrain(
    trainer: Trainer,
    config: RunConfig,
    folder: Path,
    display: Display | None,
    data: DataSet,
    *,
    settings: Sequence[str] = (),
    until: float | None = None,
) -> None:
    """Give the model its encoder, where the learner stands on one and none was named: from a run of its own."""
    if trainer.learner.pretrained_by is None or config.learner.options["encoder"]:
        return
    stage = folder / PRETRAINING
    if not (stage / MODEL).exists():
        devices = [trainer.engine.device] if trainer.engine.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):  # the run after it draws the same, resumed or not
                if (stage / CONFIG).exists():
                    resume_run(stage, display, data=data, settings=settings, until=until)
                else:
                    first = pretraining_config(config, trainer.loader.num_unlabeled)
                    new_run(first, stage, display, data=data, until=until)
        except Interrupted as error:
            stopped = str(error).partition(";")[0]
            raise Interrupted(f"pretraining {stopped}; saved. Go on with: {resume_command(folder)}") from error
    _take_encoder(trainer, stage)


def _take_encoder(trainer: Trainer, source: Path | None) -> None:
    """From the model of a run, or of none."""
    if source is None:
        return
    path = source / MODEL if source.is_dir() else source
    if not path.exists():
        raise FileNotFoundError(
            f"no encoder at {path}; set learner.encoder to the folder of a finished vime_self run, or leave it out"
        )
    try:
        trainer.load_encoder(load_file(path))
    except (SafetensorError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the encoder in {path} is damaged or does not fit the model ({reason}); "
            "name a run of vime_self with the same model options"
        ) from error


def _train(
    trainer: Trainer, data: DataSet, folder: Path, first_step: int, display: Display, until: float | None
) -> None:
    with stopping_on_signals(until) as stop:
        recorder = RunRecorder(folder, trainer, data.class_names, first_step, display, stop)
        display.started(read_config(folder), folder, first_step)
        for note in data.notes if first_step == 0 else ():
            display.note(note)
        for name in _classes_without_labels(trainer, data):
            display.warning(f"train.validation holds out every label of {name}; choose a smaller share, or 0 for none")
        try:
            train(trainer, recorder)
            if trainer.stopped_early:
                display.note("stopped early: nothing better came on the labels held out (train.validation)")
        except Diverged as error:
            saved = recorder.saved_step
            kept = f"the checkpoint of step {saved} is kept" if saved else "no checkpoint is there yet"
            raise Diverged(
                f"{error} after step {recorder.last_step} in {folder}; {kept}. Begin a new run with a lower learning "
                "rate (--set train.lr=0.01 --out ANOTHER), or go on with --set engine.precision=float32"
            ) from error
        except Interrupted as error:
            raise Interrupted(f"{error}; saved. Go on with: {resume_command(folder)}") from error
    try:
        write_model(trainer, data, folder)
        run = read_run(folder)
        write_report([run], folder / REPORT, title=f"{run.label} on {run.split['dataset']}")
    except OSError as error:
        remedy = f"the training is saved; free some space, then `{resume_command(folder)}`"
        raise OSError(f"could not write the model and the report ({error}); {remedy}") from error


def _checkpoint(config: RunConfig, folder: Path, display: Display, *, first_due: int) -> dict[str, Any] | None:
    """The newest whole one of this configuration; none if the run was killed before its first, due at that step."""
    try:
        state, problems = checkpoint.load(folder / STATE)
    except FileNotFoundError as error:
        lines = read_metrics(folder)
        if (folder / MODEL).exists() or (lines and lines[-1]["step"] > first_due):
            raise FileNotFoundError(
                f"{folder / STATE} is gone, though the run had got further; put it back, or begin a new run"
            ) from error
        return None  # the run begins again, the same
    for problem in problems:
        display.warning(f"{problem}; going on from the checkpoint of step {state['steps_done']}")
    if "config" not in state:
        raise ValueError(f"{folder / STATE} is not a checkpoint of this program; put back the one that was there")
    differences = RunConfig.from_yaml(state["config"]).differences(config)
    if differences:
        raise ValueError(
            f"{folder / STATE} was made with another configuration: {'; '.join(differences)} "
            f"(checkpoint and {CONFIG}); set {CONFIG} back, or begin a new run"
        )
    return state
