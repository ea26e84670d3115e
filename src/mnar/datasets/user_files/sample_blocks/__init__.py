"""New samples for a trained model, read block by block, so that a source may be larger than the memory.

Every source gives a `SampleBlocks`. A sample needs no label here; a label column of the source is not read.
"""

from mnar.datasets.user_files.sample_blocks.blocks import ROWS_PER_BLOCK, SampleBlock, SampleBlocks, evenly_spread
from mnar.datasets.user_files.sample_blocks.open_samples import open_samples

__all__ = ["ROWS_PER_BLOCK", "SampleBlock", "SampleBlocks", "evenly_spread", "open_samples"]
