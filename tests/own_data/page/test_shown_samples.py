"""The samples that the report shows: which ones, and the cells of their rows."""

from __future__ import annotations

import numpy as np
import torch

from mnar.datasets.own_data import as_data_set
from mnar.datasets.user_files import PartlyLabeled, Table
from mnar.datasets.user_files.table_encoder import TableEncoder
from mnar.own_data.next_samples import NextSamples
from mnar.own_data.page.shown_samples import PoolView, decoded_cells
from mnar.types import DataSet

TABLE = Table(
    numeric=np.array([[1.5, 10.0], [np.nan, 30.0], [2.5, 20.0], [4.0, 40.0]]),
    categorical=np.array([[0], [1], [-1], [0]]),
    numeric_names=("weight", "height"),
    categorical_names=("colour",),
    categories=(("red", "blue"),),
)
PROBS = np.array([[0.9, 0.1], [0.6, 0.4], [0.55, 0.45], [0.001, 0.999]])
LABELS = np.array([0, 0, 0, 1])


def data_set(x: Table | np.ndarray) -> DataSet:
    names = [f"line {row}" for row in range(2, 8)]
    y = np.array([-1, -1, -1, -1])
    return as_data_set(PartlyLabeled(x, y, ("no", "yes"), names[: len(y)]), held_out=0.0)


def test_the_cells_of_an_encoded_row_are_those_of_the_file() -> None:
    encoder = TableEncoder.fit(TABLE)
    cells = [decoded_cells(encoder, row) for row in encoder.transform(TABLE)]
    assert cells == [["1.5", "10", "red"], ["–", "30", "blue"], ["2.5", "20", "–"], ["4", "40", "red"]]


def test_rare_categories_are_shown_as_other() -> None:
    table = Table(np.zeros((101, 0)), np.array([[0]] * 100 + [[1]]), (), ("colour",), (("red", "ochre"),))
    encoder = TableEncoder.fit(table)
    assert decoded_cells(encoder, encoder.transform(table)[-1]) == ["(other)"]


def test_confident_samples_have_the_largest_confidence_and_contested_ones_the_smallest_margin() -> None:
    view = PoolView(data_set(TABLE), np.arange(4), LABELS, PROBS)
    assert view.columns == ("weight", "height", "colour")
    of_no, of_yes = view.by_class()
    assert of_no.class_name == "no"
    assert [sample.name for sample in of_no.confident] == ["line 2", "line 3", "line 4"]
    assert [sample.name for sample in of_no.contested] == ["line 4", "line 3", "line 2"]
    assert of_no.confident[0].prediction == "no (90 %)"
    assert of_no.contested[0].prediction == "no (55 %) or yes (45 %)"
    assert of_yes.contested[0].prediction == "yes (> 99 %) or no (< 1 %)"
    assert of_no.confident[0].cells == ["1.5", "10", "red"]


def test_images_are_shown_as_pixels() -> None:
    pixels = np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2)
    view = PoolView(data_set(pixels), np.arange(4), LABELS, PROBS)
    assert view.columns == ()
    shown = view.by_class()[1].confident[0].image
    assert shown is not None
    np.testing.assert_array_equal(shown, pixels[3])


def test_features_without_names_are_shown_as_numbers() -> None:
    view = PoolView(data_set(np.full((4, 9), 0.25, np.float32)), np.arange(4), LABELS, PROBS)
    assert view.columns == ("x0", "x1", "x2", "x3", "x4", "x5")
    assert view.num_columns == 9
    assert view.by_class()[0].confident[0].cells == ["0.25"] * 6


def test_samples_to_label_keep_their_order_and_have_the_probabilities_of_their_reasons() -> None:
    view = PoolView(data_set(TABLE), np.arange(4), LABELS, PROBS)
    balanced = np.array([[0.5, 0.5], [0.3, 0.7], [0.5, 0.5], [0.2, 0.8]])
    chosen = view.to_label(NextSamples(np.array([3, 1]), ["few labels of yes", "contested"]), balanced)
    assert [(each.sample.name, each.sample.prediction, each.reason) for each in chosen] == [
        ("line 5", "yes (80 %) or no (20 %)", "few labels of yes"),
        ("line 3", "yes (70 %) or no (30 %)", "contested"),
    ]
    assert view.to_label(None, balanced) == []


def test_a_sample_of_a_part_of_the_data_keeps_its_own_name_and_cells() -> None:
    data = data_set(TABLE)._replace(ids=["a", "b", "c", "d"], train_y=torch.tensor([0, -1, 0, -1]))
    view = PoolView(data, np.array([1, 3]), np.array([0, 1]), PROBS[[1, 3]])
    assert [group.confident[0].name for group in view.by_class()] == ["b", "d"]
    assert view.by_class()[1].confident[0].cells == ["4", "40", "red"]
