"""PRG: class-transition tracking based Pseudo-Rectifying Guidance (Duan et al., ICCV 2023).

PRG counts how the predicted class of each sample changes from one visit to the next. These transition counts, row by
row, form a random walk over the classes. PRG divides each column of the walk by the share of that class in the
predictions. To rectify a pseudo-label, PRG multiplies it by one row of the result and normalises the product.

    paper    here                 meaning
    l        bank                 class predicted for each unlabelled sample at its last visit; -1 before the first
    C        transitions          number of moves i -> j in the last `window` batches                Eq. (track)
    L        class_usage          share of each class in the predictions of the window
    H'       guidance_matrix()    random walk on C, self-loop alpha/(k-1), divided by L              Eq. (sca)
    p~       forward()            normalise(p * H'[row]), row = argmax p (PRG) or l (PRG^Last)       Eq. (de3)

Two options are not in the paper. `smoothing` adds b transitions to each pair of classes, as a Dirichlet prior does:
H_ij = (C_ij + b) / (sum_j C_ij + b (k - 1)). Without smoothing, a transition that was not counted within the window is
impossible. `pool_shares` pushes the pseudo-labels towards class shares pi other than uniform:
H'_ij = H_ij pi_j / L_j.

The paper and its published code differ. docs/methods/prg.md says which of them this implementation follows, and why.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mnar import distributed
from mnar.guidances.bank import BankRows, empty_bank
from mnar.guidances.distribution_alignment import target_shares
from mnar.guidances.guidance import Guidance
from mnar.option_values import ClassSize, Factor, Range, Window, checked_options
from mnar.types import Task

MOST_CLASSES = math.isqrt(torch.iinfo(torch.int32).max)  # the codes of k^2 transitions are 32-bit integers
SMALLEST_SHARE = 1e-12  # share of a class that is never predicted: keeps H / L finite


class PRG(Guidance):
    """Rectify pseudo-labels with the class transitions of the recent batches.

    Call `q = guidance(probs, index)` once per step, where `guidance = PRG(task)`.

    alpha        weight of staying in the class
    window       number of recent batches that C and L cover
    last         True: PRG^Last, i.e. the row of H' is the class predicted at the sample's last visit
    rescale      whether to divide H by the class usage L, Eq. (sca)
    steps        number of steps of the random walk
    usage        "soft": L is the mean of the predictions; "hard": L counts their arg-max classes
    empty_row    for a class that no sample left within the window, "onehot" makes p~ one-hot, as the formula does, and
                 "identity" leaves p unchanged
    smoothing    transitions that are added to each row of C, spread over all other classes. The unit is the number of
                 visits that a class with the average share has within the window. The paper has none
    pool_shares  class shares of the pool, towards which the division by L pushes the pseudo-labels: "uniform" as in the
                 paper, "labeled" for the class distribution of the labels, or one positive number per class
    shard_bank   several processes only: each process holds a part of l, and they look up the batch together
    """

    paper = "Duan et al., ICCV 2023"

    pool_shares: Tensor | None
    bank: Tensor
    counts: Tensor
    events: Tensor
    usage_ring: Tensor
    batches: Tensor
    ones: Tensor
    empty_row_share: Tensor

    @checked_options
    def __init__(
        self,
        task: Task,
        *,
        alpha: Factor = 1.0,
        window: Window = 128,
        last: bool = False,
        rescale: bool = True,
        steps: Annotated[int, Range(1, 1000)] = 1,
        usage: Literal["soft", "hard"] = "soft",
        empty_row: Literal["onehot", "identity"] = "onehot",
        smoothing: Factor = 0.0,
        pool_shares: Literal["uniform", "labeled"] | tuple[ClassSize, ...] = "uniform",
        shard_bank: bool = False,
    ) -> None:
        super().__init__(task)
        if pool_shares != "uniform" and not rescale:
            raise ValueError(
                f"pool_shares is {pool_shares!r}, but rescale is false; PRG must divide by L to reach the class shares "
                "of the pool. Set rescale to true, or pool_shares to uniform"
            )
        self.alpha, self.window, self.last, self.rescale = alpha, window, last, rescale
        self.steps, self.soft_usage, self.empty_row_identity = steps, usage == "soft", empty_row == "identity"

        k = task.num_classes
        if k > MOST_CLASSES:
            raise ValueError(
                f"num_classes is {k}; PRG counts the transitions between at most {MOST_CLASSES} classes. Choose "
                "another guidance, e.g. distribution_alignment"
            )
        num_visits = window * task.batch_unlabeled
        self.added = smoothing * num_visits / k  # per row of C
        # With smoothing, H_ij is positive also if no sample is predicted as class j. Then L_j counts as one visit.
        self.smallest_share = 1 / num_visits if smoothing > 0 else SMALLEST_SHARE
        shares = None if pool_shares == "uniform" else target_shares(pool_shares, task, option="pool_shares")
        self.register_buffer("pool_shares", shares, persistent=False)
        self.nowhere = k * k  # the event code of a sample that did not move
        self.bank_rows = BankRows(task.num_unlabeled, sharded=shard_bank)
        self.bank_rows.save_whole(self, "bank")
        self.register_buffer("bank", empty_bank(self.bank_rows.size, k))
        # `counts` is the sum over the window, and `events` stores what each batch added, so that it can be subtracted
        # later. This takes O(window * batch) memory instead of O(window * k^2).
        self.register_buffer("counts", torch.zeros(k * k + 1))  # float32 holds these integers exactly
        events = torch.full((window, task.batch_unlabeled), self.nowhere, dtype=torch.int32)
        self.register_buffer("events", events)
        self.register_buffer("usage_ring", torch.zeros(window, k))
        self.register_buffer("batches", torch.zeros(1, dtype=torch.int64))  # number of batches tracked so far
        self.register_buffer("ones", torch.ones(task.batch_unlabeled), persistent=False)  # each event counts as one
        self.register_buffer("empty_row_share", torch.zeros(()), persistent=False)

    @torch.no_grad()
    def forward(self, probs: Tensor, index: Tensor) -> Tensor:
        self.check(probs, index)
        probs = probs.detach().float()  # half-precision logits can tie, and a tie may look like a transition
        label = probs.argmax(1)
        # The samples of all processes. int32 halves the traffic between them.
        index = distributed.gather(index, sent_as=torch.int32)
        before = self.bank_rows.read(self.bank, index)
        if self.last:
            row = distributed.own_rows(before).long()
            visited = (row >= 0).unsqueeze(1)  # a sample at its first visit is not rectified
            rectified = self._rectify(probs, row.clamp(min=0), visited)
            self._track(probs, label, index, before)
        else:
            self._track(probs, label, index, before)
            rectified = self._rectify(probs, label)
        return rectified

    @property
    def transitions(self) -> Tensor:
        """C: how often a sample moved from class i to class j within the window, [k, k]."""
        k = self.task.num_classes
        return self.counts[: self.nowhere].view(k, k)

    @property
    def class_usage(self) -> Tensor:
        """L: the share of each class in the predictions of the window, [k]."""
        total = self.usage_ring.sum(0)
        return total / total.sum().clamp(min=SMALLEST_SHARE)

    def guidance_matrix(self) -> Tensor:
        """H' to the power of `steps`, [k, k]. A row is defined up to a factor, because `_rectify` normalises."""
        walk, leaving = self._one_step(torch.arange(self.task.num_classes, device=self.counts.device))
        matrix = walk
        for _ in range(self.steps - 1):
            matrix = matrix @ walk
            matrix = matrix / matrix.sum(1, keepdim=True).clamp(min=SMALLEST_SHARE)  # stays within float32
        return torch.where(leaving == 0, 1.0, matrix) if self.empty_row_identity else matrix

    def logs(self) -> dict[str, Tensor]:
        return {"empty_row_share": self.empty_row_share, "transitions": self.transitions.sum()}

    def matrices(self) -> dict[str, Tensor]:
        return {"transitions": self.transitions}

    def _one_step(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return H'[row] for one step of the walk, [n, k], and how many transitions leave each of these rows, [n, 1].

        Only the given rows are computed, because k may be 1,000.
        """
        walk = self.transitions[row]  # a copy, so the lines below do not change the buffer
        leaving = walk.sum(1, keepdim=True)
        if self.added > 0:
            walk.add_(self.added / (self.task.num_classes - 1)).div_(leaving + self.added)
        else:
            walk /= leaving.clamp(min=1)
        walk.scatter_(1, row.unsqueeze(1), self.alpha / (self.task.num_classes - 1))  # H_ii; no second normalisation
        if self.rescale:
            walk /= self.class_usage.clamp(min=self.smallest_share)  # Eq. (sca)
        if self.pool_shares is not None:
            walk *= self.pool_shares
        return walk, leaving

    def _rectify(self, probs: Tensor, row: Tensor, visited: Tensor | None = None) -> Tensor:
        """Rectify the predictions with these rows of H', where `visited` [n, 1] is true; None: everywhere."""
        guide, leaving = self._one_step(row)
        if self.steps > 1:
            guide = self.guidance_matrix()[row]

        rectified = guide * probs  # Eq. (de3)
        mass = rectified.sum(1, keepdim=True)
        rectified /= mass
        guided = (mass > 0) & (mass < math.inf)
        if visited is not None:
            guided &= visited
        if self.empty_row_identity:
            guided &= leaving > 0

        empty = leaving.eq_(0)  # 1.0 or 0.0
        if visited is not None:
            empty *= visited
        torch.mean(empty, dim=(0, 1), out=self.empty_row_share)
        return torch.where(guided, rectified, probs)

    def _track(self, probs: Tensor, label: Tensor, index: Tensor, before: Tensor) -> None:
        """Count the transitions of this batch, and remove those of the batch that leaves the window.  Eq. (track)

        probs, label     the predictions of this process, and their classes
        index, before    the samples of all processes, and their classes in the bank
        """
        label = distributed.gather(label, sent_as=torch.int32)
        if self.soft_usage:
            usage = distributed.mean(probs.mean(0))
        else:
            usage = F.one_hot(label, self.task.num_classes).sum(0).float()  # `class_usage` normalises the scale

        # A sample may occur more than once in the batch. A stable sort by sample makes its visits neighbours and keeps
        # their order. The class before a visit is then that of the left neighbour, or the class in the bank for the
        # first visit in this batch. The result is that of a sequential loop over the batch. A GPU sorts int32 in about
        # half the time of int64. The lines below work in place where they can, because each operation is one kernel,
        # which takes about 2 µs on a GPU, however little it computes.
        index, order = index.to(torch.int32).sort(stable=True)
        label, come_from = label[order], before[order]
        stored = label.to(self.bank.dtype)
        is_again = index[1:] == index[:-1]  # whether a visit, from the second on, has the sample of its left neighbour
        torch.where(is_again, stored[:-1], come_from[1:], out=come_from[1:])
        stayed = (come_from < 0) | (come_from == stored)
        event = torch.empty_like(label, dtype=torch.int32)  # the type of the bank may be too small for k^2 codes
        torch.add(label, come_from, alpha=self.task.num_classes, out=event).masked_fill_(stayed, self.nowhere)
        if len(event) < len(self.ones):
            event = F.pad(event, (0, len(self.ones) - len(event)), value=self.nowhere)

        # The last visit of a sample writes its class to the bank. The other visits write -1 to the extra row.
        index[:-1].masked_fill_(is_again, self.task.num_unlabeled)
        stored[:-1].masked_fill_(is_again, -1)
        self.bank_rows.write(self.bank, index, stored)

        slot = self.batches.remainder(self.window)
        expired = self.events[slot].squeeze(0)
        self.counts.index_add_(0, expired, self.ones, alpha=-1).index_add_(0, event, self.ones)
        self.events[slot] = event
        self.usage_ring[slot] = usage.nan_to_num()  # a NaN in one batch must not make L NaN for a whole window
        self.batches += 1
