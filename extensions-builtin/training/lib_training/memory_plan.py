"""Memory decided for the user: the ways to save it, from the quickest to the smallest, and what each would take.

The step is run on the meta device, forward and backward, so that what autograd keeps is counted as it would live and
die. Added are the weights as they are stored, the largest of them decoded, and the adapter with its optimizer. Latents
and captions are encoded ahead, so VAE and text encoders are not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lib_training.base_model import LEVELS, PLAIN, trained_as
from lib_training.checkpointing import enable_gradient_checkpointing
from lib_training.config import TrainingConfig
from modules.errors import InvalidValueError
from modules.memory.dry_run import MetaRun
from modules.memory.feed_forward.options import SplitOptions
from modules.memory.feed_forward.split import split_feed_forward
from modules.models.families.family import LoraBase
from modules.models.loading.meta_model import MetaModel
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from modules.processing.engine.attention import using_attention
from modules.processing.engine.precision import storage_rules

GB = 1_000_000_000
BUDGETS_GB = (4, 6, 8, 12, 16, 24)
RESERVE = 0.05
"""Share of a budget that allocators and kernels take on top; CUDA's own context comes in addition to that."""
CONTEXT_BYTES = {"cuda": 500_000_000}
STATE_BYTES = {"adamw": 8.0, "adamw8bit": 2.1, "adafactor": 0.5, "prodigy": 16.0}
"""Bytes of the optimizer for each trained value."""
TIMES = {"checkpointing": 1.3, "split": 1.05, "blocks": 1.5, "layers": 1.8, "8 bit": 1.1}
"""What each way of saving multiplies a step's time by, roughly; the real time shows after the first steps."""


@dataclass(frozen=True)
class Way:
    """One combination. `time` is relative to a step that saves nothing."""

    storage: str
    stream: str = "off"
    checkpointing: str = ""
    split: int = 1

    @property
    def time(self) -> float:
        """Relative to a step that saves nothing."""
        factor = TIMES["8 bit"] if self.storage not in PLAIN else 1.0
        factor *= TIMES["checkpointing"] if self.checkpointing == "all" else 1.15 if self.checkpointing else 1.0
        factor *= TIMES["split"] if self.split > 1 else 1.0
        return factor * TIMES.get(self.stream, 1.0)

    def apply(self, config: TrainingConfig) -> TrainingConfig:
        """The configuration with this way in it."""
        memory = replace(config.memory, checkpointing=self.checkpointing, split_feed_forward=self.split)
        return replace(config, model=replace(config.model, storage=self.storage, stream=self.stream), memory=memory)

    @property
    def words(self) -> str:
        """For people."""
        parts = [f"weights in {self.storage}"]
        if self.stream != "off":
            parts.append(f"{self.stream} streamed from the file")
        if self.checkpointing:
            parts.append("every block computed again" if self.checkpointing == "all" else f"{self.checkpointing} again")
        if self.split > 1:
            parts.append(f"feed-forwards in {self.split} pieces")
        return ", ".join(parts)


@dataclass(frozen=True)
class StepEstimate:
    """Bytes at the peak of a step, by what they are for."""

    way: Way
    weights: int
    decoded: int
    activations: int
    adapter: int
    context: int = 0

    @property
    def total(self) -> int:
        """All of it, with the reserve."""
        counted = self.weights + self.decoded + self.activations + self.adapter
        return round(counted * (1 + RESERVE)) + self.context


@dataclass(frozen=True)
class MemoryPlan:
    """Plan that was chosen, and what it takes by the estimate."""

    config: TrainingConfig
    estimate: StepEstimate
    rejected: tuple[StepEstimate, ...] = ()

    @property
    def words(self) -> str:
        """For people, one sentence."""
        return (
            f"{self.estimate.way.words}: {self.estimate.total / GB:.1f} GB by the estimate, a step takes about "
            f"{self.estimate.way.time:.1f} times that of one that saves nothing."
        )


def ways(plain: str) -> Iterator[Way]:
    """From the quickest to the smallest. `plain` is the name of the compute dtype."""
    eight = "fp8_e4m3fn_row"
    yield Way(plain)
    yield Way(eight)
    yield Way(eight, checkpointing="every 2")
    yield Way(plain, checkpointing="all")
    yield Way(eight, checkpointing="all")
    yield Way(eight, checkpointing="all", split=4)
    yield Way(eight, "blocks", "all", 4)
    yield Way(eight, "layers", "all", 8)


class StepEstimator:
    """Estimates steps of one model. Not thread safe. Changes the modules of `meta` in place."""

    def __init__(self, meta: MetaModel, config: TrainingConfig, device: torch.device, compute: torch.dtype) -> None:
        self._meta, self._config = meta, config
        self._device, self._compute = device, compute
        self._activations: dict[tuple[str, int], int] = {}
        self._run = MetaRun(device)
        self.adapter_values = 0

    def estimate(self, way: Way) -> StepEstimate:
        """Estimate what a step takes this way."""
        plan = self._plan(way)
        weights = self._meta.resident_bytes(plan, lambda name: name == "unet")
        encoders = (
            0
            if plan.streaming is not None
            else sum(sum(sizes.values()) for name, sizes in self._meta.weights(plan).items() if name != "unet")
        )
        key = way.checkpointing, way.split
        if key not in self._activations:
            self._activations[key] = self._measure(way)
        training = self._config.training
        own = 2 if self._config.adapter.dtype == "bf16" else 4
        each = 2 * own + STATE_BYTES[training.optimizer] + (4 if training.ema else 0)
        encoders = 0 if self._config.trains_text else encoders
        return StepEstimate(
            way,
            weights - encoders,
            self._meta.scratch_bytes(plan, "unet", by_blocks=False),
            self._activations[key],
            round(each * self.adapter_values),
            CONTEXT_BYTES.get(self._device.type, 0),
        )

    def _plan(self, way: Way) -> PrecisionPlan:
        rules = None if PLAIN.get(way.storage) == self._compute else storage_rules(way.storage)
        return PrecisionPlan(
            device=self._device,
            compute_dtype=self._compute,
            vae_dtype=torch.float32,
            mode=ComputeMode.MANUAL if rules else ComputeMode.PLAIN,
            unet_storage=rules.storage if rules else None,
            text_storage=rules.storage if rules else None,
            skip=rules.skip.texts if rules else (),
            streaming=StreamLayout(level=LEVELS[way.stream], on_disk=True) if way.stream in LEVELS else None,
        )

    def _measure(self, way: Way) -> int:
        """Bytes of what a forward and a backward pass make, at their peak."""
        family, unet = self._meta.family, self._meta.module("unet")
        run = self._run
        run.place(unet, self._compute)
        unet.requires_grad_(False)
        resolution = self._config.data.resolution or self._meta.architecture.latent_side * self._meta.downscale
        side = resolution // self._meta.size_multiple_px * self._meta.family.latents.multiple
        rows = self._config.training.batch

        def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        inputs = family.example_inputs(unet, (rows, side, side), self._compute, make)
        with ExitStack() as stack:
            stack.enter_context(using_attention([unet], _attention_as_on_devices))
            base = trained_as(family, self._meta.info.name)
            self.adapter_values = stack.enter_context(_meta_adapters(unet, base, self._config))
            if way.checkpointing:
                stack.callback(enable_gradient_checkpointing(unet, way.checkpointing).close)
            if way.split > 1:
                stack.callback(split_feed_forward(unet, SplitOptions(num_splits=way.split)).remove)

            def step() -> None:
                with torch.enable_grad():
                    output = family.denoiser.run(unet, inputs)
                    torch.autograd.backward(output.float().square().mean())

            return run.measure(step)


class _Attention(torch.autograd.Function):
    """Memory that kernels keep that never hold all scores (Dao et al. 2022, arXiv:2205.14135)."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def _attention_as_on_devices(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention on the meta device with the memory that it takes elsewhere: PyTorch would make all scores there."""
    found: Tensor = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def _meta_adapters(unet: nn.Module, base: LoraBase, config: TrainingConfig) -> Iterator[int]:
    """While open, a LoRA of the configured ranks stands beside the layers that would be trained; yields how many values
    it has. Other kinds of adapters are estimated as one: they keep as little."""
    from lib_training.trained import TrainedLayer, attach, rank_of

    layers = []
    for path, layer in unet.named_modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        rank = rank_of(path, base, config.adapter)
        if config.adapter.type == "textual_inversion" or not rank:
            continue
        shape = layer.weight.shape
        parameters: Mapping[str, Any] = {
            "lora_down.weight": nn.Parameter(torch.empty((rank, *shape[1:]), device="meta")),
            "lora_up.weight": nn.Parameter(torch.empty((shape[0], rank, *(1,) * (len(shape) - 2)), device="meta")),
        }
        layers.append(TrainedLayer(path, path, layer, parameters, float(rank), False))
    attached = attach(layers)
    try:
        yield sum(parameter.numel() for each in layers for parameter in each.parameters.values())
    finally:
        attached.detach()


def plan_memory(estimator: StepEstimator, config: TrainingConfig, plain: str) -> MemoryPlan:
    """The quickest way that fits `config.memory.budget_gb`. Raises `InvalidValueError` that says what the smallest way
    takes where none does."""
    budget = config.memory.budget_gb
    assert budget is not None
    rejected: list[StepEstimate] = []
    for way in sorted(ways(plain), key=lambda each: each.time):
        estimate = estimator.estimate(way)
        if estimate.total <= budget * GB:
            return MemoryPlan(way.apply(config), estimate, tuple(rejected))
        rejected.append(estimate)
    least = min(rejected, key=lambda each: each.total)
    raise InvalidValueError(
        f"{budget:g} GB are too few: with {least.way.words} a step takes {least.total / GB:.1f} GB by the estimate "
        f"({least.activations / GB:.1f} of it activations). Choose a smaller resolution or batch."
    )
