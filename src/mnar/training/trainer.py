"""The training loop (`train`), and the `Trainer`, which holds everything that a step changes.

To follow one batch, read `train` at the end of this file, then `Trainer.step`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.learners import Learner
from mnar.models import Classifier
from mnar.models.batch_norm import running_statistics
from mnar.models.classifier import load_body
from mnar.models.side_stream import weight_gradients_aside
from mnar.training.collapse import what_is_wrong
from mnar.training.early_stopping import BestSoFar, evaluating
from mnar.training.engine import Engine
from mnar.training.loader import Loader
from mnar.training.meters import Diverged, Meters
from mnar.training.metrics_line import metrics_line
from mnar.training.optimizer import Average, load_optimizer, make_optimizer
from mnar.training.options import TrainOptions
from mnar.training.recorder import Recorder
from mnar.training.rehearsal import rehearse
from mnar.training.schedule import SCHEDULES, warm_up
from mnar.training.stages import part_end
from mnar.types import DataSet, Selection


class Interrupted(RuntimeError):
    """Training stopped on request, after it saved a checkpoint."""


class Drifted(ValueError):
    """The processes of a training no longer hold the same state."""


class Due(NamedTuple):
    """What the training loop does after a step, besides the step itself."""

    evaluation: bool
    log: bool  # the means since the last log; an evaluation contains them
    checkpoint: bool
    next_generation: bool
    new_graph: bool  # a new CUDA graph of the step, since the optimiser or the size of the batch is new


class Trainer:
    """A model, its learner, optimiser and average, and everything else that a training step changes.

    fresh_model    makes a new, untrained model; needed by learners and guidances that train in generations
    held_out       samples and labels for early stopping (`train.validation`)
    """

    def __init__(
        self,
        model: Classifier,
        learner: Learner,
        loader: Loader,
        data: DataSet,
        options: TrainOptions,
        engine: Engine,
        fresh_model: Callable[[], Classifier] | None = None,
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if learner.generations > 1 and fresh_model is None:
            raise ValueError(
                "this learner trains in generations; pass the trainer `fresh_model`, which makes a new model"
            )
        self.options, self.engine, self.loader, self.fresh_model = options, engine, loader, fresh_model
        self.model = engine.place(model).train()
        self.learner = learner.to(engine.device)
        self.network = learner.guidance.watch(engine.network(self.model))
        engine.guide(learner.guidance, num_steps=options.iterations)
        self.average = Average(self.model, float(options.ema))
        if learner.uses_teacher:
            if options.ema == 0:
                raise ValueError(
                    "train.ema is 0, so the averaged teacher would equal the student; choose e.g. --set train.ema=0.999"
                )
            learner.set_teacher(learner.guidance.watch(engine.network(self.average.model.train())))
        self._statistics = running_statistics(self.model)
        self.lr = torch.tensor(options.lr, device=engine.device)
        self.optimizer = self._make_optimizer()
        self.steps_done = torch.zeros((), dtype=torch.int64, device=engine.device)
        self.generation = 0
        forgets = learner.forgets and learner.generations > 1
        self._initial_learner_state = copy.deepcopy(learner.state_dict()) if forgets else None
        self.best: BestSoFar | None = None
        if held_out is not None:
            x, y = self.loader.augment(held_out[0].to(engine.device), "id"), held_out[1].to(engine.device)
            network = engine.inference(self.average.model)
            self.best = BestSoFar(self.average.model, network, x, y, patience=options.patience)
        knows_all = bool((loader.unlabeled_targets >= 0).all())
        self.meters = Meters(learner.task.num_classes, engine.device, knows_all=knows_all)
        self.test_x, self.test_y = data.test_x.to(engine.device), data.test_y.to(engine.device)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(
            self.options.optimizer,
            self.model,
            lr=self.lr,
            momentum=self.options.momentum,
            weight_decay=self.options.weight_decay,
            capturable=self.engine.cuda_graph,
        )

    def generation_end(self, generation: int) -> int:
        """The last step of a generation. The lengths of generations differ by at most one step."""
        return part_end(generation, self.learner.generations, self.options.iterations)

    @property
    def bounds(self) -> tuple[int, int]:
        """The last step before the current generation, and the last step of the current generation."""
        return self.generation_end(self.generation - 1), self.generation_end(self.generation)

    @torch.no_grad()
    def evaluated_model(self) -> Classifier:
        """The model that is evaluated and saved: the moving average, or the best model under early stopping.

        If the guidance measures a bias of the logits (`Guidance.test_bias`), the bias of the head is reduced by it.
        """
        bias = self._test_bias()
        if bias is None:
            return self._averaged_or_best
        model = copy.deepcopy(self._averaged_or_best)
        model.head.bias.sub_(bias)
        return model

    @property
    def _averaged_or_best(self) -> Classifier:
        return self.average.model if self.best is None else self.best.model

    @torch.no_grad()
    def _test_bias(self) -> Tensor | None:
        with evaluating(self._averaged_or_best):
            return self.learner.guidance.test_bias(self.engine.inference(self._averaged_or_best))

    def is_refresh_due(self, step: int) -> bool:
        """Whether `Guidance.refresh` runs after this step. Each generation has its own warm-up."""
        guidance = self.learner.guidance
        began, end = self.bounds
        is_warm = step - began >= guidance.refresh_from * (end - began)
        return guidance.refresh_every > 0 and (step - began) % guidance.refresh_every == 0 and is_warm

    def is_over(self, step: int) -> bool:
        """Whether training ends at this step: the last one, or a log step after early stopping gave up."""
        if self.best is not None and self.learner.generations == 1 and step % self.options.log_every == 0:
            return step == self.options.iterations or bool(self.best.gave_up)
        return step == self.options.iterations

    def due(self, step: int, *, is_last: bool, stop: bool) -> Due:
        ends_generation = step == self.generation_end(self.generation) and not is_last
        return Due(
            evaluation=is_last or ends_generation or step % self.options.eval_every == 0,
            log=stop or step % self.options.log_every == 0,
            checkpoint=is_last or stop or ends_generation or step % self.options.save_every == 0,
            next_generation=ends_generation,
            new_graph=not is_last and (ends_generation or self.loader.is_batch_changed(step)),
        )

    @property
    def stopped_early(self) -> bool:
        return int(self.steps_done) < self.options.iterations and self.is_over(int(self.steps_done))

    @property
    def records_pseudo_labels(self) -> bool:
        return bool(self.learner.views) and self.learner.labels_batches

    def pseudo_label_share(self) -> list[float]:
        """The share of each class in the pseudo-labels since the last log; empty if the learner makes none."""
        return self.meters.pseudo_label_share() if self.records_pseudo_labels else []

    def rehearse(self) -> None:
        """Compile the kernels of the model, and refuse a batch that does not fit into memory. This changes nothing."""
        step = int(self.steps_done)
        if not self.is_over(step):
            shape = self.test_x.shape[1:]
            rehearse(self.model, self.learner, self.loader, self.engine, sample_shape=shape, first_step=step)

    def new_step(self) -> Callable[[], None]:
        """The function that takes one step, on a GPU as a new CUDA graph."""
        if self.engine.device.type == "cuda":
            torch.cuda.synchronize(self.engine.device)  # the memory of an earlier graph may be in use until now
        return self.engine.step(self.step)

    def step(self) -> None:
        """Take one training step. The step runs on the device only, so it can become one CUDA graph."""
        batch = self.loader.batch()
        began, end = self.bounds
        done = self.steps_done - began if began else self.steps_done
        progress = torch.div(done, end - began, out=self.learner.progress)
        loss, logs = self.learner(self.network, batch)

        self.optimizer.zero_grad(set_to_none=True)
        with weight_gradients_aside(self.engine.device):
            loss.backward()
        self._average_over_processes()
        self._set_learning_rate(progress, num_steps=end - began)
        if self.options.max_grad_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)  # without a host sync
        self.optimizer.step()
        self.average.update()
        if self.best is not None:
            self.best.update()
        self.steps_done += 1

        logs = {"loss": loss.detach()} | logs
        if self.records_pseudo_labels:
            logs |= {f"guidance/{name}": value for name, value in self.learner.guidance.logs().items()}
            pseudo_labels = self.learner.pseudo_labels[: len(batch.u_index)]  # a batch may be smaller than the largest
            self.meters.add_pseudo_labels(pseudo_labels, self.loader.batch_targets)
        self.meters.add(logs)

    def _average_over_processes(self) -> None:
        """Replace gradients and running statistics of batch norm by their means over all processes.

        A parameter without a gradient, e.g. of a head that the loss does not use, has none in any process.
        """
        if distributed.is_joined():
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            distributed.average([*gradients, *self._statistics])

    def is_stop_agreed(self, step: int, requested: bool) -> bool:
        """Whether a process was asked to stop, so that all processes stop after the same step.

        On a GPU the processes ask each other at log steps only, because the hosts run ahead of their GPUs in between.
        """
        if distributed.world_size() == 1:
            return requested
        is_due = self.engine.device.type == "cpu" or step % self.options.log_every == 0
        return is_due and distributed.any_of(requested)

    def check_equal(self) -> None:
        """Refuse to go on if the weights or the state of learner and guidance differ between processes."""
        parts = {"model": self.model, "average": self.average.model, "learner": self.learner}
        tensors = {f"{part}.{name}": t for part, module in parts.items() for name, t in module.state_dict().items()}
        if different := distributed.different_tensors(tensors):
            raise Drifted(
                f"the processes no longer hold the same state after step {int(self.steps_done)}: "
                f"{', '.join(different)} differ. A learner or guidance of your own must update its state from "
                "distributed.gather(rows); otherwise use GPUs of one kind, or train in one process"
            )

    def _set_learning_rate(self, progress: Tensor, *, num_steps: int) -> None:
        """Set the learning rate of a step. `progress` is the share of the generation's steps before this step."""
        options = self.options
        if options.schedule == "constant" and not options.warmup:
            return
        factor = SCHEDULES[options.schedule](progress)
        if not options.warmup:
            torch.mul(factor, options.lr, out=self.lr)
            return
        torch.mul(options.lr * factor, warm_up(progress + 1 / num_steps, options.warmup), out=self.lr)

    def evaluate(self, step: int, *, is_last: bool = False) -> dict[str, Any]:
        """Evaluate the model and reset the meters. The result is one line of metrics.jsonl."""
        return metrics_line(self, step, is_last=is_last)

    def start_from(self, weights: dict[str, Tensor], *, prefix: str = "") -> None:
        """Start with the weights of another network whose names begin with `prefix`, except for those of the heads."""
        load_body(self.model, weights, prefix)
        self.average.restart()

    def next_generation(self) -> Selection | None:
        """Label the unlabelled set with the trained model, then start again with a fresh network."""
        if self._initial_learner_state is not None:  # before `relabel`, which may set the state of the next generation
            self.learner.load_state_dict(self._initial_learner_state)
        selection = self._relabel()
        if selection is not None:
            self.loader.adopt(selection)
        assert self.fresh_model is not None  # checked in the constructor
        self.model.load_state_dict(self.fresh_model().state_dict())
        self.average.restart()
        if self.best is not None:
            self.best.restart()
        self.optimizer = self._make_optimizer()
        self.generation += 1
        return selection

    def _relabel(self) -> Selection | None:
        """Select the samples that join the labelled set.

        Every process labels the whole pool, with the same random numbers. Process 0 decides, because processors of
        different types round differently.
        """
        with distributed.whole_batches():
            selection = self.learner.relabel(self.predict, self.generation)
        if distributed.world_size() > 1:
            selection = distributed.from_first(None if selection is None else selection.on_host())
            distributed.copy_from_first(self.learner.state_dict().values())
        return selection

    @torch.no_grad()
    def predict(
        self, *, passes: int = 1, dropout: bool = False, labeled: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Predict the whole unlabelled set in order, batch by batch: rows [n], logits [passes, n, k].

        passes     forward passes per batch; they differ if `dropout` is on
        labeled    whether to include rows of the unlabelled set that also have a label
        """
        model = self.evaluated_model()
        network = self.engine.inference(model)
        with evaluating(model):
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.train(dropout)
            for rows, images in self.loader.unlabeled("id", batch=self.options.batch_unlabeled, labeled=labeled):
                yield rows, torch.stack([network(images).float() for _ in range(passes)])

    def check_finite(self) -> None:
        norms = torch._foreach_norm(list(self.model.parameters()))
        if not torch.isfinite(torch.stack(norms)).all():
            raise Diverged("a parameter is not a finite number")

    def state_dict(self) -> dict[str, Any]:
        """Everything that resuming needs. The loader saves only its selection: rows follow from seed and step."""
        on_gpu = self.engine.device.type == "cuda"
        return {
            "steps_done": int(self.steps_done),
            "generation": self.generation,
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict(),
            "best": None if self.best is None else self.best.state_dict(),
            "test_bias": self._test_bias(),
            "optimizer": self.optimizer.state_dict(),
            "learner": self.learner.state_dict(),  # includes the guidance
            "meters": self.meters.state_dict(),
            "loader": self.loader.state_dict(),
            "random": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.engine.device) if on_gpu else None,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps_done.fill_(state["steps_done"])
        self.generation = state.get("generation", 0)
        self.model.load_state_dict(state["model"])
        self.average.model.load_state_dict(state["average"])
        if self.best is not None:
            self.best.load_state_dict(state["best"])
        load_optimizer(self.optimizer, state["optimizer"], lr=self.lr)
        self.learner.load_state_dict(state["learner"])
        self.meters.load_state_dict(state["meters"])
        self.loader.load_state_dict(state.get("loader", {}))
        torch.set_rng_state(state["random"]["cpu"])
        if state["random"]["cuda"] is not None and self.engine.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"], self.engine.device)


def train(trainer: Trainer, recorder: Recorder) -> None:
    """Train from the current step to the last one."""
    trainer.rehearse()
    take_step, refresh = trainer.new_step(), trainer.engine.step(trainer.learner.guidance.refresh)
    step = int(trainer.steps_done)
    is_last = trainer.is_over(step)
    while not is_last:
        step += 1
        trainer.loader.seek(step - 1)
        take_step()
        if trainer.is_refresh_due(step):
            refresh()
        recorder.stepped(step)

        is_last, stop = trainer.is_over(step), trainer.is_stop_agreed(step, recorder.stop_requested)
        due, problem = trainer.due(step, is_last=is_last, stop=stop), what_is_wrong(trainer, step)
        if due.evaluation:
            recorder.evaluation(trainer.evaluate(step, is_last=is_last))
        elif due.log:
            recorder.progress(step, trainer.meters.means(), trainer.pseudo_label_share())
        if problem:
            recorder.collapsed(step, problem)
        if due.checkpoint:
            trainer.check_finite()
        if due.next_generation:
            selection = trainer.next_generation()
            recorder.generation(trainer.generation, selection)
        if due.new_graph:
            take_step = trainer.new_step()
        if due.checkpoint:
            trainer.check_equal()
            recorder.save(step, trainer.state_dict(), must=is_last or stop)
        if stop and not is_last:
            raise Interrupted(f"stopped at step {step} of {trainer.options.iterations}")
