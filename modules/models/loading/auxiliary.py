"""From a file of its own to a model that computes next to the loaded one: a control model, an image encoder.

Its weights are stored, placed and streamed by the plan of the model that it works for, as those of a denoiser.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from modules.errors import CheckpointError, FeatherweightError
from modules.memory.int8_matmul import share_inputs
from modules.memory.moving import move
from modules.memory.storage import stored_bytes
from modules.memory.streaming.groups import MAX_BLOCK_BYTES, Level
from modules.memory.streaming.streaming import StreamHandle, StreamOptions, stream
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.loading.filling import Placement, fill, finish_buffers
from modules.models.loading.load_model import product_of
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.loading.offloading import OffloadPlan
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.names.component import Component, Header
from modules.models.names.fused import unfused
from modules.models.names.row_map import RowMap
from modules.models.placing import PlacingRules
from modules.system.devices import autocast

log = logging.getLogger(__name__)

PART = "unet"
"""An auxiliary model is stored and streamed as this part of a model is, unless its builder says otherwise."""


@dataclass(frozen=True)
class AuxiliaryParts:
    """The result of a builder for an open file: an empty module on the meta device and how the file names its tensors;
    `ignores` says which tensors of the file belong to nothing, `facts` is for the builder's caller. `rows`: where a
    tensor of the file holds several of the module's; the component's key map is then that of these rows. `part`: the
    part of a model that it is stored and streamed as."""

    component: Component
    ignores: Callable[[str], bool] = lambda key: False
    facts: Any = None
    rows: RowMap | None = None
    part: str = PART

    def row_map_of(self, header: Header) -> RowMap | None:
        """See `KnowsRows`."""
        return self.rows


Builder = Callable[[TensorSource, LoadedModel], AuxiliaryParts]
"""(the open file, the model that it should work for) -> what is to be filled. Raises `CheckpointError` for a file of
another kind or for another model."""


@dataclass
class Auxiliary:
    """A model from a file of its own, in memory; made by `Engine.auxiliary`.

    `module` computes on `device` in `dtype`, as its model's plan says; recovery may move it while it is not called.
    """

    path: Path
    module: Any
    device: torch.device
    dtype: torch.dtype
    facts: Any = None
    streaming: StreamHandle | None = None
    part: str = PART
    used_in: int = field(default=0, compare=False)  # the number of the last job that asked for it
    computing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Under which it computes outside of a pass: autocast, where its model's plan says so."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of its weights on the device that computes; of streamed ones those that are there now."""
        return stored_bytes(self.module) if self.streaming is None else self.streaming.live_bytes

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of its streamed weights, in main memory or on disk."""
        return 0 if self.streaming is None else self.streaming.offloaded_bytes

    def let_go(self) -> None:
        """Free the device of weights that are streamed; the next use brings them back."""
        if self.streaming is not None:
            self.streaming.let_go()

    def make_finer(self) -> Callable[[], None] | None:
        """Stream its weights layer by layer; returns the way back, None where they are streamed so already."""
        if self.streaming is not None:
            return self.streaming.make_finer(self.part, Level.LAYER, MAX_BLOCK_BYTES)
        options = StreamOptions(ahead_bytes=0, max_block_bytes=MAX_BLOCK_BYTES)
        own = self.streaming = stream({self.part: self.module}, self.device, Level.LAYER, options)

        def back() -> None:
            own.remove()
            self.streaming = None

        return back

    def compute_on(self, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
        """Compute on another device from now on; returns the way back."""
        old = (self.device, self.dtype)
        moved = (
            move(self.module, device, dtype)
            if self.streaming is None
            else self.streaming.compute_on(self.part, device, dtype)
        )
        self.device, self.dtype = device, dtype

        def back() -> None:
            moved()
            self.device, self.dtype = old

        return back

    def close(self) -> None:
        """Free everything; it is not used again."""
        if self.streaming is not None:
            self.streaming.close()


def load_auxiliary(
    path: Path, build: Builder, model: LoadedModel, opening: Callable[[Path], TensorSource] = open_tensors
) -> Auxiliary:
    """Read a file by the plan of `model`; `opening` opens it. Raises `CheckpointError` for a file that is damaged,
    incomplete, of another kind, or for another model."""
    plan = model.plan
    with ExitStack() as files:
        file: TensorSource = files.enter_context(opening(path))
        try:
            parts = build(file, model)
        except FeatherweightError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, ZeroDivisionError) as error:
            raise CheckpointError(f"{path.name}: describes an impossible model: {error}") from error
        component = parts.component
        if parts.rows is not None:
            file = unfused(file, (parts,))
        rest = OffloadPlan(plan.streaming) if plan.streaming is not None else None
        assignments = assign_tensors(file, [component], parts.ignores)
        fill(file, assignments, lambda _: _placement(parts, plan, rest))
    finish_buffers(component.module, plan.device)
    module = component.module.eval().requires_grad_(False)
    if plan.mode is ComputeMode.INT8_MATMUL:
        share_inputs(module)
    streaming = None
    if rest is not None and plan.streaming is not None:
        streaming = rest.start({parts.part: module}, plan.streaming, plan.device)
    log.info("Loaded %s (%s)", path.name, plan.label)
    casts = partial(autocast, plan.device, plan.compute_dtype) if plan.mode is ComputeMode.AUTOCAST else nullcontext
    return Auxiliary(path, module, plan.device, plan.offload_dtype, parts.facts, streaming, parts.part, computing=casts)


def _placement(parts: AuxiliaryParts, plan: PrecisionPlan, rest: OffloadPlan | None) -> Placement:
    rules = PlacingRules(plan.offload_dtype, parts.component.rules(plan.rules(parts.part)), float8=plan.float8)
    casts, multiply = plan.mode is not ComputeMode.AUTOCAST, product_of(plan)
    return Placement(plan.device, rules, plan.compute_dtype, casts, multiply, rest=rest, map_files=plan.map_files)
