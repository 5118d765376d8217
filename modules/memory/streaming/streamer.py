"""Gives layers their weights as they use them: brings groups in, ahead where the order is known, and lets go."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from modules.errors import FeatherweightError, InvalidValueError
from modules.memory.formats.format import FORMATS, dtype_name
from modules.memory.layer import SCALE_SUFFIX, Part, stored_state
from modules.memory.streaming.groups import Group, Slot
from modules.memory.streaming.offload_storage import OffloadStorage, shell_of
from modules.memory.streaming.order import Order
from modules.memory.streaming.parts import PartGroups, Parts
from modules.memory.streaming.source import as_bytes, read, size_bytes
from modules.memory.streaming.transfer import CopyEngine, Transfer


@dataclass
class StreamCounts:
    """Counts since streaming began."""

    uses: int = 0  # a group was needed that was not the one before
    ready: int = 0  # ... and was there, or on its way
    moved_bytes: int = 0
    max_bytes: int = 0  # that were there or on their way at one time
    no_room: int = 0  # groups that should have come ahead, for which there was no memory
    wasted: int = 0  # groups brought in ahead that were not needed


class Streamer:
    """The `Fetch` of all layers of some components. Groups are there from their first use until another group is used.

    Threads may share it; a group that one of them lets go stays valid for the others as long as they hold its tensors.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        copy_engine: CopyEngine,
        place: OffloadStorage,
        ahead_bytes: Mapping[str, int],
        kept_bytes: int,
    ) -> None:
        """`ahead_bytes`: what may be under way besides the present group, by component. `kept_bytes`: groups of so many
        bytes together stay once they are there."""
        self.counts = StreamCounts()
        self.failed = False  # weights cannot be had any more
        self._copy_engine = copy_engine
        self._place = place
        self._elsewhere: dict[Group, CopyEngine] = {}  # groups that go by another link than the others
        self._order = Order()
        self._live: dict[Group, _Live] = {}
        self._coming: dict[Group, list[Transfer]] = {}
        self._current: Group | None = None
        self._lock = threading.RLock()
        self._kept: set[Group] = set()
        self._move(groups, ahead_bytes, _kept_of(groups, kept_bytes))

    # -- what layers ask (the protocol `Fetch`) ----------------------------------------------------------------------

    def __call__(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
        """Stored data and scale of a parameter, on the device that computes. A break in compiled graphs, see
        `keep_out_of_graphs`."""
        scale = layer._buffers.get(name + SCALE_SUFFIX)
        found = self._slots.get((id(layer), name))
        if found is None:
            parameter = layer._parameters[name]
            assert parameter is not None, f"{name} is not there"
            return parameter.data, scale
        slot, group = found
        with self._lock:
            _follow_cast(slot)
            if group is not self._current or group not in self._live:
                self._use(group)
            data = self._live[group].tensors[slot]
        return (data if slot.via is None else data.to(slot.via)), scale

    def parts(self, parts: Sequence[Part]) -> list[Tensor]:
        """Stored data of parts of parameters, which are a group of their own: nothing else is brought.

        Where a parameter stays on the device, or moves with its whole component, the part is a view of it.
        """
        with self._lock:
            cut = tuple(part for part in parts if self._is_cut(part))
            whole = {part: part.of(self(part.layer, part.name)[0]) for part in parts if part not in cut}
            brought = self._bring(cut) if cut else {}
        return [whole[part] if part in whole else brought[part] for part in parts]

    def dtype(self, layer: nn.Module, name: str) -> torch.dtype | None:
        """In which dtype the data will arrive; None for a parameter that is in its layer."""
        found = self._slots.get((id(layer), name))
        return None if found is None else found[0].via or found[0].source.dtype

    def replace(self, layer: nn.Module, name: str, data: Tensor) -> bool:
        """Put other data in the place of a parameter; False for one that is in its layer."""
        found = self._slots.get((id(layer), name))
        if found is None:
            return False
        slot, group = found
        with self._lock:
            self._forget(group)
            self._drop(self._parts.remove_of(layer, name))
            first = slot.first
            same = first.shape == data.shape and torch.equal(
                as_bytes(read(first).to(data.dtype)), as_bytes(data.cpu().contiguous())
            )
            before, slot.source = slot.source, first if same else self._place.keep(data)
            slot.via = None
            if before is not first:
                self._place.let_go(before)
            layer._parameters[name] = shell_of(data)
            state = stored_state(layer)
            if state is not None and data.element_size() > 1:
                state.formats[name] = FORMATS.get(dtype_name(data.dtype))
            group.arrange()
        return True

    def __deepcopy__(self, memo: object) -> Streamer:
        raise InvalidValueError("A module whose weights are streamed cannot be copied. Remove the streaming first.")

    # -- for those who stream ----------------------------------------------------------------------------------------

    def has(self, layer: nn.Module, name: str) -> bool:
        """Whether this parameter is streamed."""
        return (id(layer), name) in self._slots

    def read(self, layer: nn.Module, name: str) -> Tensor:
        """A parameter As stored, on the CPU, in its own dtype; disturbs nothing that is under way."""
        slot, _ = self._slots[id(layer), name]
        parameter = layer._parameters[name]
        assert parameter is not None
        data = read(slot.source)
        return (data if slot.via is None else data.to(slot.via)).to(parameter.dtype)

    @property
    def live_bytes(self) -> int:
        """Return the bytes of groups that are on the device or on their way."""
        return sum(group.size_bytes for group in {*self._live, *self._coming})

    @property
    def offloaded_bytes(self) -> int:
        """Return the stored bytes of all that is streamed; tied weights count once."""
        return sum({id(slot.source): size_bytes(slot.source) for slot, _ in self._slots.values()}.values())

    def let_go(self) -> None:
        """Let go of every group, the kept ones too, and forget the order."""
        with self._lock:
            for group in {*self._live, *self._coming}:
                self._forget(group)
            self._order.forget()

    @property
    def spends(self) -> bool:
        """Whether anything is there before its use or after it, for speed."""
        return any(self._ahead_bytes.values()) or bool(self._kept)

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of groups that stay on the device."""
        return sum(group.size_bytes for group in self._kept)

    def keep(self, kept_bytes: int) -> None:
        """Have groups of so many bytes together stay from now on; the others are let go when another is used, and now
        where they stayed so far."""
        with self._lock:
            before, self._kept = self._kept, _kept_of(self.groups, kept_bytes)
            for group in before - self._kept:
                self._forget(group)

    def regroup(self, groups: Sequence[Group]) -> Callable[[], None]:
        """From now on move these groups, of the same slots, with nothing brought ahead and nothing kept; returns the
        way back."""
        with self._lock:
            old, ahead_bytes, kept = self.groups, self._ahead_bytes, self._kept
            sources = {slot: slot.source for slot, _ in self._slots.values()}
            self._move(groups, {}, set())

        def back() -> None:
            with self._lock:
                for group in old:
                    if any(slot.source is not sources[slot] for slot in group.slots):
                        group.arrange()  # a weight was replaced meanwhile
                grouped = {slot for group in old for slot in group.slots}
                taken_out = [group for group in self.groups if not grouped.intersection(group.slots)]
                self._move([*old, *taken_out], ahead_bytes, kept)

        return back

    def redirect(self, groups: Sequence[Group], copy_engine: CopyEngine) -> Callable[[], None]:
        """Bring these groups by another link (to another device) from now on; returns the way back, which closes it."""
        with self._lock:
            self._drop(self._parts.remove_all())
            for group in groups:
                self._forget(group)
                self._elsewhere[group] = copy_engine

        def back() -> None:
            with self._lock:
                self._drop(self._parts.remove_all())
                for group in [group for group, other in self._elsewhere.items() if other is copy_engine]:
                    self._forget(group)
                    del self._elsewhere[group]
            copy_engine.close()

        return back

    def close(self) -> None:
        """Let go and wait for what is under way. Nothing can be fetched afterwards."""
        self.let_go()
        self._copy_engine.close()
        self._place.close()

    # -- moving ------------------------------------------------------------------------------------------------------

    def _move(self, groups: Sequence[Group], ahead_bytes: Mapping[str, int], kept: set[Group]) -> None:
        """Let go of what is there; these are the groups from now on."""
        self.let_go()
        self._parts = PartGroups()
        self.groups, self._ahead_bytes, self._kept = tuple(groups), ahead_bytes, kept
        self._slots = {(id(slot.layer), slot.name): (slot, group) for group in groups for slot in group.slots}
        self._numbers = itertools.count()
        self._by_index: dict[int, Group] = {}
        for group in groups:
            self._number(group)

    def _number(self, group: Group) -> None:
        group.index = next(self._numbers)
        self._by_index[group.index] = group

    # -- parts of weights --------------------------------------------------------------------------------------------

    def _is_cut(self, part: Part) -> bool:
        """Whether a part moves without the rest of its parameter."""
        found = self._slots.get((id(part.layer), part.name))
        if found is None:
            return False
        slot, group = found
        is_whole = part.stop - part.start == slot.source.shape[part.dimension]
        return not (group.alone or is_whole or (group in self._kept))

    def _bring(self, parts: Parts) -> dict[Part, Tensor]:
        slots = [self._slots[id(part.layer), part.name][0] for part in parts]
        for slot in slots:
            _follow_cast(slot)
        group = self._group_of(parts)
        if group is not self._current or group not in self._live:
            self._use(group)
        tensors = [self._live[group].tensors[slot] for slot in group.slots]
        return {
            part: data if slot.via is None else data.to(slot.via)
            for part, slot, data in zip(parts, slots, tensors, strict=True)
        }

    def _group_of(self, parts: Parts) -> Group:
        """The group of these parts; made at their first use, in the place of those that were cut in another way."""
        known = self._parts.get(parts)
        if known is not None:
            return known
        self._drop(self._parts.remove_overlapping(parts))
        wholes = []
        for part in parts:
            slot, group = self._slots[id(part.layer), part.name]
            if len(group.slots) > 1:
                group = self._take_out(slot, group)
            wholes.append(slot)
        made = self._parts.add(parts, wholes)
        self._number(made)
        if group in self._elsewhere:
            self._elsewhere[made] = self._elsewhere[group]
        return made

    def _take_out(self, slot: Slot, group: Group) -> Group:
        """Have a weight move by itself, so that it does not come with its group as well."""
        self._forget(group)
        alone = group.take_out(slot)
        self._slots[id(slot.layer), slot.name] = slot, alone
        self.groups = (*self.groups, alone)
        self._number(alone)
        if group in self._elsewhere:
            self._elsewhere[alone] = self._elsewhere[group]
        return alone

    def _drop(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self._forget(group)
            self._elsewhere.pop(group, None)
            del self._by_index[group.index]

    # -- on their way ------------------------------------------------------------------------------------------------

    def _send(self, group: Group, ahead: bool) -> list[Transfer]:
        copy_engine = self._elsewhere.get(group, self._copy_engine)
        return [copy_engine.send(piece, ahead) for piece in group.pieces]

    def _use(self, group: Group) -> None:
        """Have a group there, let go of what is not needed next, and begin to bring what is."""
        self._order.use(group.index)
        self.counts.uses += 1
        self.counts.ready += group in self._live or group in self._coming
        chain = self._chain(group)
        for other in [*self._live, *self._coming]:
            if other is not group and other not in chain and not (other in self._kept and other in self._live):
                self.counts.wasted += other in self._coming
                self._forget(other)
        if group not in self._live:
            self._keep_effect(group)
        self._current = group
        for coming in chain:
            if coming not in self._live and coming not in self._coming:
                try:
                    self._coming[coming] = self._send(coming, ahead=True)
                except (torch.OutOfMemoryError, MemoryError):
                    self.counts.no_room += 1
                    break  # it comes when it is used: what is ahead of use is no reason to fail
        self.counts.max_bytes = max(self.counts.max_bytes, self.live_bytes)

    def _keep_effect(self, group: Group) -> None:
        try:
            transfers = self._coming.pop(group, None)
            if transfers is None:
                transfers = self._send(group, ahead=False)
            flats = [transfer.wait() for transfer in transfers]
        except FeatherweightError:
            self.failed = True
            raise
        self.counts.moved_bytes += group.size_bytes
        self._live[group] = _Live(flats, _views(group, flats))

    def _chain(self, group: Group) -> list[Group]:
        """The groups to have under way while this one is used."""
        chain: list[Group] = []
        room = self._ahead_bytes.get(group.component, max(self._ahead_bytes.values(), default=0))
        if group.alone or room <= 0:
            return chain
        for index in self._order.expected():
            following = self._by_index.get(index)
            if following in self._kept and following in self._live:
                continue
            if following is None or following.alone or following.size_bytes > room:
                break
            room -= following.size_bytes
            chain.append(following)
            if following.is_part:
                break  # whoever cuts a weight wants little of it in memory: no more than the next part
        return chain

    def _forget(self, group: Group) -> None:
        for transfer in self._coming.pop(group, ()):
            transfer.discard()
        live = self._live.pop(group, None)
        if live is not None:
            flats, live.flats = live.flats, []
            live.tensors.clear()
            copy_engine = self._elsewhere.get(group, self._copy_engine)
            while flats:
                copy_engine.release(flats.pop())
        if self._current is group:
            self._current = None


@dataclass
class _Live:
    """A group that is there: its rows, and the weights in them."""

    flats: list[Tensor]
    tensors: dict[Slot, Tensor]


def _kept_of(groups: Iterable[Group], kept_bytes: int) -> set[Group]:
    """The first groups that fit into so many bytes together."""
    kept = set()
    for group in groups:
        if not group.alone and group.size_bytes <= kept_bytes:
            kept_bytes -= group.size_bytes
            kept.add(group)
    return kept


def _views(group: Group, flats: Sequence[Tensor]) -> dict[Slot, Tensor]:
    return {
        slot: flat[offset : offset + size_bytes(slot.source)].view(slot.source.dtype).view(slot.source.shape)
        for piece, flat in zip(group.pieces, flats, strict=True)
        for slot, offset in zip(piece.slots, piece.offsets, strict=True)
    }


def _follow_cast(slot: Slot) -> None:
    """Take over another dtype that somebody gave the shell of a weight (`module.to(dtype)`), as the weight itself
    would have taken it. Weights in 8 bits stay what they are."""
    state, shell = stored_state(slot.layer), slot.layer._parameters[slot.name]
    if state is None or shell is None or shell.dtype == state.formats[slot.name].dtype:
        return
    before = state.formats[slot.name].dtype
    if before.itemsize == 1:
        slot.layer._parameters[slot.name] = nn.Parameter(shell.to(before), requires_grad=False)
        return
    if slot.source.dtype != before and slot.via is None:
        slot.via = before  # it was rounded to this dtype first
    state.formats[slot.name] = FORMATS.get(dtype_name(shell.dtype))
    state.compute_dtype = shell.dtype


@cache
def keep_out_of_graphs() -> None:
    """Make what layers ask a streamer a break in compiled graphs, which must ask every time and never trace it with
    empty tensors. Call this before anything is compiled, and not before: it imports PyTorch's compiler, a second of
    every start."""
    for name in ("__call__", "parts"):
        setattr(Streamer, name, torch.compiler.disable(getattr(Streamer, name)))  # type: ignore[no-untyped-call]
