"""The scikit-learn interface.

`MNARClassifier` is an estimator that trains on partly labelled rows. `self_training` makes such an estimator from any
scikit-learn classifier. `LabeledOnlyKFold` is a cross-validation splitter for such data.
"""

from mnar.sklearn_api.classifier import MNARClassifier
from mnar.sklearn_api.labeled_folds import LabeledOnlyKFold
from mnar.sklearn_api.self_training import GuidedSelfTraining, self_training

__all__ = ["GuidedSelfTraining", "LabeledOnlyKFold", "MNARClassifier", "self_training"]
