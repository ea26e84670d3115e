"""The numbers of some figures as text, for readers who cannot see the figures."""

from __future__ import annotations

from collections.abc import Sequence

from mnar.report.methods import Method, Setting
from mnar.report.tables import row
from mnar.training.headline import headline_name
from mnar.training.metrics import overall_metrics

MOST_CLASSES = 20  # the numbers of more classes would take minutes to read aloud


def scores(methods: Sequence[Method]) -> str:
    """The headline scores of each method, e.g. "fixmatch: accuracy 51.0 %, geometric mean 20.1 %."."""
    sentences = []
    for method in methods:
        headline = row(method).headline
        known = [(metric.title, headline_name(metric.name)) for metric in overall_metrics()]
        values = [f"{title} {headline[name].percent} %" for title, name in known if name in headline]
        sentences.append(f"{method.name}: {', '.join(values)}.")
    return " ".join(sentences)


def label_counts(settings: Sequence[Setting]) -> str:
    """The number of labels of each class."""
    sentences = []
    for setting in settings:
        run = setting.run
        if run.num_classes <= MOST_CLASSES:
            names, labels = run.split["class_names"], run.split["labeled"]
            counts = ", ".join(f"{names[i]} {labels[i]:,}" for i in run.class_order)
            sentences.append(f"Labels per class in {setting.name}: {counts}.")
    return " ".join(sentences)


def recalls(methods: Sequence[Method]) -> str:
    """The last recall of each class, averaged over seeds."""
    sentences = []
    for method in methods:
        run = method.run
        if run.num_classes <= MOST_CLASSES:
            values = sum(each.series("test", "recall")[1][-1] for each in method.counted) / len(method.counted)
            tested = [i for i in run.class_order if run.split["test"][i]]
            numbers = ", ".join(f"{run.split['class_names'][i]} {100 * values[i]:.0f} %" for i in tested)
            sentences.append(f"{method.name}: {numbers}.")
    return " ".join(sentences)
