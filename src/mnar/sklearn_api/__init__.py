"""The scikit-learn interface.

`MNARClassifier` is an estimator that trains on partly labelled rows. `LabeledOnlyKFold` is a cross-validation splitter
for such data.
"""

from mnar.sklearn_api.classifier import MNARClassifier
from mnar.sklearn_api.labeled_folds import LabeledOnlyKFold

__all__ = ["LabeledOnlyKFold", "MNARClassifier"]
