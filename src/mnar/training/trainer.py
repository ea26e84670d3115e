"""The loop, and what a checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mnar.learners import Learner
from mnar.models import Classifier
from mnar.training.early_stopping import BestSoFar, evaluating
from mnar.training.engine import Engine
from mnar.training.evaluation import count_pairs, pseudo_label_scores, scores_on
from mnar.training.loader import Loader
from mnar.training.meters import Diverged, Meters
from mnar.training.optimizer import Average, cosine, make_optimizer
from mnar.training.options import TrainOptions
from mnar.types import DataSet, Selection

NUM_SNAPSHOTS = 20  # evaluations, spread over a run, whose matrices are kept: a metrics file stays small at k = 100


class Interrupted(RuntimeError):
    """Training was asked to stop, and has saved."""


class Recorder(Protocol):
    """Whoever keeps what training produces."""

    @property
    def stop_requested(self) -> bool: ...
    def stepped(self, step: int) -> None: ...
    def progress(self, step: int, means: dict[str, float], pseudo_label_share: list[float]) -> None: ...
    def evaluation(self, line: dict[str, Any]) -> None: ...
    def generation(self, number: int, selection: Selection | None) -> None: ...
    def save(self, step: int, state: dict[str, Any], *, must: bool) -> None: ...


class Trainer:
    """A model, a learner and all else that a step changes."""

    def __init__(
        self,
        model: Classifier,
        learner: Learner,
        loader: Loader,
        data: DataSet,
        options: TrainOptions,
        engine: Engine,
        renew: Callable[[], Classifier] | None = None,
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.options, self.engine, self.loader, self.renew = options, engine, loader, renew
        self.model = engine.place(model).train()
        self.learner = learner.to(engine.device)
        self.network = learner.guidance.watch(engine.network(self.model))
        engine.guide(learner.guidance)
        self.average = Average(self.model, options.ema)
        if learner.uses_teacher:
            if options.ema == 0:
                raise ValueError("train.ema is 0, so the teacher would be the student itself; choose one like 0.999")
            learner.set_teacher(learner.guidance.watch(engine.network(self.average.model.train())))
        self.lr = torch.tensor(options.lr, device=engine.device)
        self.optimizer = self._make_optimizer()
        self.steps_done = torch.zeros((), dtype=torch.int64, device=engine.device)
        self.generation = 0
        forgets = learner.forgets and learner.generations > 1
        self._at_first = copy.deepcopy(learner.state_dict()) if forgets else None
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
        """Its last step; generations are as long as each other, up to a step."""
        return (generation + 1) * self.options.iterations // self.learner.generations

    @property
    def bounds(self) -> tuple[int, int]:
        """The last step before the present generation, and its own last."""
        return self.generation_end(self.generation - 1), self.generation_end(self.generation)

    @torch.no_grad()
    def evaluated_model(self) -> Classifier:
        """The model to score, to predict with and to hand out."""
        bias = self._test_bias()
        if bias is None:
            return self._chosen
        model = copy.deepcopy(self._chosen)
        model.head.bias.sub_(bias)
        return model

    @property
    def _chosen(self) -> Classifier:
        return self.average.model if self.best is None else self.best.model

    @torch.no_grad()
    def _test_bias(self) -> Tensor | None:
        with evaluating(self._chosen):
            return self.learner.guidance.test_bias(self.engine.inference(self._chosen))

    def is_refresh_due(self, step: int) -> bool:
        """Whether the guidance works on the whole unlabelled set after this step; a generation has its own warm-up."""
        guidance = self.learner.guidance
        began, end = self.bounds
        is_warm = step - began >= guidance.refresh_from * (end - began)
        return guidance.refresh_every > 0 and (step - began) % guidance.refresh_every == 0 and is_warm

    def is_over(self, step: int) -> bool:
        """After the last step, or once nothing better comes on the labels held out; that is asked with the log."""
        if self.best is not None and self.learner.generations == 1 and step % self.options.log_every == 0:
            return step == self.options.iterations or bool(self.best.gave_up)
        return step == self.options.iterations

    @property
    def stopped_early(self) -> bool:
        return int(self.steps_done) < self.options.iterations and self.is_over(int(self.steps_done))

    @property
    def notes_pseudo_labels(self) -> bool:
        return bool(self.learner.views) and self.learner.labels_batches

    @property
    def images_per_step(self) -> int:
        return self.options.batch_labeled + len(self.learner.views) * self.options.batch_unlabeled

    def warm_up(self) -> None:
        """Compile what the first step needs: the model's kernels beside those of the augmentation.

        Only our own kernels gain by it; torch.compile takes one thing at a time.
        """
        if not self.engine.fused or self.is_over(int(self.steps_done)):
            return
        device = self.engine.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), ThreadPoolExecutor() as aside:
            rehearsal = aside.submit(self._rehearse)
            self.loader.seek(0)
            self.loader.batch()
            rehearsal.result()

    def _rehearse(self) -> None:
        """One forward and backward of a copy of the model, at the size of a step."""
        if self.engine.device.type == "cuda":
            torch.cuda.set_device(self.engine.device)  # each thread has its own current device
        network = self.engine.network(copy.deepcopy(self.model))
        batch = torch.zeros(self.learner.forward_size, *self.test_x.shape[1:], device=self.engine.device)
        if batch.ndim == 4:
            batch = batch.contiguous(memory_format=torch.channels_last)
        network(batch).float().sum().backward()

    def step(self) -> None:
        """One training step: only device work, so all of it can be one CUDA graph."""
        batch = self.loader.batch()
        began, end = self.bounds
        progress = (self.steps_done - began) / (end - began)
        self.learner.progress.copy_(progress)
        loss, logs = self.learner(self.network, batch)

        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.options.schedule == "cosine":
            self.lr.copy_(self.options.lr * cosine(progress))
        self.optimizer.step()
        self.average.update()
        if self.best is not None:
            self.best.update()
        self.steps_done += 1

        logs = {"loss": loss.detach()} | logs
        if self.notes_pseudo_labels:
            logs |= {f"guidance/{name}": value for name, value in self.learner.guidance.logs().items()}
            self.meters.add_pseudo_labels(self.learner.pseudo_labels, self.loader.unlabeled_targets[batch.u_index])
        self.meters.add(logs)

    def evaluate(self, step: int, *, is_last: bool = False) -> dict[str, Any]:
        """One line of metrics.jsonl, about the steps since the last one. Starts the meters anew."""
        means = self.meters.means()  # first: it fails if training has diverged
        num_classes = self.learner.task.num_classes
        model = self.evaluated_model()
        with evaluating(model):
            scores, confusion = scores_on(
                self.engine.inference(model),
                self.test_x,
                self.test_y,
                lambda x: self.loader.augment(x, "id"),
                num_classes=num_classes,
            )
        line = {
            "step": step,
            "images": step * self.images_per_step,
            "test": scores,
            "train": means,
        }
        matrices = {"test_confusion": confusion}
        if self.best is not None:
            line["validation"] = {
                "loss": self.best.loss.item(),
                "steps_since": int(self.best.waited),
                "is_over": is_last,
            }
        if self.learner.generations > 1:
            line["generation"] = self.generation
        if self.loader.selection is not None:
            line["selection"] = self._selection_scores(self.loader.selection)
        if self.notes_pseudo_labels:
            line["pseudo"] = pseudo_label_scores(self.meters.pseudo_confusion.cpu())
            matrices["pseudo_confusion"] = self.meters.pseudo_confusion[:num_classes]
        if estimates := self.learner.guidance.estimates():
            line["guidance"] = {name: values.tolist() for name, values in estimates.items()}
        matrices |= self.learner.guidance.matrices()
        if is_last or self._is_snapshot(step):
            line["matrices"] = {name: matrix.long().tolist() for name, matrix in matrices.items()}
        self.meters.reset()
        return line

    def _selection_scores(self, selection: Selection) -> dict[str, Any]:
        num_classes = self.learner.task.num_classes
        labels = torch.full_like(self.loader.unlabeled_targets, num_classes)  # nobody's, if not selected
        labels[selection.rows] = selection.labels
        truth = torch.where(self.loader.unlabeled_targets < 0, num_classes, self.loader.unlabeled_targets)
        return pseudo_label_scores(count_pairs(truth, labels, num_classes + 1, num_classes + 1).cpu())

    def load_encoder(self, weights: dict[str, Tensor]) -> None:
        """Take the part of the model that a stage before has trained."""
        mine = self.model.state_dict()
        of_encoder = {name: tensor for name, tensor in weights.items() if name.startswith("encoder.")}
        if of_encoder.keys() != {name for name in mine if name.startswith("encoder.")}:
            raise ValueError("it has no such encoder; name a run of vime_self")
        self.model.load_state_dict(mine | of_encoder)
        self.average.restart()

    def next_generation(self) -> Selection | None:
        """Label the unlabelled set with what was learned, then begin anew with a fresh network."""
        if self._at_first is not None:
            self.learner.load_state_dict(self._at_first)
        selection = self.learner.relabel(self.predict, self.generation)
        if selection is not None:
            self.loader.adopt(selection)
        if self.renew is None:
            raise ValueError("this learner trains in generations; give the trainer `renew`, which makes a fresh model")
        self.model.load_state_dict(self.renew().state_dict())
        self.average.restart()
        if self.best is not None:
            self.best.restart()
        self.optimizer = self._make_optimizer()
        self.generation += 1
        return selection

    @torch.no_grad()
    def predict(
        self, *, passes: int = 1, dropout: bool = False, labeled: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits for the whole unlabelled set, in order: rows [n], logits [passes, n, k].

        Without `labeled`, its rows that are labelled as well are left out.
        """
        model = self.evaluated_model()
        network = self.engine.inference(model)
        with evaluating(model):
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.train(dropout)
            for rows, images in self.loader.unlabeled("id", batch=self.options.batch_unlabeled, labeled=labeled):
                yield rows, torch.stack([network(images).float() for _ in range(passes)])

    def _is_snapshot(self, step: int) -> bool:
        due = NUM_SNAPSHOTS * step // self.options.iterations
        due_before = NUM_SNAPSHOTS * (step - self.options.eval_every) // self.options.iterations
        return due > due_before

    def is_finite(self) -> bool:
        norms = torch._foreach_norm(list(self.model.parameters()))
        return bool(torch.isfinite(torch.stack(norms)).all())

    def state_dict(self) -> dict[str, Any]:
        """All that resuming needs. The rows of later steps need nothing: they follow from seed and step."""
        on_gpu = self.engine.device.type == "cuda"
        return {
            "steps_done": int(self.steps_done),
            "generation": self.generation,
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict(),
            "best": None if self.best is None else self.best.state_dict(),
            "test_bias": self._test_bias(),
            "optimizer": self.optimizer.state_dict(),
            "learner": self.learner.state_dict(),  # and the guidance in it
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
        self._load_optimizer(state["optimizer"])
        self.learner.load_state_dict(state["learner"])
        self.meters.load_state_dict(state["meters"])
        self.loader.load_state_dict(state.get("loader", {}))
        torch.set_rng_state(state["random"]["cpu"])
        if state["random"]["cuda"] is not None and self.engine.device.type == "cuda":
            torch.cuda.set_rng_state(state["random"]["cuda"], self.engine.device)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """What it has gathered; its options are those of this machine, not of the one that saved them."""
        mine = [
            {name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups
        ]
        groups = [{**saved, **options} for saved, options in zip(state["param_groups"], mine, strict=True)]
        self.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr  # loading put a copy there


def train(trainer: Trainer, recorder: Recorder) -> None:
    """Train to the last step, from wherever the trainer stands."""
    options = trainer.options
    trainer.warm_up()
    take_step, refresh = trainer.engine.step(trainer.step), trainer.engine.step(trainer.learner.guidance.refresh)
    step = int(trainer.steps_done)
    is_last = trainer.is_over(step)
    while not is_last:
        step += 1
        trainer.loader.seek(step - 1)
        take_step()
        if trainer.is_refresh_due(step):
            refresh()
        recorder.stepped(step)

        is_last, stop = trainer.is_over(step), recorder.stop_requested
        ends_generation = step == trainer.generation_end(trainer.generation) and not is_last
        if is_last or ends_generation or step % options.eval_every == 0:
            recorder.evaluation(trainer.evaluate(step, is_last=is_last))
        elif step % options.log_every == 0 or stop:
            share = trainer.meters.pseudo_label_share() if trainer.notes_pseudo_labels else []
            recorder.progress(step, trainer.meters.means(), share)
        saves = is_last or stop or ends_generation or step % options.save_every == 0
        if saves and not trainer.is_finite():
            raise Diverged("a parameter is not a number")
        if ends_generation:
            selection = trainer.next_generation()
            recorder.generation(trainer.generation, selection)
            take_step = trainer.engine.step(trainer.step)  # a graph of the new optimiser
        if saves:
            recorder.save(step, trainer.state_dict(), must=is_last or stop)
        if stop and not is_last:
            raise Interrupted(f"stopped at step {step} of {options.iterations}")
