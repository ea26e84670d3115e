"""MODEL_CARD.md: what a reader must know before using an exported model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unicodedata import category

import mnar
from mnar.atomic_write import from_json
from mnar.config import OWN_DATA
from mnar.own_data.portfolio import Portfolio
from mnar.own_data.portfolio_run import is_portfolio_run, read_portfolio_config
from mnar.run import RunFolder
from mnar.run.file_names import CHOICE, ENVIRONMENT
from mnar.trained.class_mix import ClassMix
from mnar.trained.export.samples import kind_of
from mnar.trained.export.scores import ClassScores, class_scores
from mnar.trained.model import TrainedModel
from mnar.trained.predictor import PortfolioPredictor

NAME = "MODEL_CARD.md"
FEW_SCORED = 10  # scores of a class with fewer labels are marked
SPECIAL = re.compile(r"([\\`*_\[\]|~$#])")
FILL_IN = "*fill in*"


def model_card(model: TrainedModel, mix: ClassMix, model_file: str, difference: float) -> str:
    """Return the card.

    mix           the class mix that is inside the exported probabilities
    difference    the largest difference between the export and the run that the check found
    """
    scores = class_scores(model, mix)
    sections = [
        ("Purpose", _purpose(model)),
        ("Data", _data(model)),
        ("Training", _training(model)),
        ("Class mix", _class_mix(model, mix)),
        ("Metrics", _metrics(model, mix, scores)),
        ("Limits", _limits(model, mix, scores)),
        ("Use", _use(model_file, difference)),
        ("Licence", f"Licence of the model: {FILL_IN}\n\nLicence of the data: {FILL_IN}\n\nContact: {FILL_IN}"),
        ("Provenance", _provenance(model)),
    ]
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections)
    return f"# Model card: {plain_text(model.run.resolve().name)}\n\n{body}\n"


def plain_text(text: str) -> str:
    """Return a text that Markdown shows as it is: no markup, no HTML, no control codes, one line."""
    visible = "".join(" " if c in "\t\r\n" else "\ufffd" if category(c) in ("Cc", "Cf") else c for c in text)
    without_html = visible.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", without_html)


def _purpose(model: TrainedModel) -> str:
    names, inputs = model.inputs.class_names, model.inputs
    listed = ", ".join(map(plain_text, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return f"The model takes {inputs.in_words} and predicts the probability of each of {len(names)} classes: {listed}."


def _data(model: TrainedModel) -> str:
    counts = None if model.calibration is None else model.calibration.num_labels
    if is_portfolio_run(model.run):
        source = Path(read_portfolio_config(model.run).source).name
        lines = [f"- Data: {plain_text(source)}, the user's own data"]
    else:
        config, split = RunFolder(model.run).config(), RunFolder(model.run).split()
        own = config.dataset.name == OWN_DATA
        name = Path(config.dataset.options["root"]).name if own else config.dataset.name
        lines = [f"- Data: {plain_text(name)}, {'own data' if own else 'a benchmark data set'}"]
        options = ", ".join(f"{option} {value}" for option, value in config.protocol.options.items())
        protocol = f"{config.protocol.name}{f' ({options})' if options else ''}"
        lines.append(f"- Protocol, which decides what samples keep their label: {plain_text(protocol)}")
        lines.append(f"- Samples of the pool, without a label: {sum(split['unlabeled']) + split['unknown']:,}")
        lines.append(f"- Fingerprint: {plain_text(split['data_hash'])}")
    if counts is not None:
        lines.append(f"- Labels: {int(counts.sum()):,}, of {int((counts > 0).sum())} classes")
    lines.append(f"- Origin, consent and collection of the data: {FILL_IN}")
    return "\n".join(lines)


def _training(model: TrainedModel) -> str:
    if isinstance(model.predictor, PortfolioPredictor):
        config, choice = read_portfolio_config(model.run), _json(model.run / CHOICE)
        lines = [
            "- Method: a portfolio of classifiers, combined by cross-validation on the labels",
            f"- Members and their weights: {plain_text(_members(model.predictor.model.portfolio, choice))}",
            f"- Objective: {plain_text(config.objective)}",
            f"- Seed: {config.seed}",
        ]
        verdict = choice.get("verdict")
        if verdict:
            lines.append(f"- Did the pool help? {plain_text(verdict[:1].upper() + verdict[1:])}.")
        return "\n".join(lines)
    run = RunFolder(model.run).config()
    return "\n".join(
        [
            f"- Network: {plain_text(run.model.name)}",
            f"- Learner: {plain_text(run.learner.name)}",
            f"- Guidance: {plain_text(run.guidance.full_name)}",
            f"- Steps: {run.train.iterations:,}",
            f"- Seed: {run.seed}",
        ]
    )


def _members(portfolio: Portfolio, choice: dict[str, Any]) -> str:
    """List the members with their weights, by the names in choice.json where there are any."""
    names = [member["name"] for member in choice.get("members", ()) if member["weight"] > 0]
    if len(names) != len(portfolio.members):
        names = [member.kind for member in portfolio.members]
    shares = portfolio.weights / portfolio.weights.sum()
    return ", ".join(f"{name} ({share:.0%})" for name, share in zip(names, shares, strict=True))


def _class_mix(model: TrainedModel, mix: ClassMix) -> str:
    names, pool = model.inputs.class_names, model.pool_shares
    counts = None if model.calibration is None else model.calibration.num_labels
    header = ["class", "labels", "share of the labels", "estimated share of the pool (95 % interval)", "share inside"]
    rows = []
    for c, name in enumerate(names):
        of_labels = "unknown" if counts is None else f"{counts[c]:,}"
        label_share = "unknown" if counts is None or not counts.sum() else f"{counts[c] / counts.sum():.1%}"
        interval = "no estimate"
        if pool is not None and not math.isnan(pool.shares[c]):
            interval = f"{pool.shares[c]:.1%} ({pool.low[c]:.1%} to {pool.high[c]:.1%})"
        inside = "as trained" if mix.shares is None else f"{mix.shares[c]:.1%}"
        rows.append([plain_text(name), of_labels, label_share, interval, inside])
    sentence = (
        f"The probabilities are for {plain_text(mix.description)}. If the model is used on data with another class "
        "mix, export it again with `--prior`."
    )
    return f"{sentence}\n\n{_table(header, rows)}"


def _metrics(model: TrainedModel, mix: ClassMix, scores: ClassScores | None) -> str:
    if scores is None:
        return (
            "There are no scores: the run stores no predictions for labels that the model was not trained on. Score "
            "the model on data with labels before you use it."
        )
    if isinstance(model.predictor, PortfolioPredictor):
        where = "by cross-validation on the labels: models that were not fitted to a label predicted it"
    elif RunFolder(model.run).config().dataset.name == OWN_DATA:
        where = "on held-out labels, which the network was not trained on"
    else:
        where = "on the test set of the benchmark"
    weighted = "" if mix.shares is None else " Precision and accuracy are converted to the class mix inside."
    rows = [
        [plain_text(name), f"{count:,}{' (few)' if count < FEW_SCORED else ''}", _percent(recall), _percent(precision)]
        for name, count, recall, precision in zip(
            model.inputs.class_names, scores.num_scored, scores.recall, scores.precision, strict=True
        )
    ]
    return (
        f"Measured {where}. The predicted class is the one with the largest probability.{weighted}\n\n"
        f"- Accuracy: {_percent(scores.accuracy)}\n- Balanced accuracy: {_percent(scores.balanced_accuracy)}\n\n"
        + _table(["class", "scored labels", "recall", "precision"], rows)
    )


def _limits(model: TrainedModel, mix: ClassMix, scores: ClassScores | None) -> str:
    lines = [
        "The estimated class shares, and the scores for a class mix, assume that the samples of a class look alike "
        "with and without a label. If annotators labelled only the easy samples of a class, the scores are too high.",
        "The model always names one of its classes, also for a sample that belongs to none of them.",
        "The probabilities hold for the class mix above, and for data that were collected like the training data.",
    ]
    counts = None if model.calibration is None else model.calibration.num_labels
    names = model.inputs.class_names
    if counts is not None and (counts == 0).any():
        absent = ", ".join(plain_text(name) for name, count in zip(names, counts, strict=True) if count == 0)
        lines.append(f"These classes had no label, so the model practically never predicts them: {absent}.")
    if scores is not None and (scores.num_scored < FEW_SCORED).any():
        few = ", ".join(
            plain_text(name) for name, count in zip(names, scores.num_scored, strict=True) if count < FEW_SCORED
        )
        lines.append(f"The scores of these classes are from fewer than {FEW_SCORED} labels and very uncertain: {few}.")
    if kind_of(model.inputs) == "table":
        lines.append(
            "Numbers far outside the range of training are clipped. Categories that training did not know count as "
            "other or as missing."
        )
    lines.append(f"Uses that are out of scope, and known harms: {FILL_IN}")
    return "\n".join(f"- {line}" for line in lines)


def _use(model_file: str, difference: float) -> str:
    return (
        f"`example.py` loads `{model_file}` without mnar and predicts a file or a folder. `preprocessing.json` says "
        "what the inputs mean. Preprocessing is inside the model, except for reading files.\n\n"
        f"The exported file was compared with the model of the run on made-up samples. The largest difference of a "
        f"probability was {difference:.1e}."
    )


def _provenance(model: TrainedModel) -> str:
    lines = [f"- Run folder: {plain_text(model.run.resolve().name)}"]
    made = _json(model.run / ENVIRONMENT)
    versions = [f"{name} {made[name]}" for name in ("mnar", "commit", "torch") if isinstance(made.get(name), str)]
    if versions:
        lines.append(f"- Trained with {plain_text(', '.join(versions))}")
    return "\n".join([*lines, f"- Exported with mnar {mnar.__version__}"])


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object. The card leaves out what a missing or damaged file would tell."""
    try:
        content = from_json(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
