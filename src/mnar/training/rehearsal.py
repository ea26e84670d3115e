"""The rehearsal before the first step compiles the kernels of the model and tries whether a step fits into memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from mnar import distributed
from mnar.learners import Learner
from mnar.models import Classifier
from mnar.models.side_stream import weight_gradients_aside
from mnar.training.engine import Engine
from mnar.training.loader import Loader


def rehearse(
    model: Classifier, learner: Learner, loader: Loader, engine: Engine, *, sample_shape: Sequence[int], first_step: int
) -> None:
    """On a GPU, run a forward and backward pass with the largest batch before the first step.

    If the batch does not fit into memory, the error names a smaller one. The rehearsal is skipped if the first step has
    the largest batch and the engine uses no Triton kernels.

    A thread compiles the Triton kernels of the model, while the first batch compiles those of the augmentation.
    """
    device = engine.device
    grows_on_gpu = len(loader.stages) > 1 and device.type == "cuda"
    if not (engine.fused or grows_on_gpu):
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), ThreadPoolExecutor() as aside:
        passes = aside.submit(forward_and_backward, copy.deepcopy(model), learner, engine, sample_shape)
        try:
            loader.seek(first_step)
            loader.batch()
            passes.result()
        except torch.OutOfMemoryError as error:
            raise ValueError(_too_large(learner, device)) from error


def forward_and_backward(model: Classifier, learner: Learner, engine: Engine, sample_shape: Sequence[int]) -> None:
    """Compute the gradients of a model for a batch of zeros, with the largest batch size of a step."""
    device, task = engine.device, learner.task
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own current device
    network = engine.network(model)
    size, num_unlabeled = (n // distributed.world_size() for n in (learner.forward_size, task.batch_unlabeled))
    batch = torch.zeros(size, *sample_shape, device=device)
    if batch.ndim == 4:
        batch = batch.contiguous(memory_format=torch.channels_last)
    # labelled images, weak views, all other views
    num_labeled = size - len(learner.views) * num_unlabeled
    views = batch.tensor_split([num_labeled, num_labeled + num_unlabeled])
    loss = network(learner.together(*views)).float().sum()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with weight_gradients_aside(device):  # this needs more memory than a plain backward pass
        torch.autograd.grad(loss, trained, allow_unused=True)


def _too_large(learner: Learner, device: torch.device) -> str:
    """Say that the largest batch does not fit into memory, and what to do."""
    task, size = learner.task, "batch_unlabeled" if learner.views else "batch_labeled"
    smaller = max(1, getattr(task, size) // 2)
    return (
        f"a step with {task.batch_labeled} labelled and {task.batch_unlabeled} unlabelled samples, the largest batch "
        f"of this run, does not fit into the memory of {device}; start a new run with a smaller batch, e.g. --set "
        f"train.{size}={smaller}"
    )
