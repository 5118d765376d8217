"""Adapters on a model: which layers change, how the change meets the stored weights, how much of it arrives.

Modes (the setting `lora_mode`):

- exact: factorable algorithms run as side branches, the rest is added when the layer's weight is decoded. Nothing
  stored is touched; on, off and another strength take milliseconds.
- merge from full precision: the sum of all deltas is added in float32 to the weight as it is in the checkpoint
  file (or in a copy in memory), and encoded once. No second model in memory.
- merge into fp8: each delta is added to what is stored and rounded again, one adapter after the other, as other
  programs do it; small deltas are lost in the rounding. With stochastic rounding they survive as noise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor, nn

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.adapter_file import AdapterFile
from modules.adapters.algorithms.adapter import Adapter
from modules.adapters.algorithms.rows import ColumnNorms, needs_norms, plain_change, rows_of
from modules.adapters.block_weights import BlockWeights
from modules.adapters.step_range import ALL_STEPS, StepRange
from modules.adapters.targets import Part, Target, TargetTable, check_missing, check_shapes, left_out
from modules.errors import InvalidValueError
from modules.memory.changes import (
    AllBranches,
    Budget,
    DecodedChanges,
    LayerChange,
    SideBranch,
    changed_bias,
    changed_weight,
    joined_branches,
    joined_scales,
)
from modules.memory.delta_branch import DeltaBranch, wants_delta_branch
from modules.memory.formats.blocks import weight_shape
from modules.memory.formats.format import FORMATS, StorageFormat, dtype_name
from modules.memory.formats.stochastic import encode_stochastic
from modules.memory.layer import Stored, full_weight, manage, put, shape_of, stored_state, stored_tensors
from modules.memory.scratch import release_scratch
from modules.system.devices import autocast, release_memory
from modules.system.texts import page_text

NAMES = ("weight", "bias")
DELTA_BUDGET_BYTES = 512 << 20
WORST = 3


class LoraMode(StrEnum):
    """How adapters meet the weights."""

    EXACT = "exact"
    MERGE = "merge from full precision"
    INTO_STORED = "merge into fp8"
    STOCHASTIC = "merge into fp8, stochastic"


@dataclass(frozen=True)
class Use:
    """One adapter in effect: what it is called in the prompt, its content's hash, and its strengths."""

    name: str
    file_hash: str
    te_strength: float = 1.0
    unet_strength: float = 1.0
    dynamic_rank: int | None = None
    blocks: tuple[tuple[str, float], ...] = ()
    steps: StepRange = ALL_STEPS


@dataclass(frozen=True)
class Retention:
    """How much of the effect of adapters is kept: <effective, wanted> / <wanted, wanted>, and the noise that came with
    it, relative to the wanted delta's norm; for all layers together and the worst ones.

    `adapters`: the retention of each adapter by its name in the prompt, in order. Where the sum of several is encoded
    at once, what rounding added or took away is projected on each adapter's own delta.
    """

    retention: float
    noise: float
    worst: tuple[tuple[str, float], ...] = ()
    adapters: tuple[tuple[str, float], ...] = ()


@dataclass
class _Sum:
    """Inner products over layers."""

    wanted: float = 0.0
    both: float = 0.0
    noise: float = 0.0
    layers: list[tuple[str, float]] = field(default_factory=list)
    adapters: dict[int, tuple[float, float]] = field(default_factory=dict)  # <error, own>, <own, own> by number

    def add(self, name: str, wanted: Tensor, effective: Tensor) -> tuple[float, float]:
        """Returns <error, wanted> and <wanted, wanted> of this layer."""
        wanted_sq = float((wanted * wanted).sum())
        if not wanted_sq:
            return 0.0, 0.0
        both = float((wanted * effective).sum())
        self.wanted += wanted_sq
        self.both += both
        self.noise += float(((effective - wanted * (both / wanted_sq)) ** 2).sum())
        self.layers.append((name, both / wanted_sq))
        return both - wanted_sq, wanted_sq

    def add_adapter(self, number: int, error: float, size: float) -> None:
        """<error, own> and <own, own> of one adapter's share in a layer; error: applied minus wanted delta."""
        errors, sizes = self.adapters.get(number, (0.0, 0.0))
        self.adapters[number] = (errors + error, sizes + size)

    def result(self, uses: Sequence[Use]) -> Retention:
        if not self.wanted:
            return whole(uses)
        worst = tuple(sorted(self.layers, key=lambda item: item[1])[:WORST])
        shares = [self.adapters.get(number, (0.0, 0.0)) for number in range(len(uses))]
        adapters = tuple(
            (use.name, 1 + error / size if size else 1.0) for use, (error, size) in zip(uses, shares, strict=True)
        )
        return Retention(self.both / self.wanted, (self.noise / self.wanted) ** 0.5, worst, adapters)


def whole(uses: Sequence[Use]) -> Retention:
    """All of the effect, because nothing was rounded."""
    return Retention(1.0, 0.0, (), tuple((use.name, 1.0) for use in uses))


class FullPrecisionSource(Protocol):
    """The weights in full precision: the checkpoint file."""

    def read(self, component: str, key: str) -> Tensor:
        """A parameter as the file has it, on the CPU, in the shape of ours."""

    def is_source(self, component: str, key: str) -> bool:
        """Whether encoding that again gives what was loaded, bit for bit (it was not in 8 bits in the file)."""

    def close(self) -> None:
        """Called when nothing more will be read for now."""


class AdapterApplier:
    """Puts adapters on one loaded model and takes them off again. Not thread safe: call it between jobs' steps."""

    def __init__(
        self,
        table: TargetTable,
        full_precision: FullPrecisionSource,
        device: torch.device,
        autocast: torch.dtype | None = None,
    ) -> None:
        """`autocast`: the dtype of autocast where the model computes under it. Other programs then also make and add
        the deltas that they merge under it, and the merging modes do as they do."""
        self._table = table
        self._full_precision = full_precision
        self._device = device
        self._autocast = autocast
        self._current: tuple[tuple[Use, ...], LoraMode, bool] = ((), LoraMode.EXACT, False)
        self._held: tuple[bool, ...] = ()  # by adapter, whether it works on the UNet now
        self._touched: list[Target] = []
        self._planned: dict[tuple[str, str], tuple[Target, list[tuple[int, Adapter]]]] = {}
        self._kept: dict[tuple[str, str], Tensor] = {}
        self._merged: dict[tuple[str, str], tuple[Target, str]] = {}  # by component and key
        self._backups: dict[tuple[str, str], tuple[Tensor, Tensor | None]] = {}
        self.retention: Retention | None = None
        self.notices: list[str] = []

    @property
    def uses(self) -> tuple[Use, ...]:
        """List what is on the model now."""
        return self._current[0]

    def apply(
        self, uses: Sequence[Use], files: Mapping[str, AdapterFile], mode: LoraMode, keep_full_precision: bool = False
    ) -> None:
        """Make exactly these adapters effective, in this order; `files` by hash.

        No adapter is applied by halves: raises `AdapterError` for one with a layer of another shape, or of which more
        than a tenth of the layers are not in the model (fewer are listed in `notices`). With `keep_full_precision`
        the full precision weights of touched layers stay in main memory.
        """
        wanted = (tuple(uses), mode, keep_full_precision)
        if wanted == self._current:
            return
        if self._only_strengths_differ(uses, mode):
            self._change_strengths(uses)
            self._current, self._held = wanted, (True,) * len(uses)
            self.retention = whole(uses)
            return
        changes = self._plan(uses, files)
        self.remove()
        if not keep_full_precision:
            self._kept.clear()
        total = _Sum()
        budget = Budget(DELTA_BUDGET_BYTES)
        try:
            for target, layer_changes in changes.values():
                self._touched.append(target)
                if mode is LoraMode.EXACT:
                    add_branches(target.layer, layer_changes, budget, self._device)
                elif mode is LoraMode.MERGE:
                    self._merge(target, layer_changes, self._numbers(target), total, keep_full_precision)
                else:
                    is_stochastic = mode is LoraMode.STOCHASTIC
                    self._merge_into_stored(target, layer_changes, self._numbers(target), total, is_stochastic)
        except BaseException:
            self.remove()
            raise
        self._full_precision.close()
        if mode is not LoraMode.EXACT:
            release_scratch()
            release_memory(self._device)  # else the heap keeps what the largest layer took in float32
        self._current, self._held = wanted, (True,) * len(uses)
        self.retention = (whole(uses) if mode is LoraMode.EXACT else total.result(uses)) if uses else None

    def remove(self) -> None:
        """Take all adapters off: every weight is again, bit for bit, what was loaded."""
        for target in self._touched:
            state = stored_state(target.layer)
            if state is not None:
                state.changes, state.branches = (), None
        for key in self._merged:
            self._put_loaded(key)
        self._full_precision.close()
        self._touched.clear()
        self._merged.clear()
        self._backups.clear()
        self._current, self._held = ((), LoraMode.EXACT, False), ()
        self.retention = None

    @property
    def is_timed(self) -> bool:
        """Whether some of what is on the model holds for a part of the steps only: `at_step` must be called then."""
        return any(not use.steps.is_whole for use in self.uses)

    def at_step(self, reported: int, steps: int) -> None:
        """Have those adapters work on the UNet that hold when the sampler has reported this step (from 0) of `steps`,
        and no others. Text encoders, which have read the prompt by then, stay as they are.

        In mode exact this takes milliseconds, in the others the layers concerned are merged again."""
        uses, mode, keep = self._current
        held = tuple(use.steps.holds(reported, steps) for use in uses)
        if held == self._held:
            return
        changed = {number for number, (now, before) in enumerate(zip(held, self._held, strict=True)) if now != before}
        try:
            if mode is LoraMode.EXACT:
                pairs = zip(uses, held, strict=True)
                self._change_strengths([use if holds else replace(use, unet_strength=0.0) for use, holds in pairs])
            else:
                self._merge_anew(changed, held, mode, keep)
        except BaseException:
            self.remove()
            raise
        self._held = held

    def _merge_anew(self, changed: Collection[int], held: Sequence[bool], mode: LoraMode, keep: bool) -> None:
        """Merge what holds into the UNet's layers that the adapters of these numbers change."""
        for target, parts in self._planned.values():
            if target.is_text or not any(number in changed for number, _ in parts):
                continue
            state = stored_state(target.layer)
            if state is not None:
                state.branches = None  # a bias beside a layer that has none
            for key in [key for key, (each, _) in self._merged.items() if each.layer is target.layer]:
                self._put_loaded(key)
            now = [(number, adapter) for number, adapter in parts if held[number]]
            if not now:
                continue
            uses, numbers = self.uses, [number for number, _ in now]
            changes: list[LayerChange] = [
                adapter.at(_strength(uses[number], target), uses[number].dynamic_rank) for number, adapter in now
            ]
            if mode is LoraMode.MERGE:
                self._merge(target, changes, numbers, _Sum(), keep)
            else:
                self._merge_into_stored(target, changes, numbers, _Sum(), mode is LoraMode.STOCHASTIC)
        self._full_precision.close()
        release_scratch()
        release_memory(self._device)

    @contextmanager
    def taken_off(self, layer: nn.Module) -> Iterator[None]:
        """Inside, this layer computes as it was loaded, whatever is on it; afterwards all is back, bit for bit."""
        state = stored_state(layer)
        beside = None if state is None else (state.changes, state.branches)
        merged = {
            key: stored_tensors(layer, name) for key, (target, name) in self._merged.items() if target.layer is layer
        }
        try:
            if state is not None:
                state.changes, state.branches = (), None
            for key in merged:
                self._put_loaded(key)
            yield
        finally:
            for key, tensors in merged.items():
                put(layer, self._merged[key][1], *tensors)
            if state is not None and beside is not None:
                state.changes, state.branches = beside

    def _put_loaded(self, key: tuple[str, str]) -> None:
        """Give a parameter that adapters were merged into what was loaded."""
        target, name = self._merged[key]
        if key in self._backups:
            put(target.layer, name, *self._backups[key])
            return
        loaded = _storage_of(target.layer, name).encode(self._full_precision.read(*key).to(self._device))
        put(target.layer, name, loaded.data, loaded.scale)

    # -- other strengths -----------------------------------------------------------------------------------------------

    def _only_strengths_differ(self, uses: Sequence[Use], mode: LoraMode) -> bool:
        """Whether what is there can stay: the same files in the same order, as side branches."""
        before, old_mode, _ = self._current
        return (
            mode is old_mode is LoraMode.EXACT
            and len(uses) == len(before) > 0
            and all(
                (new.file_hash, new.dynamic_rank) == (old.file_hash, old.dynamic_rank)
                for new, old in zip(uses, before, strict=True)
            )
        )

    def _change_strengths(self, uses: Sequence[Use]) -> None:
        budget = Budget(DELTA_BUDGET_BYTES)
        for target, parts in self._planned.values():
            changes = [
                adapter.at(_strength(uses[number], target), uses[number].dynamic_rank) for number, adapter in parts
            ]
            state = stored_state(target.layer)
            assert state is not None
            if state.changes:
                state.changes = (DecodedChanges(changes, budget),)
            if isinstance(state.branches, DeltaBranch):
                state.branches = DeltaBranch(changes, budget)
            if isinstance(state.branches, AllBranches):
                sides = [branch for change in changes if (branch := change.branch()) is not None]
                for part, scale in zip(state.branches.parts, joined_scales(sides, self._device), strict=False):
                    part.scale = scale
                if state.branches.bias is not None:
                    bias = changed_bias(None, changes)
                    state.branches.bias = None if bias is None else bias.to(self._device)

    # -- planning ----------------------------------------------------------------------------------------------------

    def _plan(
        self, uses: Sequence[Use], files: Mapping[str, AdapterFile]
    ) -> dict[tuple[str, str], tuple[Target, list[LayerChange]]]:
        """Plan by layer: the changes in the order of the adapters."""
        self.notices.clear()
        planned: dict[tuple[str, str], tuple[Target, list[LayerChange]]] = {}
        parts: dict[tuple[str, str], tuple[Target, list[tuple[int, Adapter]]]] = {}
        for number, use in enumerate(uses):
            held = files[use.file_hash].adapters
            adapters = {name: held[own] for own, name in self._table.in_place(held).items()}
            if adapters.keys() != held.keys():
                self.notices.append(
                    page_text(f"{use.name}: it was made for a model with fewer blocks and changes those of it alone.")
                )
            found = self._found_once(use.name, adapters)
            missing = [name for name in adapters if self._table.find(name) is None and not self._table.parts(name)]
            switched_off = [name for name in missing if self._table.is_switched_off(name)]
            check_missing(use.name, len(adapters), len(missing) - len(switched_off), missing)
            if missing:
                self.notices.append(left_out(use.name, missing))
            for target, adapter in found:
                key = (target.component, target.path)
                change = adapter.at(_strength(use, target), use.dynamic_rank)
                check_shapes(use.name, target, change)
                planned.setdefault(key, (target, []))[1].append(change)
                parts.setdefault(key, (target, []))[1].append((number, adapter))
        self._planned = parts
        return planned

    def _found_once(self, adapter: str, adapters: Mapping[str, Adapter]) -> list[tuple[Target, Adapter]]:
        """All layers that a file changes, each with its share. Some files have layers twice, fused and in parts: then
        the parts count."""
        alone: list[tuple[Target, Adapter]] = []
        parts: list[tuple[Target, Adapter]] = []
        for name, algorithm in adapters.items():
            (parts if self._table.parts(name) else alone).extend(self._found(adapter, name, algorithm))
        known: dict[int, tuple[Target, Adapter]] = {}
        for target, algorithm in [*alone, *parts]:
            known.setdefault(id(target.layer), (target, algorithm))
        doubles = len(alone) + len(parts) - len(known)
        if doubles:
            self.notices.append(
                page_text(
                    f"{adapter}: {doubles} of its layers are in the file twice, under two names or fused and in parts, "
                    "and were applied once."
                )
            )
        return list(known.values())

    def _found(self, adapter: str, name: str, algorithm: Adapter) -> Iterator[tuple[Target, Adapter]]:
        """The layers that a name means, each with its share of the change."""
        parts = self._table.parts(name)
        height = max((end for part in parts for _, end in part.rows), default=0)
        branch = algorithm.branch() if parts else None
        if branch is not None and branch.up.shape[0] < height:  # made for the first of the parts alone
            height = branch.up.shape[0]
            parts = [part for part in parts if all(end <= height for _, end in part.rows)]
        norms = None
        if parts and needs_norms(algorithm, height):
            norms = ColumnNorms(plain_change(algorithm), lambda: _whole_weight(parts, height))
        try:
            yield from ((part.target, rows_of(algorithm, part.rows, height, norms)) for part in parts)
        except InvalidValueError as error:
            raise AdapterError(f"{adapter}: {name}: {error}") from error
        target = self._table.find(name)
        if not parts and target is not None:
            yield target, algorithm

    # -- the modes ---------------------------------------------------------------------------------------------------

    def _merge(
        self, target: Target, changes: list[LayerChange], numbers: Sequence[int], total: _Sum, keep: bool
    ) -> None:
        """`numbers` are those of the changes' adapters."""
        for name in NAMES:
            if target.layer._parameters.get(name) is None:
                self._bias_beside(target, changes, numbers, total)
                continue
            base = self._full_precision_of(target, name, keep).to(self._device, torch.float32)
            merged = self._changed(name, base, changes)
            if merged is base:
                continue
            before = self._effective(target.layer, name)
            self._put(target, name, merged, None)
            wanted, effect_kept = merged - base, self._effective(target.layer, name) - before
            share = total.add(f"{target.path}.{name}", wanted, effect_kept)
            for number, change in zip(numbers, changes, strict=True):
                if len(numbers) > 1:
                    share = _share(self._changed(name, base, [change]) - base, effect_kept - wanted)
                total.add_adapter(number, *share)

    def _merge_into_stored(
        self, target: Target, changes: list[LayerChange], numbers: Sequence[int], total: _Sum, stochastic: bool
    ) -> None:
        for name in NAMES:
            if target.layer._parameters.get(name) is None:
                self._bias_beside(target, changes, numbers, total)
                continue
            first = current = self._effective(target.layer, name)
            wanted = self._changed(name, first, changes) - first
            for number, change in enumerate(changes):
                merged = self._changed(name, current, [change])
                if merged is current:
                    continue
                seed = crc32(f"{target.path}.{name}/{number}".encode()) if stochastic else None
                before = current
                self._put(target, name, merged, seed)
                current = self._effective(target.layer, name)
                if len(numbers) > 1:
                    total.add_adapter(numbers[number], *_share(merged - before, current - merged))
            if current is not first:
                share = total.add(f"{target.path}.{name}", wanted, current - first)
                if len(numbers) == 1:
                    total.add_adapter(numbers[0], *share)

    def _bias_beside(self, target: Target, changes: list[LayerChange], numbers: Sequence[int], total: _Sum) -> None:
        """A layer without a bias has none to merge into: what is added is computed as a side branch, as in mode
        exact."""
        bias = changed_bias(None, changes)
        if bias is None:
            return
        managed_whole(target.layer).branches = AllBranches((), bias.to(self._device))
        total.add(f"{target.path}.bias", bias, bias)
        for number, change in zip(numbers, changes, strict=True):
            own = change.bias_delta(None)
            if own is not None:
                total.add_adapter(number, *_share(own, torch.zeros_like(own)))

    def _numbers(self, target: Target) -> list[int]:
        """The numbers of the adapters that change a layer, in the order of their changes."""
        return [number for number, _ in self._planned[(target.component, target.path)][1]]

    # -- weights -----------------------------------------------------------------------------------------------------

    def _changed(self, name: str, base: Tensor, changes: Sequence[LayerChange]) -> Tensor:
        if name == "weight":
            with autocast(self._device, self._autocast or torch.bfloat16, enabled=bool(self._autocast)):
                return changed_weight(base, changes, as_others=True, sum_dtype=self._autocast)
        changed = changed_bias(base, changes)
        assert changed is not None
        return changed

    def _effective(self, layer: nn.Module, name: str) -> Tensor:
        """The stored weight as float32, without changes."""
        state = stored_state(layer)
        data, scale = stored_tensors(layer, name)
        if state is None or name not in state.formats:
            return data.float()
        storage = state.formats[name]
        if storage.dtype == torch.float32:
            return data
        return storage.decode(
            data, scale, torch.empty(weight_shape(storage, data), dtype=torch.float32, device=data.device)
        )

    def _put(self, target: Target, name: str, weight: Tensor, seed: int | None) -> None:
        key = (target.component, f"{target.path}.{name}")
        if key not in self._merged and not self._full_precision.is_source(*key):
            self._backups[key] = stored_tensors(target.layer, name)
        storage = _storage_of(target.layer, name)
        encoded = storage.encode(weight) if seed is None else encode_stochastic(storage, weight, seed)
        put(target.layer, name, encoded.data, encoded.scale)
        self._merged[key] = (target, name)

    def _full_precision_of(self, target: Target, name: str, keep: bool) -> Tensor:
        key = (target.component, f"{target.path}.{name}")
        if key in self._kept:
            return self._kept[key]
        full_precision = self._full_precision.read(*key)
        if keep:
            self._kept[key] = full_precision
        return full_precision


def _whole_weight(parts: Sequence[Part], height: int) -> Tensor:
    """The weight [height, in, ...] of a layer that is in parts here, float32, without adapters."""
    whole: Tensor | None = None
    for part in parts:
        weight, at = full_weight(part.target.layer), 0
        if whole is None:
            whole = weight.new_zeros(height, *weight.shape[1:])
        for begin, end in part.rows:
            whole[begin:end] = weight[at : at + end - begin]
            at += end - begin
    assert whole is not None
    return whole


def _share(own: Tensor, error: Tensor) -> tuple[float, float]:
    return float((error * own).sum()), float((own * own).sum())


def _strength(use: Use, target: Target) -> float:
    if target.is_text:
        return use.te_strength
    return use.unet_strength * BlockWeights(blocks=use.blocks).of(target.block, target.path)


def _storage_of(layer: nn.Module, name: str) -> StorageFormat:
    """The format a parameter is stored in."""
    state = stored_state(layer)
    if state is not None and name in state.formats:
        return state.formats[name]
    parameter = layer._parameters[name]
    assert parameter is not None
    return FORMATS.get(dtype_name(parameter.dtype))


def _plain_formats(layer: nn.Module, known: Collection[str] = ()) -> dict[str, StorageFormat]:
    """The formats of the parameters as they are, without those whose format is known."""
    return {
        name: FORMATS.get(dtype_name(parameter.dtype))
        for name, parameter in layer._parameters.items()
        if parameter is not None and name not in known
    }


def add_branches(layer: nn.Module, changes: Sequence[LayerChange], budget: Budget, device: torch.device) -> None:
    """Have changes work on a layer in mode exact: as branches where all factor, else when its weight is decoded, or as
    a second product where rounding would lose them."""
    state = managed_whole(layer)
    sides = [branch for change in changes if (branch := change.branch()) is not None and _fits(branch, layer)]
    if len(sides) == len(changes) and isinstance(layer, (nn.Linear, nn.Conv2d)):
        state.branches = AllBranches(joined_branches(layer, sides, state.compute_dtype, device))
        return
    if wants_delta_branch(layer, state.compute_dtype):
        state.branches = DeltaBranch(changes, budget)
        return
    state.changes = (DecodedChanges(changes, budget),)
    if layer._parameters.get("bias") is None:
        bias = changed_bias(None, changes)
        if bias is not None:
            state.branches = AllBranches((), bias.to(device))


def managed_whole(layer: nn.Module) -> Stored:
    """Have the layer managed with all of its parameters, so that each can be changed on its way to use."""
    known = stored_state(layer)
    if known is None:
        return manage(layer, _plain_formats(layer), _dtype_of(layer), cast_inputs=False)
    plain = _plain_formats(layer, known.formats)
    if not plain:
        return known
    return manage(layer, {**plain, **known.formats}, known.compute_dtype, known.device, known.cast_inputs)


def _dtype_of(layer: nn.Module) -> torch.dtype:
    return next(parameter.dtype for parameter in layer._parameters.values() if parameter is not None)


def _fits(branch: SideBranch, layer: nn.Module) -> bool:
    """Whether the branch takes all of the layer's input channels (a UNet for inpainting has more than its LoRAs), and
    is no convolution next to a matrix."""
    shape = shape_of(layer, "weight")
    if shape is None or len(shape) < 2 or branch.down.shape[1] != shape[1]:
        return False
    return branch.mid is None or len(shape) == 4
