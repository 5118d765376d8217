"""Fallbacks for a diffusion model when memory runs out, and the notices about those applied.

In the order of what they cost: the other components wait in main memory, attention in slices, feed-forwards in slices,
the batch in pieces, the VAE and the upscaler in tiles, weights streamed by blocks and then by layers, and in the end
the CPU. None of them changes what is computed, only in which pieces and where.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from modules.memory.attention import Attention, in_slices
from modules.memory.feed_forward import SplitOptions, split_feed_forward
from modules.memory.moving import move
from modules.memory.recovery import FREED, Fallback, Recovery, Step
from modules.memory.streaming.groups import MAX_BLOCK_BYTES, Level
from modules.memory.streaming.streaming import StreamHandle, StreamOptions, stream
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.attention import using_attention
from modules.processing.engine.auxiliaries import Auxiliaries, auxiliary_fallbacks
from modules.processing.engine.headroom import TURNS, GpuWatch
from modules.processing.request.stages import Stage
from modules.system.devices import collect_garbage, release_memory
from modules.system.texts import page_text
from modules.upscalers.limits import UpscalerLimits

CPU = torch.device("cpu")
SLICES = 64  # of images, heads and queries together
TOKENS_AT_ONCE = 512
TILE_SIDES_PX = (512, 256, 128, 64)
UPSCALER_TILES_PX = (256, 128, 64)
AUXILIARY = "auxiliary "  # and the path: the name of an auxiliary model among the components
ADVICE = (
    "Choose a smaller size or batch, FP8 weight, or start with --lowvram; other programs may hold memory as well. "
    "The program goes on as it is."
)

UPSCALER_ADVICE = "Choose a smaller size, or unload the checkpoint (POST /sdapi/v1/unload-checkpoint) first."


@contextmanager
def recovering(
    model: LoadedModel,
    attention: Attention | None,
    upscaling: UpscalerLimits | None = None,
    leave_device: bool | None = None,
    watch: GpuWatch | None = None,
    auxiliaries: Auxiliaries | None = None,
) -> Iterator[Recovery]:
    """While open, calls of `model` that run out of memory are made again with less; `attention` is the job's way, and
    `upscaling` what its upscalers are held to.

    `auxiliaries` are the models that compute next to it.
    `watch` receives each call before it is made. `leave_device` says whether components may go to main memory and
    compute there; by default on everything but the CPU. Afterwards the model is as it was.
    """
    leave = model.device.type != "cpu" if leave_device is None else leave_device
    auxiliaries = auxiliaries or Auxiliaries()
    turns, streams = _Turns(model, auxiliaries), _Streams(model, leave)
    upscaling = upscaling or UpscalerLimits()

    def free() -> None:
        model.graphs.pause()
        model.decoded_weights.pause()
        collect_garbage()
        release_memory(model.device)

    fallbacks = [_slices(model, attention), _chunks(model), _halves(model), _tiles(model), _upscaler_tiles(upscaling)]
    if leave and model.plan.streaming is None:  # streamed components leave the device by themselves
        fallbacks.insert(0, turns.fallback())
    if leave or model.plan.streaming is not None:
        fallbacks += auxiliary_fallbacks(model, auxiliaries)
    for level in (Level.BLOCK, Level.LAYER):
        fallbacks.append(streams.fallback(("unet",), "UNet", level, Stage.SAMPLE))
    fallbacks.append(streams.fallback(tuple(model.text_encoders), "text encoder", Level.LAYER, Stage.ENCODE_TEXT))
    if leave:
        fallbacks += [_unet_on_cpu(model, streams, auxiliaries), _vae_on_cpu(model, streams)]
        fallbacks.append(_upscaler_on_cpu(upscaling))
    before = (model.recovery, model.vae_runner.rules)

    def begin(stage: str) -> None:
        turns.begin(stage)
        if watch is not None:
            watch.begin(stage, recovery, lambda: turns.begin(stage))

    recovery = Recovery(fallbacks, free, begin, ADVICE)
    model.recovery = recovery
    try:
        yield recovery
    finally:
        recovery.close()
        model.recovery, model.vae_runner.rules = before
        if recovery.taken:
            free()
        elif model.device.type == "cpu":
            release_memory(model.device)  # else the heap keeps what the largest stage took, and the program only grows


def recovery_names(recovery: Recovery) -> str | None:
    """Return the fallbacks used, for the infotext: "query slices, half batch"; None if freeing memory was all, or
    nothing."""
    names = dict.fromkeys(item.fallback for item in recovery.taken if item.fallback != FREED)
    return ", ".join(names) or None


def recovery_notices(recovery: Recovery) -> list[str]:
    """Describe the fallbacks used, one sentence per stage."""
    by_stage: dict[str, list[str]] = {}
    for item in recovery.taken:
        by_stage.setdefault(item.stage, []).append(item.text)
    return [
        page_text(f"Memory ran out while {Stage(stage).label}; it went on {', then '.join(texts)}.")
        for stage, texts in by_stage.items()
    ]


def _slices(model: LoadedModel, attention: Attention | None) -> Fallback:
    """Attention a slice at a time."""
    is_on = False

    def apply() -> Step | None:
        nonlocal is_on
        if is_on:
            return None
        is_on = True
        stack = ExitStack()
        stack.enter_context(using_attention((model.unet, model.vae), in_slices(attention or _sdp, SLICES)))
        return Step(f"with attention in {SLICES} slices", stack.close)

    return Fallback("query slices", frozenset({Stage.SAMPLE, Stage.DECODE, Stage.ENCODE_IMAGE}), apply)


def _chunks(model: LoadedModel) -> Fallback:
    """Feed-forwards on some tokens at a time, which changes no value."""
    is_on = False

    def apply() -> Step | None:
        nonlocal is_on
        if is_on:
            return None
        is_on = True
        handle = split_feed_forward(model.unet, SplitOptions(token_chunk=TOKENS_AT_ONCE))
        return Step(f"with feed-forwards on {TOKENS_AT_ONCE} tokens at a time", handle.remove)

    return Fallback("split feed-forward", frozenset({Stage.SAMPLE}), apply)


def _halves(model: LoadedModel) -> Fallback:
    """The batch (prompts and negative prompts together) in 2, 4, ... pieces, down to one row each."""
    runner = model.unet_runner

    def apply() -> Step | None:
        if runner.pieces >= runner.rows:
            return None
        old, runner.pieces = runner.pieces, min(runner.pieces * 2, runner.rows)

        def undo() -> None:
            runner.pieces = old

        return Step(f"with the batch in {runner.pieces} pieces", undo)

    return Fallback("halved batch", frozenset({Stage.SAMPLE}), apply)


def _tiles(model: LoadedModel) -> Fallback:
    """The VAE in tiles, and in smaller ones."""
    runner = model.vae_runner

    def apply() -> Step | None:
        smaller = [side for side in TILE_SIDES_PX if not 0 < runner.tile_px <= side]
        if not smaller:
            return None
        old = runner.rules
        runner.rules = replace(old, tile_px=smaller[0], separate=None)

        def undo() -> None:
            runner.rules = old

        return Step(f"with the VAE in tiles of {smaller[0]} pixels", undo)

    return Fallback("tiled VAE", frozenset({Stage.DECODE, Stage.ENCODE_IMAGE}), apply)


class _Streams:
    """Adapters whose weights come piece by piece: those that were streamed all along, more finely, and on devices that
    can be left those that lay there."""

    def __init__(self, model: LoadedModel, leave: bool) -> None:
        self._model = model
        self._leave = leave
        self._own: dict[str, StreamHandle] = {}  # by component: streamed since memory ran out

    def handle(self, name: str) -> StreamHandle | None:
        """Return what streams a component now."""
        of_model = self._model.streaming
        return self._own.get(name, of_model if of_model is not None and name in of_model.components else None)

    def fallback(self, names: Sequence[str], whose: str, level: Level, stage: str) -> Fallback:
        """Stream these components, used in this stage, at least as finely as `level`."""

        def apply() -> Step | None:
            undos = [undo for undo in (self._make_finer(name, level) for name in names) if undo is not None]

            def undo() -> None:
                while undos:
                    undos[-1]()
                    undos.pop()

            return Step(f"with the {whose}'s {level.value}s streamed", undo) if undos else None

        return Fallback(f"streamed {level.value}s", frozenset({stage}), apply)

    def _make_finer(self, name: str, level: Level) -> Callable[[], None] | None:
        handle = self.handle(name)
        if handle is not None:
            return handle.make_finer(name, level, MAX_BLOCK_BYTES)
        if not self._leave:
            return None
        options = StreamOptions(ahead_bytes=0, max_block_bytes=MAX_BLOCK_BYTES)
        own = stream({name: self._part(name)}, self._model.device, level, options)
        self._own[name] = own

        def undo() -> None:
            own.remove()
            del self._own[name]

        return undo

    def on_cpu(self, name: str, dtype: torch.dtype) -> Callable[[], None]:
        """Have a component compute on the CPU; returns the way back."""
        handle = self.handle(name)
        return move(self._part(name), CPU, dtype) if handle is None else handle.compute_on(name, CPU, dtype)

    def _part(self, name: str) -> nn.Module:
        return next(part.module for part in self._model.components if part.name == name)


def _unet_on_cpu(model: LoadedModel, streams: _Streams, auxiliaries: Auxiliaries) -> Fallback:
    """The denoiser, and what computes next to it."""
    runner = model.unet_runner

    def apply() -> Step | None:
        if runner.device is not None:
            return None
        dtype = _dtype_on_cpu(model.plan.offload_dtype)
        backs = [streams.on_cpu("unet", dtype)]
        backs += [each.compute_on(CPU, dtype) for each in auxiliaries.here]
        runner.device, runner.dtype = CPU, dtype

        def undo() -> None:
            runner.device = runner.dtype = None
            while backs:
                backs[-1]()
                backs.pop()

        return Step("on the CPU", undo)

    return Fallback("UNet on the CPU", frozenset({Stage.SAMPLE}), apply)


def _vae_on_cpu(model: LoadedModel, streams: _Streams) -> Fallback:
    runner = model.vae_runner
    is_there = False

    def apply() -> Step | None:
        nonlocal is_there
        if is_there:
            return None
        old = (runner.device, runner.dtype)
        dtype = _dtype_on_cpu(runner.dtype)
        back = streams.on_cpu("vae", dtype)
        runner.device, runner.dtype, is_there = CPU, dtype, True

        def undo() -> None:
            runner.device, runner.dtype = old
            back()

        return Step("with the VAE on the CPU", undo)

    return Fallback("VAE on the CPU", frozenset({Stage.DECODE, Stage.ENCODE_IMAGE}), apply)


def _upscaler_tiles(limits: UpscalerLimits) -> Fallback:
    """The upscaler on smaller squares."""

    def apply() -> Step | None:
        smaller = [side for side in UPSCALER_TILES_PX if side < limits.used_px]
        if not smaller:
            return None
        old, limits.max_px = limits.max_px, smaller[0]
        limits.used_px = smaller[0]  # where the next attempt fails before it gets that far

        def undo() -> None:
            limits.max_px = old

        return Step(f"with the upscaler in tiles of {smaller[0]} pixels", undo)

    return Fallback("tiled upscaler", frozenset({Stage.ENLARGE}), apply)


def _upscaler_on_cpu(limits: UpscalerLimits) -> Fallback:
    def apply() -> Step | None:
        if limits.on_cpu:
            return None
        limits.on_cpu = True

        def undo() -> None:
            limits.on_cpu = False

        return Step("with the upscaler on the CPU", undo)

    return Fallback("upscaler on the CPU", frozenset({Stage.ENLARGE}), apply)


def recovering_upscaler(limits: UpscalerLimits) -> Recovery:
    """For an upscaler that works alone: smaller squares, and in the end the CPU. Use it in a `with`."""
    return Recovery([_upscaler_tiles(limits), _upscaler_on_cpu(limits)], collect_garbage, advice=UPSCALER_ADVICE)


def _dtype_on_cpu(dtype: torch.dtype) -> torch.dtype:
    """float16 has no fast kernels on CPUs, and float32 holds all of its numbers."""
    return torch.float32 if dtype == torch.float16 else dtype


class _Turns:
    """The components take turns on the device: those that a stage does not need wait in main memory."""

    def __init__(self, model: LoadedModel, auxiliaries: Auxiliaries) -> None:
        self._model = model
        self._auxiliaries = auxiliaries
        self._is_on = False
        self._waiting: dict[str, Callable[[], None]] = {}  # by component: the way back

    def fallback(self) -> Fallback:
        def apply() -> Step | None:
            if self._is_on:
                return None
            self._is_on = True
            return Step("with the other components in main memory", self._all_back)

        return Fallback(TURNS, frozenset(Stage), apply)

    def begin(self, stage: str) -> None:
        """Have on the device what the stage needs and nothing else."""
        if not self._is_on:
            return
        parts = self._parts()
        needed = {name for name in parts if _needs(stage, name)}
        for name in parts.keys() - needed - self._waiting.keys():
            self._waiting[name] = move(parts[name], CPU)
        for name in needed & self._waiting.keys():
            self._waiting[name]()
            del self._waiting[name]

    def _parts(self) -> dict[str, nn.Module]:
        """Without what computes on the CPU already."""
        model = self._model
        on_cpu = set()
        if model.unet_runner.device is not None:
            on_cpu.add("unet")
        if model.vae_runner.device != model.device:
            on_cpu.add("vae")
        parts = {part.name: part.module for part in model.components if part.name not in on_cpu}
        if "unet" in on_cpu:
            return parts
        beside = (each for each in self._auxiliaries.here if each.streaming is None)
        return parts | {f"{AUXILIARY}{each.path}": each.module for each in beside}

    def _all_back(self) -> None:
        self._is_on = False
        while self._waiting:
            self._waiting.popitem()[1]()


def _needs(stage: str, component: str) -> bool:
    if stage == Stage.ADAPTERS:
        return component != "vae"
    if stage == Stage.ENCODE_TEXT:
        return component.startswith("text_encoder")
    if stage == Stage.SAMPLE:
        return component == "unet" or component.startswith(AUXILIARY)
    return component == "vae" and stage in (Stage.DECODE, Stage.ENCODE_IMAGE)


def _sdp(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value)
