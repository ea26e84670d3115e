"""How much the gradient of a step changes if the weak views are left out of the backward pass.

    python benchmarks/weak_gradient.py --dataset cifar10 --data DIR --steps 0 1000 4000 16000
    python benchmarks/weak_gradient.py --dataset digits --steps 0 300 900

The run itself trains with the gradient of the weak views. At the given steps, the script computes the gradients of one
batch in both ways and prints their cosine and the relative difference, over all parameters and for the first
convolution, which is farthest from the loss.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from mnar.recipes import configure
from mnar.run.assemble import load_data, make_split, make_trainer
from mnar.training.trainer import Trainer


def gradients(trainer: Trainer, *, weak_gradient: bool) -> list[Tensor]:
    """The gradient of each parameter for the batch that `Loader.seek` loaded. Model and learner keep their state."""
    learner, model = trainer.learner, trainer.model
    saved = {name: value.clone() for name, value in learner.state_dict().items()}
    buffers = [buffer.clone() for buffer in model.buffers()]
    learner.weak_gradient = weak_gradient
    torch.manual_seed(0)  # the same views
    loss = learner(trainer.network, trainer.loader.batch()).loss
    found = torch.autograd.grad(loss, list(model.parameters()))
    learner.weak_gradient = True
    learner.load_state_dict(saved)
    for buffer, value in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(value)
    return list(found)


def compared(without: Tensor, with_it: Tensor) -> str:
    """The cosine of two gradients, and the norm of their difference over the norm of the second one."""
    without, with_it = without.double().flatten(), with_it.double().flatten()
    cosine = torch.cosine_similarity(without, with_it, dim=0)
    return f"{cosine:.4f}  {(without - with_it).norm() / with_it.norm():.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 300, 900])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.OPTION=VALUE")
    arguments = parser.parse_args()

    exact = ["engine.precision=float32", "engine.cuda_graph=false", "engine.compile=false", "engine.fused=false"]
    config = configure(
        dataset=arguments.dataset,
        data=arguments.data,
        learner="fixmatch",
        guidance="prg",
        seed=arguments.seed,
        iterations=max(*arguments.steps, 1),
        settings=[*exact, *arguments.set],
    )
    data = load_data(config)
    torch.manual_seed(arguments.seed)
    trainer = make_trainer(config, data, make_split(config, data))
    print("step    cosine and relative difference: all parameters, first convolution")
    for step in range(max(arguments.steps) + 1):
        trainer.loader.seek(step)
        if step in arguments.steps:
            without, with_it = (gradients(trainer, weak_gradient=weak) for weak in (False, True))
            everything = compared(torch.cat([g.flatten() for g in without]), torch.cat([g.flatten() for g in with_it]))
            first = next(i for i, gradient in enumerate(with_it) if gradient.ndim == 4)
            print(f"{step:6}  {everything}   {compared(without[first], with_it[first])}", flush=True)
        if step < max(arguments.steps):
            trainer.step()


if __name__ == "__main__":
    main()
