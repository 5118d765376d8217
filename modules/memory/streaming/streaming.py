"""Streaming of weights: a model that is larger than the device's memory, or than main memory, computes all the same.

`stream` makes it so for any modules, and returns the handle that undoes it. What moves are the stored bytes (fp8 is
half of fp16), which `modules.memory.layer` decodes on the device that computes. Weights are stored in main memory, in
the checkpoint file itself, or in files of an offload folder.

The aim is that of diffusers' pull requests 10503, 10516 and 11682 (group offloading, streams, disk). Theirs moves
parameters in and out by hooks on forward passes; here a layer asks for a weight when it uses it, so whoever reads a
weight without calling its layer gets it too, and an exception in a forward pass leaves nothing to tidy up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from modules.errors import InvalidValueError
from modules.memory.formats.format import FORMATS, dtype_name
from modules.memory.layer import manage, restore_class, stored_state
from modules.memory.moving import move
from modules.memory.streaming.groups import Group, Level, make_groups, regrouped, room_ahead
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.streamer import StreamCounts, Streamer
from modules.memory.streaming.transfer import CopyEngine, ReadingCopyEngine, StreamCopyEngine, pin, pinned_for
from modules.system.devices import has_streams


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How weights move.

    `blocks_per_group` and `max_block_bytes`: see `make_groups`. `ahead_bytes` may be under way in addition to the group
    in use (None: as much as the largest group has; 0: nothing). Groups of `kept_bytes` in all stay on the device.
    On GPUs: `pinned_bytes` of weights are stored in page-locked memory and are copied without the CPU's help
    (None: all; the rest goes through two pinned buffers), `own_stream` copies while the device computes,
    `record_stream` is for several threads that compute in streams of their own.
    """

    blocks_per_group: int = 1
    max_block_bytes: int | None = None
    ahead_bytes: int | None = None
    kept_bytes: int = 0
    pinned_bytes: int | None = 0
    own_stream: bool = True
    record_stream: bool = False

    def __post_init__(self) -> None:
        for name in ("ahead_bytes", "kept_bytes", "pinned_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidValueError(f"{name} of a stream is {value}; it must be 0 or more.")


@dataclass
class StreamHandle:
    """Streaming of some components, and the way back."""

    components: dict[str, nn.Module]
    device: torch.device
    streamer: Streamer
    levels: dict[str, Level]  # of each component
    _only_streamed: set[int] = field(default_factory=set)  # ids of layers that are managed for no other reason
    _hooks: list[Any] = field(default_factory=list)

    @property
    def counts(self) -> StreamCounts:
        """Return the counts so far."""
        return self.streamer.counts

    @property
    def groups(self) -> tuple[Group, ...]:
        """Return the groups that move together."""
        return self.streamer.groups

    @property
    def offloaded_bytes(self) -> int:
        """Bytes of all streamed weights, as they rest."""
        return self.streamer.offloaded_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes of those that are on the device now, or on their way."""
        return self.streamer.live_bytes

    def let_go(self) -> None:
        """Free the device of all streamed weights; the next use brings them back."""
        self.streamer.let_go()

    def make_finer(self, name: str, level: Level, max_block_bytes: int | None = None) -> Callable[[], None] | None:
        """Stream one component at this level from now on, with nothing of any brought ahead of its use and nothing
        kept; returns the way back, None where it is done so already, or more finely."""
        order, before = list(Level), self.levels
        now, wanted = order.index(before[name]), order.index(level)
        if now > wanted or (now == wanted and not self.streamer.spends):
            return None
        groups = self.groups
        if now < wanted:
            groups = tuple(regrouped(groups, name, self.components[name], level, max_block_bytes))
        regroup_back = self.streamer.regroup(groups)
        self.levels = {**before, name: level}

        def back() -> None:
            regroup_back()
            self.levels = before

        return back

    def compute_on(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Callable[[], None]:
        """Have one component compute on another device (and in another dtype, as `moving.move`), with its weights
        streamed there; returns the way back."""
        inside = {id(layer) for layer in self.components[name].modules()}
        groups = [group for group in self.groups if id(group.slots[0].layer) in inside]
        redirect_back = self.streamer.redirect(groups, ReadingCopyEngine(device))
        move_back = move(self.components[name], device, dtype)

        def back() -> None:
            move_back()
            redirect_back()

        return back

    def remove(self) -> None:
        """Put every weight back into its layer, on the device, bit for bit. Safe to call twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for group in self.groups:
            for slot in group.slots:
                state = stored_state(slot.layer)
                if state is None or state.fetch is not self.streamer:
                    continue  # it was given its weights back already
                data = self.streamer.read(slot.layer, slot.name).to(self.device)
                slot.layer._parameters[slot.name] = nn.Parameter(data, requires_grad=False)
        for layer in _layers(self.groups):
            state = stored_state(layer)
            if state is not None and state.fetch is self.streamer:
                state.fetch, state.device = None, None
                is_8_bit = any(storage.dtype.itemsize == 1 for storage in state.formats.values())  # stored meanwhile
                is_needed = is_8_bit or bool(state.changes) or state.branches is not None
                if id(layer) in self._only_streamed and not is_needed:
                    restore_class(layer)
        self.streamer.close()

    def close(self) -> None:
        """Free everything without putting anything back: for components that nobody will use again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.streamer.close()

    def __enter__(self) -> StreamHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def stream(
    components: nn.Module | Mapping[str, nn.Module],
    device: torch.device,
    level: Level | Mapping[str, Level] = Level.LAYER,
    options: StreamOptions | None = None,
    place: OffloadStorage | None = None,
    copy_engine: CopyEngine | None = None,
) -> StreamHandle:
    """Stream the weights of some modules to `device`; what is small, and all buffers, lie there for good.

    `level` says how finely, for each component. Weights that `place` has taken already (while a file was loaded) stay
    where they rest; the others go there now. Without a place they rest in main memory. Gradients for streamed weights
    there are none: raises `InvalidValueError` for parameters that require them and are not too small to be streamed,
    and for modules that are streamed already.
    """
    named = {"": components} if isinstance(components, nn.Module) else dict(components)
    levels = dict.fromkeys(named, level) if isinstance(level, Level) else dict(level)
    options = options or StreamOptions()
    place = place or OffloadStorage()
    _refuse(named.values(), place)
    for root in named.values():
        for layer in root.modules():
            for name in layer._parameters:
                place.take(layer, name)
            _move_rest(layer, device)
    groups = make_groups(named, place.sources, levels, options.blocks_per_group, options.max_block_bytes)
    place.finish()
    given = options.ahead_bytes
    ahead = room_ahead(groups) if given is None else dict.fromkeys(named, given)
    copy_engine_here = copy_engine or _copy_engine(device, options, max(ahead.values(), default=0))
    streamer = Streamer(groups, copy_engine_here, place, ahead, options.kept_bytes)
    handle = StreamHandle(named, device, streamer, levels)
    _attach(handle)
    if has_streams(device) and options.own_stream and copy_engine is None:
        pin(groups, options.pinned_bytes, pinned_for(device))
    return handle


def _refuse(roots: Iterable[nn.Module], place: OffloadStorage) -> None:
    for root in roots:
        for path, layer in root.named_modules():
            state = stored_state(layer)
            if state is not None and state.fetch is not None:
                raise InvalidValueError(f"{path or 'The module'} is streamed already. Remove that first.")
            for name, parameter in layer._parameters.items():
                trained = parameter is not None and parameter.requires_grad
                if trained and place.wants(parameter.shape, parameter.dtype):
                    where = f"{path}.{name}" if path else name
                    raise InvalidValueError(
                        f"{where} requires a gradient, and streamed weights cannot be trained. "
                        "Call requires_grad_(False) first."
                    )


def _move_rest(layer: nn.Module, device: torch.device) -> None:
    for parameter in layer._parameters.values():
        if parameter is not None and not parameter.is_meta:
            parameter.data = parameter.data.to(device)
    for name, buffer in layer._buffers.items():
        if buffer is not None and not buffer.is_meta:
            layer._buffers[name] = buffer.to(device)


def _copy_engine(device: torch.device, options: StreamOptions, spare_bytes: int) -> CopyEngine:
    if has_streams(device) and options.own_stream:
        return StreamCopyEngine(device, options.record_stream)
    return ReadingCopyEngine(device, spare_bytes)


def _attach(handle: StreamHandle) -> None:
    """Have every layer ask the streamer for its weights."""
    for layer in _layers(handle.groups):
        known = stored_state(layer)
        names = [name for name in layer._parameters if handle.streamer.has(layer, name)]
        dtypes = {name: _dtype(layer, name) for name in names}
        if known is None:
            handle._only_streamed.add(id(layer))
            formats = {name: FORMATS.get(dtype_name(dtype)) for name, dtype in dtypes.items()}
            state = manage(layer, formats, dtypes[names[0]], cast_inputs=False)
        else:
            more = {name: FORMATS.get(dtype_name(dtypes[name])) for name in names if name not in known.formats}
            formats = {**more, **known.formats}
            state = manage(layer, formats, known.compute_dtype, known.device, known.cast_inputs) if more else known
        state.fetch, state.device = handle.streamer, handle.device
        hooked: Any = layer  # PyTorch leaves the types of these two open
        handle._hooks.append(hooked.register_state_dict_post_hook(_Saved(handle.streamer, tuple(names))))
        handle._hooks.append(hooked.register_load_state_dict_pre_hook(_refuse_load))


@dataclass
class _Saved:
    """Puts the weights in the place of their shells in a state dict."""

    streamer: Streamer
    names: tuple[str, ...]

    def __call__(self, layer: nn.Module, state_dict: dict[str, Any], prefix: str, _: object) -> None:
        for name in self.names:
            if self.streamer.has(layer, name) and prefix + name in state_dict:
                state_dict[prefix + name] = self.streamer.read(layer, name)


def _refuse_load(*_: object) -> None:
    raise InvalidValueError("Weights cannot be loaded into a module that is streamed. Remove the streaming first.")


def _layers(groups: Iterable[Group]) -> list[nn.Module]:
    return list({id(slot.layer): slot.layer for group in groups for slot in group.slots}.values())


def _dtype(layer: nn.Module, name: str) -> torch.dtype:
    parameter = layer._parameters[name]
    assert parameter is not None
    return parameter.dtype
