"""The page about a training on the user's own data."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest

from mnar.report import (
    AtRandom,
    ClassSamples,
    ConfusedPair,
    Interval,
    NextSample,
    OwnDataPage,
    Reliability,
    ShownSample,
    TriedMember,
    write_own_data_report,
)
from mnar.report.own_data import own_data_html
from mnar.report.own_data.reliability import binned, confidence_shares, wilson_interval
from mnar.report.own_data.thumbnails import thumbnail
from mnar.report.own_data.words import (
    bin_sentences,
    confidence_sentence,
    confusion_sentence,
    reliability_sentence,
    short_classes,
    whether_at_random,
    whether_short,
)
from tests.report.test_html import rows_of

QUESTIONS = [
    "Are labels missing at random?",
    "What was trained?",
    "Did the unlabelled samples help?",
    "Which classes are short of labels?",
    "Where does the model err?",
    "Which samples is the model sure of, and which are contested?",
    "What should be labelled next?",
    "Where does this page come from?",
]
PAGE = OwnDataPage(
    title="survey <1>",
    class_names=("no", "yes & more", "犬"),
    num_labels=(30, 60, 10),
    num_unlabeled=2600,
    verdict="The samples without a label helped.",
    helped="Yes.",
    difference=Interval(0.034, -0.008, 0.061),
    at_random=AtRandom(0.001, "A large p-value is no proof."),
    members=(
        TriedMember("SVC", False, Interval(0.8, 0.75, 0.85), Interval(0.7, 0.65, 0.75), 4.25),
        TriedMember("SVC <corrected>", True, Interval(0.85, 0.8, 0.9), Interval(0.8, 0.7, 0.9), 1234.5, True),
        TriedMember("network", True, remark="left out: it ran out of its time"),
    ),
    pool_shares=(Interval(0.5, 0.4, 0.6), Interval(0.2, 0.1, 0.3), None),
    predicted_shares=(0.45, 0.25, 0.3),
    scored_on="The scores come from cross-validation.",
    recalls=(Interval(0.9, 0.8, 0.95), Interval(0.7, 0.6, 0.8), None),
    labels_only_recalls=(Interval(0.85, 0.8, 0.95), None, None),
    precisions=(Interval(0.75, 0.5, 0.9), Interval(0.6, 0.5, 0.7), None),
    confused=(ConfusedPair("yes & more", "no", Interval(0.07, 0.03, 0.14), 60),),
    confidences=[0.95, 0.95, 0.6, 0.4],
    reliability=Reliability([0.95] * 10, [1] * 8 + [0] * 2),
    columns=("weight", "colour"),
    num_columns=5,
    samples=[
        ClassSamples(
            "no",
            [ShownSample("line 2", "no (97 %)", cells=("1.5", "<i>red</i>"))],
            [ShownSample("line 9", "no (52 %) or 犬 (45 %)", cells=("–", "blue"))],
        )
    ],
    about_samples="The probabilities are for the pool.",
    about_next_samples="The probabilities are for equally frequent classes.",
    next_samples=[NextSample(ShownSample("line 9", "no (52 %)", cells=("–", "blue")), "few labels of class 犬")],
    next_command="mnar next runs/survey --budget 100",
    provenance=[("Seed", "1"), ("Command", "mnar train 'my survey.csv'")],
    notes=("2 columns were left out.",),
    warnings=("The predictions disagree with the estimate.",),
)


def sections_of(page: str) -> dict[str, str]:
    """The HTML text of each section, by its heading."""
    return dict(re.findall(r"<section[^>]*>\s*<h2>([^<]*)</h2>(.*?)</section>", page, re.DOTALL))


def tables_in(section: str) -> list[list[list[str]]]:
    """The rows of each table in a section, without charts."""
    without_charts = re.sub(
        r'<td class="chart-cell">.*?</td>', "", re.sub(r"<tr class[^>]*>", "<tr>", section), flags=re.S
    )
    rows = [rows_of(table) for table in re.findall(r"<table.*?</table>", without_charts, re.DOTALL)]
    return [[[cell.replace("\u00a0", " ") for cell in row] for row in table] for table in rows]


def text_of(part: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", part)).split())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    write_own_data_report(folder, PAGE)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_answers_the_questions_in_order(page: str) -> None:
    assert [*sections_of(page)] == QUESTIONS
    text = text_of(page.partition("<main>")[0])
    assert "3 classes, 2,700 samples: 100 with a label and 2,600 without" in text
    assert "The predictions disagree with the estimate." in text
    assert "Are labels missing at random? Very probably not. Did the unlabelled samples help? Yes." in text
    assert "Which classes are short of labels? “no”. Where does the model err?" in text


def test_every_section_has_its_numbers(page: str) -> None:
    sections = {title: tables_in(section) for title, section in sections_of(page).items()}
    texts = {title: text_of(section) for title, section in sections_of(page).items()}
    assert sections[QUESTIONS[0]][0][1:] == [
        ["yes &amp; more", "60", "60.0", "20.0 (10.0 to 30.0)", "25.0"],
        ["no", "30", "30.0", "50.0 (40.0 to 60.0)", "45.0"],
        ["犬", "10", "10.0", "–", "30.0"],
    ]
    assert sections[QUESTIONS[1]][0][1:] == [
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
    assert "labels-only model: +3.4 points (95 % interval −0.8 to +6.1) ." in texts[QUESTIONS[2]]
    reason = "Its share of the pool is about 1.7 times its share of the labels."
    assert sections[QUESTIONS[3]][0][1:] == [["no", "30", "1,300 (1,040 to 1,560)", "1 in 44.3 (35.7 to 53.0)", reason]]
    assert sections[QUESTIONS[4]][0][1:] == [
        ["yes &amp; more", "60.0 (50.0 to 70.0)", "70.0 (60.0 to 80.0)"],
        ["no", "75.0 (50.0 to 90.0)", "90.0 (80.0 to 95.0)"],
        ["犬", "–", "–"],
    ]
    assert "about 7 are predicted as “no” (95 % interval 3 to 14, from 60 labels)." in texts[QUESTIONS[4]]
    assert "The most frequent confusion: “yes & more” is taken for “no”." in texts[QUESTIONS[4]]
    assert "Lines are 95 % intervals." in texts[QUESTIONS[4]]
    assert sections[QUESTIONS[5]] == [
        [["Sample", "Prediction", "weight", "colour"], ["line 2", "no (97 %)", "1.5", "&lt;i&gt;red&lt;/i&gt;"]],
        [["Sample", "Prediction", "weight", "colour"], ["line 9", "no (52 %) or 犬 (45 %)", "–", "blue"]],
    ]
    assert "The probabilities are for the pool. The first 2 of 5 columns are shown." in texts[QUESTIONS[5]]
    assert "Predicted as “no”" in texts[QUESTIONS[5]]
    assert texts[QUESTIONS[6]].startswith("The probabilities are for equally frequent classes.")
    assert sections[QUESTIONS[6]][0][1] == ["line 9", "no (52 %)", "few labels of class 犬", "–", "blue"]
    assert "mnar next runs/survey --budget 100" in texts[QUESTIONS[6]]
    assert sections[QUESTIONS[7]] == [[["Seed", "1"], ["Command", "mnar train &#39;my survey.csv&#39;"]]]
    assert "2 columns were left out." in texts[QUESTIONS[7]]


def test_names_stay_text_and_nothing_is_loaded(page: str) -> None:
    assert not re.search(r"https?:|<script|<link|@import|url\(|<1>|<corrected>|<i>", page)


def test_every_chart_has_its_numbers_as_text(page: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    descriptions = [
        text_of(description) for svg in svgs for description in re.findall(r"<desc.*?</desc>", svg, re.DOTALL)
    ]
    assert len(svgs) == len(descriptions) == 2
    assert "Of the predictions with a confidence around 95 %, 80 % are right" in descriptions[0]
    assert "50 % have a confidence of at least 90 %" in descriptions[1]
    tracks = re.findall(r'<div class="track[^>]*>', page)
    assert len(tracks) == 2 * len(PAGE.class_names)
    assert all('aria-hidden="true"' in track for track in tracks), "the numbers stand in the same row of the table"


def test_a_page_with_the_least_content_can_be_written() -> None:
    sections = sections_of(own_data_html(OwnDataPage("survey", ("no", "yes"), (3, 0), 0, "It cannot be told.")))
    assert [*sections] == QUESTIONS
    assert "There is nothing to test." in sections[QUESTIONS[0]]
    assert "<svg" not in sections[QUESTIONS[4]]
    assert tables_in(sections[QUESTIONS[0]])[0][1:] == [["no", "3", "100.0", "–", "–"], ["yes", "0", "0.0", "–", "–"]]
    assert "Every sample has a label." in sections[QUESTIONS[6]]


def test_tables_of_many_classes_are_folded() -> None:
    names = [f"name{i}" for i in range(50)]
    shares, recalls = [Interval(0.02, 0.01, 0.03)] * 50, [Interval(0.9, 0.8, 1.0)] * 50
    page = OwnDataPage("many", names, [20] * 50, 100, "Yes.", pool_shares=shares, recalls=recalls)
    sections = sections_of(own_data_html(page))
    for question in (QUESTIONS[0], QUESTIONS[4]):
        (folded,) = re.findall(
            r"<details><summary>Show all 50 classes</summary>.*?</details>", sections[question], re.S
        )
        assert folded.count("<tr>") == 51


def test_a_list_with_another_number_of_classes_or_cells_is_refused() -> None:
    for wrong in ({"num_labels": (1, 2)}, {"predicted_shares": (1.0,)}, {"recalls": [None]}, {"precisions": [None]}):
        with pytest.raises(ValueError, match=r"entr.* for 3 classes; give one per class"):
            replace(PAGE, **wrong)  # type: ignore[arg-type]
    sample = ShownSample("line 3", "no (97 %)", cells=("1",))
    with pytest.raises(ValueError, match="'line 3' has 1 cells for 2 columns; give one cell per column, or an image"):
        replace(PAGE, samples=[ClassSamples("no", [sample], [])])


# ---- sentences


@pytest.mark.parametrize(
    ("p_value", "short", "cases"),
    [
        (0.001, "Very probably not.", "in about 1 of 1,000 cases (p = 0.001)"),
        (0.034, "Probably not.", "in about 34 of 1,000 cases (p = 0.034)"),
        (0.41, "The test finds no evidence against it.", "in about 41 of 100 cases (p = 0.410)"),
    ],
)
def test_a_p_value_is_put_into_words(p_value: float, short: str, cases: str) -> None:
    answer = whether_at_random(replace(PAGE, at_random=AtRandom(p_value, "")))
    assert answer.short == short
    assert cases in answer.explanation
    assert ("not a proof" in answer.explanation) == (p_value > 0.05)


def test_without_a_test_the_page_says_why() -> None:
    assert whether_at_random(replace(PAGE, at_random=None)).short == "This cannot be tested."
    assert whether_at_random(replace(PAGE, at_random=None, num_unlabeled=0)).explanation == "Every sample has a label."


def test_short_of_labels_are_classes_without_labels_with_few_or_with_a_much_larger_share_of_the_pool() -> None:
    page = OwnDataPage(
        "survey",
        ("none", "few", "rare", "uncertain", "enough"),
        (0, 5, 20, 20, 55),
        1000,
        "Yes.",
        pool_shares=(
            None,
            Interval(0.05, 0.02, 0.1),
            Interval(0.45, 0.3, 0.6),
            Interval(0.35, 0.1, 0.6),
            Interval(0.15, 0.1, 0.2),
        ),
    )
    found = {each.name: each.reason for each in short_classes(page)}
    assert [*found] == ["none", "rare", "few"], "the most urgent one first; the interval of the fourth contains 20 %"
    assert found["rare"] == "its share of the pool is about 2.2 times its share of the labels"
    assert found["few"] == "5 labels are too few for a reliable score"


def test_without_an_estimate_of_the_pool_only_classes_with_few_labels_are_short_and_the_page_says_why() -> None:
    page = replace(PAGE, num_labels=(9, 60, 2), pool_shares=())
    answer = whether_short(page, short_classes(page))
    assert answer.short == "“犬” and “no”.", "the fewest labels first"
    assert "The class shares of the pool are not known, so only classes with fewer than 10 labels" in answer.explanation
    assert "The class shares of the pool are not known." in sections_of(own_data_html(page))[QUESTIONS[0]]
    enough = replace(page, num_labels=(10, 60, 10))
    answer = whether_short(enough, short_classes(enough))
    assert answer.short == "No class has fewer than 10 labels."
    assert answer.explanation.startswith("The class shares of the pool are not known.")
    known = replace(enough, pool_shares=(Interval(0.1, 0.0, 0.2), Interval(0.8, 0.7, 0.9), Interval(0.1, 0.0, 0.2)))
    assert "no class has a much larger share of the pool" in whether_short(known, short_classes(known)).explanation
    without_pool = replace(enough, num_unlabeled=0)
    assert whether_short(without_pool, []) == ("None.", "Every class has at least 10 labels.")


def test_a_confused_pair_is_a_sentence_about_100_samples() -> None:
    pair = ConfusedPair("8", "3", Interval(0.07, 0.03, 0.14), 41)
    assert confusion_sentence(pair) == (
        "Of 100 samples of “8”, about 7 are predicted as “3” (95 % interval 3 to 14, from 41 labels)."
    )
    assert "about 1 is predicted as “3”" in confusion_sentence(pair._replace(share=Interval(0.012, 0.0, 0.1)))


def test_the_histogram_in_words_has_the_shares_of_its_bins() -> None:
    confidences = [0.2, 0.55, 0.96, 0.97, 1.0]
    assert confidence_sentence(confidences).startswith("Of 5 predictions for the pool, 60 % have a confidence of at")
    assert "20 % have one from 50 to 90 %, and 20 % have one below 50 %. The mean confidence is 74 %" in (
        confidence_sentence(confidences)
    )
    shares = confidence_shares(confidences)
    assert sum(shares) == pytest.approx(1)
    assert shares[-1] == pytest.approx(0.6)


# ---- reliability


def test_the_reliability_has_the_weighted_share_of_right_predictions_in_each_bin() -> None:
    confidence = np.array([0.95] * 10 + [0.55] * 6 + [0.15] * 3)
    is_correct = np.array([1] * 8 + [0] * 2 + [1, 1, 1, 0, 0, 0] + [1] * 3)
    low, high = binned(Reliability(confidence, is_correct))
    assert (low.confidence, high.confidence) == pytest.approx((0.55, 0.95))
    assert (low.is_right.value, high.is_right.value) == pytest.approx((0.5, 0.8))
    assert all(each.is_right.low < each.is_right.value < each.is_right.high for each in (low, high))
    assert "on average the confidences are 11 percentage points larger" in reliability_sentence([low, high]).lower()
    assert "around 55 %, 50 % are right" in bin_sentences([low, high])[0]
    weight = np.array([1.0] * 8 + [4.0] * 2 + [1.0] * 9)
    weighted = binned(Reliability(confidence, is_correct, weight))
    assert [each.is_right.value for each in weighted] == pytest.approx([0.5, 0.5])
    assert binned(Reliability([], [])) == []


@pytest.mark.parametrize(("right", "count"), [(0, 5), (3, 10), (50, 50), (700, 1000)])
def test_the_interval_of_a_share_is_that_of_scipy(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson_interval(right / count, count), [expected.low, expected.high], atol=1e-9)


# ---- pictures


@pytest.mark.parametrize("shape", [(8, 6), (1, 8, 6), (3, 8, 6), (8, 6, 3), (8, 6, 1)])
def test_a_picture_is_embedded_as_a_png_with_its_pixels(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    sample = ShownSample("img <3>", "no (97 %)", image=pixels)
    page = replace(PAGE, columns=(), samples=[ClassSamples("no", [sample], [])], next_samples=[])
    (encoded,) = re.findall(
        r'src="data:image/png;base64,([^"]*)" alt="img &lt;3&gt;, predicted as no \(97 %\)"', own_data_html(page)
    )
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
    colours_last = np.moveaxis(pixels, 0, -1) if shape[0] in (1, 3) else pixels
    np.testing.assert_array_equal(shown, colours_last.reshape(shown.shape))


def test_a_large_photo_becomes_a_small_jpeg_and_a_wrong_picture_is_refused() -> None:
    kind, _, encoded = thumbnail(np.zeros((3, 400, 200), np.uint8)).partition(",")
    assert kind == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (48, 96)
    photo = np.random.default_rng(0).normal(128, 40, (3, 12, 12)).repeat(16, 1).repeat(16, 2).clip(0, 255)
    noisy = (photo + np.random.default_rng(1).normal(0, 8, photo.shape)).clip(0, 255).astype(np.uint8)
    kind, _, encoded = thumbnail(noisy).partition(",")
    assert kind == "data:image/jpeg;base64"
    assert len(encoded) < 10_000
    with pytest.raises(ValueError, match=r"a picture has shape \(2, 2\) and type float64; give uint8 pixels"):
        thumbnail(np.zeros((2, 2)))  # type: ignore[arg-type]


def test_the_page_is_written_atomically(tmp_path: Path) -> None:
    write_own_data_report(tmp_path, PAGE)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
