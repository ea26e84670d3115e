"""A user's own half-labelled data: inspect it, choose defaults for it, train on it, and label the rest.

The files are read by `mnar.datasets.user_files`. inspection/ estimates the class shares of the unlabelled pool,
defaults.py chooses training options, and train.py trains a model and its labels-only baseline and compares them.
This package itself exports no names; import from its modules, e.g. `mnar.own_data.inspection.inspect_data`.
"""
