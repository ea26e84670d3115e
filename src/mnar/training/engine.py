"""The engine executes steps: it chooses device, precision, kernels, torch.compile and CUDA graphs.

The engine changes rounding, random draws and speed, but not the method. Every part can be switched off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mnar import distributed
from mnar.augment import Augment
from mnar.guidances import Guidance
from mnar.models.batch_norm import BatchNormLeakyReLU
from mnar.models.classifier import Classifier
from mnar.models.convolution import Convolution, weights_cast
from mnar.models.fusing import TRITON_IS_INSTALLED, gpu_can_run_kernels
from mnar.option_values import shown
from mnar.training.options import EngineOptions, Switch
from mnar.types import Samples

# torch.compile compiles once per view and batch size, over all trainers of a process, and gives up past the limit.
RECOMPILE_LIMIT = 256
# Compiling PRG takes 10 to 20 s, most of it for importing the compiler. It saved 0.12 ms per step (H200) when PRG had
# 71 kernels; PRG has 49 now.
COMPILE_GUIDANCE_FROM = 150_000


class Engine:
    def __init__(self, options: EngineOptions) -> None:
        self.device = _device(options.device)
        on_gpu = self.device.type == "cuda"
        bfloat16 = on_gpu if options.precision == "auto" else options.precision == "bfloat16"
        self.dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.fused = _chosen(options.fused, on_gpu and TRITON_IS_INSTALLED, "fused", on_gpu and TRITON_IS_INSTALLED)
        self.fused = self.fused and gpu_can_run_kernels(self.device)
        self.fused_views = self.fused  # a model without our kernels switches `fused` off, but not this
        self.compile = _chosen(options.compile, on_gpu, "compile", True)
        # A CUDA graph can record what NCCL exchanges between processes, but not what gloo exchanges.
        can_graph = on_gpu and (not distributed.is_joined() or distributed.is_on_nccl())
        self.cuda_graph = _chosen(options.cuda_graph, can_graph, "cuda_graph", can_graph)
        if on_gpu:
            torch.cuda.set_device(self.device)
            # Which kernel is the fastest may differ from run to run, and some kernels add in a changing order.
            torch.backends.cudnn.benchmark = not options.deterministic
            torch.backends.cudnn.deterministic = options.deterministic
            if options.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it before its first product
            # Convolutions in float32 keep full precision. Matrix products already do.
            torch.backends.cudnn.allow_tf32 = False

    def place(self, model: Classifier) -> Classifier:
        """Move the model to the device, on a GPU channels-last, which convolutions read without a transpose.

        A model without layers that have Triton kernels switches `fused` off.
        """
        with_kernels = [module for module in model.modules() if isinstance(module, BatchNormLeakyReLU | Convolution)]
        self.fused = self.fused and bool(with_kernels)  # other models use torch.compile
        for module in with_kernels:
            module.fused = self.fused
        model = model.to(self.device)
        if self.device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def network(self, model: Classifier) -> nn.Module:
        """The model for training, compiled or under autocast, with the same parameters, `features` and `head`."""
        compiles = self.compile and not self.fused
        if not compiles and self.dtype == torch.float32:
            return model
        if compiles:
            _allow_recompilation()
        return AutocastModel(model, self.device, self.dtype, compiles=compiles)

    def inference(self, model: Classifier) -> nn.Module:
        return model if self.dtype == torch.float32 else AutocastModel(model, self.device, self.dtype)

    @property
    def compiles_views(self) -> bool:
        """Whether torch.compile compiles the augmentation."""
        return self.compile and not self.fused_views

    def augmentation(self, augment: nn.Module) -> Callable[[Tensor, str], Tensor]:
        """Return the augmentation for batches on the device. Views of images are one Triton kernel if there is one."""
        augment = augment.to(self.device)
        if self.fused_views and type(augment) is Augment:  # a subclass may make other views
            from mnar.augment.fused_views import FusedViews  # needs Triton

            return FusedViews(augment)
        if not self.compiles_views:
            return augment
        _allow_recompilation()
        return torch.compile(augment, dynamic=False, fullgraph=True)

    def guide(self, guidance: Guidance, *, num_steps: int) -> None:
        """Compile the guidance in place (buffers keep their names): dozens of small kernels become a few.

        A short run on a GPU does not get back the time that the compiler takes.
        """
        is_worth_it = num_steps >= COMPILE_GUIDANCE_FROM or not self.fused_views
        if self.compile and is_worth_it and distributed.world_size() == 1:  # a compiled graph cannot exchange tensors
            _allow_recompilation()
            guidance.compile(dynamic=False, fullgraph=True)

    def step(self, step: Callable[[], None]) -> Callable[[], None]:
        return GraphedStep(step) if self.cuda_graph else step


class AutocastModel(nn.Module):
    """A model whose features are compiled, or computed under autocast, or both.

    Heads, softmax and guidance stay in float32, because bfloat16 logits can tie. If a tie is broken differently at the
    next visit, PRG counts a transition that did not happen.
    """

    def __init__(self, model: Classifier, device: torch.device, dtype: torch.dtype, *, compiles: bool = False) -> None:
        super().__init__()
        self.model, self.device_type, self.dtype = model, device.type, dtype
        self._features = torch.compile(self._under_autocast, dynamic=False) if compiles else self._under_autocast
        self.train(model.training)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model, such as its heads and its encoder."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, x: Samples) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    def features(self, x: Samples) -> Tensor:
        with weights_cast(self.model, self.dtype):
            features: Tensor = self._features(x)
        return features

    def _under_autocast(self, x: Samples) -> Tensor:
        with torch.autocast(self.device_type, self.dtype, enabled=self.dtype != torch.float32):
            return self.model.features(x).float()


class GraphedStep:
    """A step that becomes one CUDA graph after a few eager steps. The eager steps are real training steps, too."""

    EAGER_STEPS = 3  # these choose and compile kernels and create the optimiser's buffers

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()
        self._num_eager = 0

    def __call__(self) -> None:
        if self._graph is None and self._num_eager < self.EAGER_STEPS:
            self._run_aside()
            self._num_eager += 1
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            # The thread of NCCL that watches over the exchanges may call CUDA while this thread records.
            mode = "thread_local" if distributed.is_joined() else "global"
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode=mode):
                self._step()
        self._graph.replay()  # capturing only records the step; the replay executes it

    def _run_aside(self) -> None:
        """Run the step on the stream of the later capture, so that caches per stream are filled."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream().wait_stream(self._stream)


def _allow_recompilation() -> None:
    from torch._dynamo import config as dynamo  # takes seconds to import, so only if something is compiled

    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILE_LIMIT)


def _device(name: str) -> torch.device:
    unknown = ValueError(f"unknown engine.device {shown(name)}; choose auto, cpu or cuda")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise unknown from error
    if device.type not in ("cpu", "cuda"):
        raise unknown
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"engine.device is {name!r}, but torch sees no CUDA device; choose auto or cpu")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ValueError(f"engine.device is {name!r}, but torch sees {torch.cuda.device_count()} GPUs; choose cuda")
    if device.type == "cuda" and device.index is None:  # torch.cuda.set_device asks for a number
        return torch.device("cuda", _own_gpu())
    if device.type == "cuda" and distributed.is_on_nccl() and distributed.world_size() > 1:
        raise ValueError(f"engine.device is {name!r}, but each process needs its own GPU; choose auto or cuda")
    return device


def _own_gpu() -> int:
    """The number of the GPU that this process uses: each process of a machine has its own GPU."""
    if distributed.world_size() == 1:
        return 0
    process, num_gpus = distributed.local_rank(), torch.cuda.device_count()
    if process >= num_gpus and distributed.is_on_nccl():
        raise ValueError(
            f"{process + 1} or more processes were started on a machine with {num_gpus} GPUs, and each process needs "
            f"its own GPU; start torchrun with --nproc-per-node={num_gpus}"
        )
    return process % num_gpus  # with gloo, processes can share a GPU


def _chosen(choice: Switch, default: bool, name: str, possible: bool) -> bool:
    chosen = default if choice == "auto" else choice
    if chosen and not possible:
        needs = "a CUDA device and Triton" if name == "fused" else "a CUDA device"
        raise ValueError(f"engine.{name} needs {needs}; choose engine.{name}=false or auto")
    return chosen
