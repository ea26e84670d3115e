"""Banks: tensors with the last known class of each unlabelled sample, or -1 if there is none yet.

A bank has the smallest integer type that holds the classes, i.e. 2 bytes per sample for up to 32,767 classes. The last
row of a bank belongs to no sample: all writes that must not be kept go to this row, because a GPU cannot drop them
without a host sync. If several processes share one bank (`sharded`), each of them holds an equal part of its rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from mnar import distributed


def empty_bank(num_samples: int, num_classes: int) -> Tensor:
    """Return a bank without classes: [num_samples + 1], all -1."""
    dtype = torch.int16 if num_classes <= torch.iinfo(torch.int16).max else torch.int32
    return torch.full((num_samples + 1,), -1, dtype=dtype)


class BankRows:
    """The rows of a bank that this process holds: all rows, or an equal part of them if the bank is sharded.

    Every process must call `read` and `write` with the samples of the whole batch, in the same order.
    """

    def __init__(self, num_samples: int, *, sharded: bool) -> None:
        num_parts = distributed.world_size() if sharded else 1
        self.is_sharded = num_parts > 1
        self.num_samples = num_samples
        self.size = math.ceil(num_samples / num_parts)
        self.first = distributed.rank() * self.size if self.is_sharded else 0

    def read(self, bank: Tensor, index: Tensor) -> Tensor:
        """Return the class of each sample, [n], in the type of the bank."""
        if not self.is_sharded:
            return bank[index]
        # One process has the class of a sample, and all others read -1, so that each of them adds 0 to the sum.
        # int32, because neither NCCL nor gloo can add int16.
        class_or_zero = bank[self._own_row(index)].to(torch.int32) + 1
        return (distributed.total(class_or_zero) - 1).to(bank.dtype)

    def write(self, bank: Tensor, index: Tensor, label: Tensor) -> None:
        """Store the class of each sample. An index of `num_samples`, whose class must be -1, stores nothing."""
        if self.is_sharded:
            index = self._own_row(index)
            label = label.masked_fill(index == self.size, -1)
        bank[index] = label

    def save_whole(self, module: nn.Module, name: str) -> None:
        """Let the state of `module` contain the whole bank `name`, so that any number of processes can load it."""
        if not self.is_sharded:
            return

        def gather(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
            state[prefix + name] = self._whole(state[prefix + name])

        def divide(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            if len(state.get(prefix + name, ())) == self.num_samples + 1:  # otherwise torch reports the wrong size
                state[prefix + name] = self._part(state[prefix + name])

        module.register_state_dict_post_hook(gather)
        module.register_load_state_dict_pre_hook(divide)

    def _own_row(self, index: Tensor) -> Tensor:
        """Return the rows of samples in the part of this process, and its last row for samples of other processes."""
        row = index - self.first
        return torch.where((row >= 0) & (row < self.size), row, self.size)

    def _whole(self, part: Tensor) -> Tensor:
        """Return the bank of all processes, in the memory of the host: it may be too large for a GPU."""
        as_bytes = part[:-1].cpu().view(torch.uint8)  # neither NCCL nor gloo can send int16
        whole = distributed.gather(as_bytes).view(part.dtype)[: self.num_samples]
        return torch.cat([whole, whole.new_tensor([-1])])

    def _part(self, whole: Tensor) -> Tensor:
        own = whole[:-1][self.first : self.first + self.size]
        return torch.cat([own, own.new_full((self.size + 1 - len(own),), -1)])
