"""The report of a portfolio run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mnar.datasets.user_files import UNLABELED
from mnar.own_data.portfolio import Choice
from mnar.own_data.portfolio.scores import Score
from mnar.own_data.portfolio_model import Predictions
from mnar.report import Interval, OwnDataPage, PictureRow, Reliability, TriedMember
from mnar.types import DataSet

PICTURES = 6  # of each class and end of the confidence scale
MOST_CLASSES_WITH_PICTURES = 20


def own_data_page(
    source: str,
    data: DataSet,
    choice: Choice,
    verdict: str,
    warnings: Sequence[str],
    pool: npt.NDArray[np.intp],
    predictions: Predictions,
) -> OwnDataPage:
    """Collect the content of the page."""
    num_classes, cross = len(data.class_names), choice.cross_validated
    y = data.train_y.numpy()
    has_pool = len(pool) > 0
    shares = np.bincount(predictions.labels, minlength=num_classes) / max(1, len(pool))
    return OwnDataPage(
        title=Path(source).name,
        class_names=data.class_names,
        num_labels=np.bincount(y[y != UNLABELED], minlength=num_classes).tolist(),
        num_unlabeled=len(pool),
        verdict=_sentence(verdict),
        difference=None if choice.comparison is None else _interval(choice.comparison.balanced_accuracy),
        members=[
            TriedMember(
                name=member.name,
                uses_pool=member.uses_pool,
                balanced_accuracy=_interval(member.balanced_accuracy),
                accuracy=_interval(member.accuracy) if has_pool else None,
                seconds=member.seconds or None,
                is_chosen=member.weight > 0,
                remark=member.remark or member.description,
            )
            for member in choice.members
        ],
        pool_shares=_pool_shares(choice),
        predicted_shares=shares.tolist() if has_pool else None,
        recalls={name: [_interval(score) for score in scores] for name, scores in choice.recalls.items()},
        confidences=predictions.confidences if has_pool else None,
        reliability=Reliability(cross.confidence, cross.is_right, cross.weight),
        pictures=_pictures(data, pool, predictions) if data.is_image else (),
        notes=[*map(_sentence, data.notes), _sentence(f"the chosen model is {choice.reason}")],
        warnings=[_sentence(warning) for warning in warnings],
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _interval(score: Score | None) -> Interval | None:
    return None if score is None else Interval(score.value, score.low, score.high)


def _pool_shares(choice: Choice) -> list[Interval | None]:
    if choice.shares is None:
        return []
    rows = zip(*choice.shares, strict=True)
    return [None if np.isnan(value) else Interval(float(value), float(low), float(high)) for value, low, high in rows]


def _pictures(data: DataSet, pool: npt.NDArray[np.intp], predictions: Predictions) -> list[PictureRow]:
    """The most and the least confident predictions of each class."""
    rows = []
    for c, name in enumerate(data.class_names[:MOST_CLASSES_WITH_PICTURES]):
        members = np.flatnonzero(predictions.labels == c)
        by_confidence = members[np.argsort(-predictions.confidences[members], kind="stable")]
        for word, chosen in (("most", by_confidence[:PICTURES]), ("least", by_confidence[::-1][:PICTURES])):
            pictures: list[tuple[str, Any]] = [
                (f"{data.row_names[pool[i]]} ({predictions.confidences[i]:.0%})", data.train_x[pool[i]].numpy())
                for i in chosen
            ]
            if pictures:
                rows.append(PictureRow(f"{name}: {word} confident predictions", pictures))
    return rows
