"""A learning rate chosen by a short range test (Smith, WACV 2017) on the training loss.

The learning rate rises geometrically from step to step. The loss falls at first, and rises once the rate is too
large. The suggested rate is a fraction of the rate at which the smoothed loss is lowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from mnar.training.meters import Diverged
from mnar.training.trainer import Trainer

LOWEST, HIGHEST = 1e-2, 1e2  # times the learning rate of the options: the rates that the test goes through
# Of the rate with the lowest loss. With 0.3 instead of 0.1, SGD gained 2 points of balanced accuracy on photographs,
# and Adam lost half a point on the table `penbased`.
FRACTION = {"sgd": 0.3, "adam": 0.1, "rmsprop": 0.1, "muon": 0.3}
SMOOTHING = 0.8  # weight of the earlier losses in the smoothed loss
FEWEST_LOSSES = 3  # that say something about the lowest one
EXPLODED = 4.0  # times the lowest loss: the test ends


def suggested_rate(trainer: Trainer, steps: int) -> float:
    """Train `trainer`, which is used up by this, for at most `steps` steps with rising learning rates.

    The trainer must have a constant learning rate (`train.schedule` "constant", no warm-up). The test goes
    through the rates from LOWEST to HIGHEST times the learning rate of its options.
    """
    options = trainer.options
    if options.schedule != "constant" or options.warmup:
        raise ValueError(
            f"train.schedule is {options.schedule!r} and train.warmup is {options.warmup}, but the range test sets the "
            "learning rate itself; choose the schedule 'constant' and no warm-up"
        )
    rates, losses = rising_rates(options.lr, steps), list[float]()
    for step, rate in enumerate(rates):
        trainer.lr.fill_(rate)
        trainer.loader.seek(step)
        trainer.step()
        try:
            losses.append(trainer.meters.means()["loss"])
        except Diverged:
            break
        trainer.meters.reset()
        if losses[-1] > EXPLODED * min(losses):
            break
    best = rate_of_lowest_loss(rates, losses)
    return options.lr if best is None else float(f"{FRACTION[options.optimizer] * best:.2g}")


def rising_rates(rate: float, steps: int) -> list[float]:
    """`steps` learning rates that rise geometrically, with `rate` in the middle."""
    ratio = HIGHEST / LOWEST
    return [rate * LOWEST * ratio ** (step / max(1, steps - 1)) for step in range(steps)]


def rate_of_lowest_loss(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The rate at which the smoothed loss is lowest, or None if there are too few losses to say."""
    if len(losses) < FEWEST_LOSSES:
        return None
    smoothed, mean = [], 0.0
    for number, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed.append(mean / (1 - SMOOTHING**number))  # the mean starts at 0, which this corrects
    return rates[min(range(len(smoothed)), key=smoothed.__getitem__)]
