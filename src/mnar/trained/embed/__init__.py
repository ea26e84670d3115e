"""Compute features of the user's samples with any network: `mnar features`.

samples.py reads the samples, network.py makes the network, scaling.py says how its inputs are scaled, outputs.py turns
its outputs into one row of numbers per sample, and embed.py does this for all samples and writes the file. record.py
stores beside the file how the inputs were made, for new data.
"""

from mnar.trained.embed.embed import Embedded, write_features

__all__ = ["Embedded", "write_features"]
