"""Write the metrics of each evaluation as TensorBoard event files into the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mnar.config import RunConfig
from mnar.run.folder import RunFolder
from mnar.run.recorder import Display
from mnar.training.metrics import METRICS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVENTS = "tensorboard"  # in the run folder


class TensorBoard(Display):
    """A `Display` that writes evaluations for TensorBoard and passes every call on to another display.

    Use it as a context manager.
    """

    class_names: list[str]
    test_counts: list[int]
    writer: SummaryWriter

    def __init__(self, display: Display) -> None:
        _summary_writer()  # fails now, before the data are loaded, if TensorBoard is not installed
        self.display = display
        self._open_files = ExitStack()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_files.close()

    def started(self, config: RunConfig, folder: Path, first_step: int) -> None:
        split = RunFolder(folder).split()
        self.class_names, self.test_counts = split["class_names"], split["test"]
        # Evaluations after the checkpoint will be repeated, so TensorBoard must forget the first ones.
        writer = _summary_writer()(str(folder / EVENTS), purge_step=first_step + 1)
        self.writer = self._open_files.enter_context(writer)
        self.display.started(config, folder, first_step)

    def stepped(self, step: int) -> None:
        self.display.stepped(step)

    def progress(self, step: int, rate: float, means: dict[str, float], share: list[float]) -> None:
        self.display.progress(step, rate, means, share)

    def evaluation(self, line: dict[str, Any]) -> None:
        for tag, value in scalars(line, self.class_names, self.test_counts).items():
            self.writer.add_scalar(tag, value, line["step"])
        self.writer.flush()
        self.display.evaluation(line)

    def estimate(self, seconds: float) -> None:
        self.display.estimate(seconds)

    def note(self, text: str) -> None:
        self.display.note(text)

    def warning(self, text: str) -> None:
        self.display.warning(text)


def scalars(line: dict[str, Any], class_names: Sequence[str], test_counts: Sequence[int]) -> dict[str, float]:
    """The numbers of one evaluation by tag; TensorBoard groups the charts by the part before the slash."""
    values: dict[str, float] = {}
    for metric in METRICS.values():
        value = metric.value(line["test"], test_counts)
        if value is not None and metric.is_per_class:
            shares = zip(class_names, value, strict=True)
            values |= {f"{metric.name}/{name}": share for name, share in shares if share is not None}
        elif value is not None:
            values[f"test/{metric.name}"] = value
    values |= {f"train/{name}": mean for name, mean in line["train"].items()}
    if "pseudo" in line:
        shares = zip(class_names, line["pseudo"]["share"], strict=True)
        values |= {f"pseudo_label_share/{name}": share for name, share in shares}
    return values


def _summary_writer() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter  # an extra that takes a second to import
    except ImportError as error:
        raise ValueError("--tensorboard needs the extra: pip install 'mnar[tensorboard]'") from error
    return SummaryWriter
