"""Weak and strong views of whole batches, computed on the device, with a separate random draw for each sample."""

from mnar.augment.views import Augment, Standardize, kind_of

__all__ = ["Augment", "Standardize", "kind_of"]
