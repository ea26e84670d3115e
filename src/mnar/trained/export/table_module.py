"""The encoding of a table as a torch module: numbers are standardised, and categories become one-hot columns."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from mnar.datasets.user_files.table_encoder import MAX_DEVIATIONS, TableEncoder

SMALLEST, LARGEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class TableModule(nn.Module):
    """Encodes raw columns as `TableEncoder.transform` does.

    Numbers are float64 [n, p], NaN or infinite if missing. Categories are int64 [n, q] codes: the position of the level
    in `levels`, -1 if missing, and the number of levels for any other text. A table without numbers or without
    categories has only one input.
    """

    means: Tensor  # [p]
    stds: Tensor  # [p]
    source: Tensor  # [e] per one-hot column: the categorical column that it comes from
    first: Tensor  # [e] the one-hot column is 1 if the code lies in first..last
    last: Tensor  # [e]
    order: Tensor  # positions of the encoded columns among standardised numbers, missing numbers and one-hot columns

    def __init__(self, encoder: TableEncoder) -> None:
        super().__init__()
        self.has_numbers, self.has_categories = bool(encoder.numeric_names), bool(encoder.categorical_names)
        num_numeric = len(encoder.numeric_names)
        order = []
        for j in range(num_numeric):
            order.append(j)
            if encoder.numeric_had_missing[j]:
                order.append(num_numeric + j)
        ranges = [one for j in range(len(encoder.categorical_names)) for one in _code_ranges(encoder, j)]
        order += range(2 * num_numeric, 2 * num_numeric + len(ranges))
        table = torch.tensor(ranges, dtype=torch.int64).reshape(-1, 3)
        self.register_buffer("means", torch.tensor(encoder.means, dtype=torch.float64))
        self.register_buffer("stds", torch.tensor(encoder.stds, dtype=torch.float64))
        for name, column in zip(("source", "first", "last"), table.T, strict=True):
            self.register_buffer(name, column.contiguous())
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64))

    def forward(self, *columns: Tensor) -> Tensor:
        """Return the encoded table, float32 [n, d]."""
        parts = []
        if self.has_numbers:
            numbers = columns[0].double()
            is_missing = torch.isnan(numbers) | torch.isinf(numbers)
            standardised = (torch.where(is_missing, 0.0, numbers) - self.means) / self.stds
            clipped = standardised.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
            parts += [torch.where(is_missing, 0.0, clipped).float(), is_missing.float()]
        if self.has_categories:
            codes = columns[-1][:, self.source]
            parts.append(((codes >= self.first) & (codes <= self.last)).float())
        return torch.cat(parts, 1)[:, self.order]


def _code_ranges(encoder: TableEncoder, column: int) -> list[tuple[int, int, int]]:
    """Return (column, first code, last code) of each one-hot column that a categorical column becomes."""
    num_alone = encoder.num_levels_alone[column]
    ranges = [(column, code, code) for code in range(num_alone)]
    if encoder.had_others[column]:
        ranges.append((column, num_alone, LARGEST))
    if encoder.categorical_had_missing[column]:
        ranges.append((column, SMALLEST, -1))
    return ranges
