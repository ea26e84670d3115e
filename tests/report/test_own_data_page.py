"""The page about the models that were tried on the user's own data."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import BarContainer
from PIL import Image
from scipy.stats import binomtest

from mnar.report import Interval, OwnDataPage, PictureRow, Reliability, TriedMember, write_own_data_report
from mnar.report.own_data_figures import binned, class_share_bars, confidence_figure, recall_bars, wilson_interval
from mnar.report.own_data_page import own_data_html, thumbnail
from tests.report.drawn import tick_labels, words
from tests.report.test_html import captions_of, rows_of, without_figures

PAGE = OwnDataPage(
    title="survey <1>",
    class_names=("no", "yes & more", "犬"),
    num_labels=(30, 60, 10),
    num_unlabeled=2600,
    verdict="The samples without a label helped.",
    difference=Interval(0.034, -0.008, 0.061),
    members=(
        TriedMember("SVC", False, Interval(0.8, 0.75, 0.85), Interval(0.7, 0.65, 0.75), 4.25),
        TriedMember("SVC <corrected>", True, Interval(0.85, 0.8, 0.9), Interval(0.8, 0.7, 0.9), 1234.5, True),
        TriedMember("network", True, remark="left out: it ran out of its time"),
    ),
    pool_shares=(Interval(0.5, 0.4, 0.6), Interval(0.2, 0.1, 0.3), None),
    predicted_shares=(0.45, 0.25, 0.3),
    notes=("2 columns were left out.",),
    warnings=("The predictions disagree with the estimate.",),
)


def tables_of(page: str) -> dict[str, list[list[str]]]:
    """The rows of each table under its heading."""
    parts = re.findall(r"<h2>([^<]*)</h2>(.*?)</section>", page, re.DOTALL)
    rows = {title: re.sub(r"<tr class[^>]*>", "<tr>", part) for title, part in parts if "<table" in part}
    return {title: rows_of(part) for title, part in rows.items()}


def test_the_page_has_counts_verdict_members_and_classes_with_the_most_labels_first(tmp_path: Path) -> None:
    write_own_data_report(tmp_path, PAGE)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert "3 classes, 2,700 samples: 100 with a label and 2,600 without" in text
    assert "The samples without a label helped." in text
    assert "best labels-only model: +3.4 points, 95 % interval −0.8 to +6.1." in text
    assert "The predictions disagree with the estimate." in text
    assert "<li>2 columns were left out.</li>" in text
    tables = tables_of(page)
    assert tables["Models that were tried"][1:] == [
        ["SVC", "labels", "80.0 (75.0 to 85.0)", "70.0 (65.0 to 75.0)", "4.2", ""],
        [
            "SVC &lt;corrected&gt; (chosen)",
            "labels and pool",
            "85.0 (80.0 to 90.0)",
            "80.0 (70.0 to 90.0)",
            "1,234.5",
            "",
        ],
        ["network", "labels and pool", "–", "–", "–", "left out: it ran out of its time"],
    ]
    assert tables["Classes"][1:] == [
        ["yes &amp; more", "60", "60.0", "20.0 (10.0 to 30.0)", "25.0"],
        ["no", "30", "30.0", "50.0 (40.0 to 60.0)", "45.0"],
        ["犬", "10", "10.0", "–", "30.0"],
    ]
    assert "instead of 犬, install a font" in text
    assert [*captions_of(page)] == ["Class shares: labels, estimated pool, predictions"]
    assert not re.search(r"https?:|<script|<link|@import|url\(|<1>|<corrected>", without_figures(page))


@pytest.mark.filterwarnings("error")
def test_a_page_with_the_least_content_can_be_written() -> None:
    page = own_data_html(OwnDataPage("survey", ("no", "yes"), (3, 0), 0, "It cannot be told."))
    assert page.count("<img ") == 1
    assert "Models that were tried" not in page
    assert "Difference in balanced accuracy" not in page
    assert tables_of(page)["Classes"][1:] == [["no", "3", "100.0", "–", "–"], ["yes", "0", "0.0", "–", "–"]]


def test_a_list_with_another_number_of_classes_is_refused() -> None:
    for wrong in ({"num_labels": (1, 2)}, {"predicted_shares": (1.0,)}, {"recalls": {"SVC": [None]}}):
        with pytest.raises(ValueError, match=r"entr.* for 3 classes; give one per class"):
            replace(PAGE, **wrong)  # type: ignore[arg-type]


def test_three_bars_per_class_have_the_shares_as_heights_and_the_interval_as_whiskers() -> None:
    assert PAGE.predicted_shares is not None
    figure = class_share_bars(PAGE.class_names, PAGE.num_labels, PAGE.pool_shares, PAGE.predicted_shares)
    (axes,) = figure.axes
    bars = {
        str(each.get_label()): [bar.get_height() for bar in each]
        for each in axes.containers
        if isinstance(each, BarContainer)
    }
    whiskers = [line for each in axes.collections for line in each.get_segments()]  # type: ignore[attr-defined]
    np.testing.assert_allclose(bars["labels"], [60, 30, 10])
    np.testing.assert_allclose(bars["estimated pool"], [20, 50, np.nan])
    np.testing.assert_allclose(bars["predictions for the pool"], [25, 45, 30])
    np.testing.assert_allclose([ends[:, 1] for ends in whiskers], [[10, 30], [40, 60]])
    assert tick_labels(axes.xaxis) == ["yes & more", "no", "犬"]
    assert "truth" not in words(figure)


def test_many_classes_are_drawn_as_outlines_without_names() -> None:
    names = [f"name{i}" for i in range(50)]
    figure = class_share_bars(names, range(50), [Interval(0.02, 0.01, 0.03)] * 50, [0.02] * 50)
    assert not {*names} & words(figure)
    assert {"labels", "estimated pool", "predictions for the pool"} <= words(figure)


def test_recalls_of_several_models_are_side_by_side() -> None:
    figure = recall_bars(("a", "b"), (5, 9), {"chosen": [Interval(0.5, 0.2, 0.8), None], "SVC": [None, None]})
    all_bars = [bars for bars in figure.axes[0].containers if isinstance(bars, BarContainer)]
    heights = [bar.get_height() for bars in all_bars for bar in bars]
    np.testing.assert_allclose(heights, [np.nan, 50, np.nan, np.nan])
    assert {"chosen", "SVC"} <= words(figure)


def test_the_reliability_curve_has_the_weighted_share_of_right_predictions_in_each_bin() -> None:
    confidence = np.array([0.95] * 10 + [0.55] * 6 + [0.15] * 3)
    is_correct = np.array([1] * 8 + [0] * 2 + [1, 1, 1, 0, 0, 0] + [1] * 3)
    means, right, ends = binned(Reliability(confidence, is_correct))
    np.testing.assert_allclose(means, [0.55, 0.95])
    np.testing.assert_allclose(right, [0.5, 0.8])
    assert (ends[:, 0] < right).all()
    assert (right < ends[:, 1]).all()
    weight = np.array([1.0] * 8 + [4.0] * 2 + [1.0] * 9)
    np.testing.assert_allclose(binned(Reliability(confidence, is_correct, weight))[1], [0.5, 0.5])
    assert len(binned(Reliability([], []))[0]) == 0


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 10), (50, 50), (700, 1000)])
def test_the_interval_of_a_share_is_that_of_scipy(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(right / count, count), [expected.low, expected.high], atol=1e-4)


def test_the_figure_of_confidences_has_a_panel_for_what_is_known() -> None:
    assert confidence_figure(None, None) is None
    histogram = confidence_figure([0.5, 0.9, 1.0], None)
    assert histogram is not None
    (axes,) = histogram.axes
    assert axes.get_title(loc="left") == "Confidence of the predictions, mean 80 %"
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(100)  # type: ignore[attr-defined]
    both = confidence_figure([0.5], Reliability([0.9] * 9, [1] * 9))
    assert both is not None
    assert len(both.axes) == 2


@pytest.mark.parametrize("shape", [(8, 6), (1, 8, 6), (3, 8, 6), (8, 6, 3), (8, 6, 1)])
def test_a_picture_is_embedded_as_a_png_with_its_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    page = own_data_html(replace(PAGE, pictures=[PictureRow("no: most confident", [("img <3>, 97 %", pixels)])]))
    (encoded,) = re.findall(r'src="data:image/png;base64,([^"]*)" alt="img &lt;3&gt;, 97 %"', page)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
    colours_last = np.moveaxis(pixels, 0, -1) if shape[0] in (1, 3) else pixels
    np.testing.assert_array_equal(shown, colours_last.reshape(shown.shape))
    assert "<h3>no: most confident</h3>" in page


def test_a_large_picture_is_made_smaller_and_a_wrong_one_is_refused() -> None:
    encoded = thumbnail(np.zeros((3, 400, 200), np.uint8)).partition(",")[2]
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (48, 96)
    with pytest.raises(ValueError, match=r"a picture has shape \(2, 2\) and type float64; give uint8 pixels"):
        thumbnail(np.zeros((2, 2)))  # type: ignore[arg-type]
