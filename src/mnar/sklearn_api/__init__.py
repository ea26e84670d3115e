"""scikit-learn: `MNARClassifier` trains on partly labelled rows, `LabeledOnlyKFold` cross-validates such data."""

from mnar.sklearn_api.classifier import MNARClassifier
from mnar.sklearn_api.labeled_folds import LabeledOnlyKFold

__all__ = ["LabeledOnlyKFold", "MNARClassifier"]
