"""Weak and strong views of whole batches, computed on the device, with a separate random draw for each sample.

`Augment` makes the views of images, and `Standardize` those of tables. `kind_of` gives the kind of a view by its name,
and `kinds_of` the kinds of the labelled views.
"""

from mnar.augment.views import Augment, Standardize, kind_of, kinds_of

__all__ = ["Augment", "Standardize", "kind_of", "kinds_of"]
