"""ReMixMatch, one sample after another, as its paper writes it: slow and literal.

Images are square lists of rows of one channel. What is drawn (the weight and the partner of each row of the pool) is
given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.reference.fixmatch import cross_entropy
from tests.reference.mixmatch import Row, mixup, one_hot, sharpen, soft_cross_entropy

Image = Sequence[Row]
Model = Callable[[Image], Row]  # an image -> its logits


class Reference(NamedTuple):
    loss: float
    labeled: float
    unlabeled: float
    strong: float
    rotation: float


def turn(image: Image) -> list[list[float]]:
    """By 90 degrees, against the clock: the last column becomes the first row."""
    size = len(image)
    return [[image[row][size - 1 - column] for row in range(size)] for column in range(size)]


def quarter_of(position: int, num_rows: int) -> int:
    """In which quarter of a batch a row is; where they cannot be equal, the first ones have a row more."""
    sizes = [num_rows // 4 + (quarter < num_rows % 4) for quarter in range(4)]
    return next(quarter for quarter in range(4) if position < sum(sizes[: quarter + 1]))


def remixmatch(
    classify: Model,
    tell_rotation: Model,
    images: Sequence[Image],
    targets: Sequence[int],
    weak: Sequence[Image],
    strong_views: Sequence[Sequence[Image]],
    rectified: Sequence[Row],
    *,
    shares: Sequence[float],
    partners: Sequence[int],
    temperature: float,
    unlabeled_weight: float,
    strong_weight: float,
    rotation_weight: float,
) -> Reference:
    guesses = [sharpen(q, temperature) for q in rectified]
    pool = [(image, one_hot(y, len(guesses[0]))) for image, y in zip(images, targets, strict=True)]
    for view in (weak, *strong_views):
        pool += list(zip(view, guesses, strict=True))
    mixed = []
    for (image, label), share, partner in zip(pool, shares, partners, strict=True):
        other_image, other_label = pool[partner]
        mixed_image = [mixup(row, other_row, share) for row, other_row in zip(image, other_image, strict=True)]
        mixed.append((mixed_image, mixup(label, other_label, share)))

    labeled, unlabeled, strong, rotation = 0.0, 0.0, 0.0, 0.0
    for image, label in mixed[: len(images)]:
        labeled += soft_cross_entropy(label, classify(image)) / len(images)
    for image, label in mixed[len(images) :]:
        unlabeled += soft_cross_entropy(label, classify(image)) / (len(mixed) - len(images))
    for position, (view, guess) in enumerate(zip(strong_views[0], guesses, strict=True)):
        strong += soft_cross_entropy(guess, classify(view)) / len(guesses)
        turned, turns = view, quarter_of(position, len(guesses))
        for _ in range(turns):
            turned = turn(turned)
        rotation += cross_entropy(tell_rotation(turned), turns) / len(guesses)
    loss = labeled + unlabeled_weight * unlabeled + strong_weight * strong + rotation_weight * rotation
    return Reference(loss, labeled, unlabeled, strong, rotation)
