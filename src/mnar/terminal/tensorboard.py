"""A run for TensorBoard: the numbers of each evaluation, in the run folder, as event files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mnar.config import RunConfig
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENTS = "tensorboard"  # in the run folder


class TensorBoard:
    """Stands before another display: hands on what it is told, and writes the evaluations. Use as a context manager."""

    class_names: list[str]
    writer: SummaryWriter

    def __init__(self, display: Display) -> None:
        _summary_writer()  # now, and not after the data are loaded: is it installed?
        self.display = display
        self._open_files = ExitStack()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.close()

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None:
        self.class_names = RunFolder(folder).split()["class_names"]
        # What was measured after the checkpoint that the run goes on from will be measured again: show it once.
        writer = _summary_writer()(str(folder / EVENTS), purge_step=first_step + 1)
        self.writer = self._open_files.enter_context(writer)
        self.display.started(config, folder, first_step)

    def stepped(self, step: int) -> None:
        self.display.stepped(step)

    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None:
        self.display.progress(step, rate, means, share)

    def evaluation(self, line: dict[str, Any]) -> None:
        for tag, value in scalars(line, self.class_names).items():
            self.writer.add_scalar(tag, value, line["step"])
        self.writer.flush()
        self.display.evaluation(line)

    def note(self, text: str) -> None:
        self.display.note(text)

    def warning(self, text: str) -> None:
        self.display.warning(text)


def scalars(line: dict[str, Any], class_names: Sequence[str]) -> dict[str, float]:
    """The numbers of one line of metrics.jsonl by their tag; what stands before the slash is a group of charts."""
    test, train = line["test"], line["train"]
    values = {f"test/{name}": test[name] for name in ("accuracy", "geometric_mean", "calibration_error")}
    values |= {f"recall/{name}": recall for name, recall in zip(class_names, test["recall"], strict=True)}
    values |= {f"train/{name}": mean for name, mean in train.items()}
    if "pseudo" in line:
        shares = zip(class_names, line["pseudo"]["share"], strict=True)
        values |= {f"pseudo_label_share/{name}": share for name, share in shares}
    return values


def _summary_writer() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter  # an extra, and a second that only its users wait for
    except ImportError as error:
        raise ValueError("--tensorboard needs the extra: pip install 'mnar[tensorboard]'") from error
    return SummaryWriter
