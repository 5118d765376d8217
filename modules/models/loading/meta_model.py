"""A model known by its file's header alone: the components without weights, and what the weights would take."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.memory.block_decoding import NARROW, decoded_peak_bytes, is_on_cuda
from modules.memory.formats.blocks import UNPACKING_BYTES, decoded_at_once, is_packed
from modules.memory.formats.code4 import ENCODED_AT_ONCE_ON_GPU
from modules.memory.formats.format import FORMATS, LARGE_SLICE_ELEMENTS
from modules.memory.streaming.groups import MAX_BLOCK_BYTES, Level, make_groups, most_at_once, room_ahead
from modules.memory.streaming.offload_storage import SMALL_BYTES
from modules.memory.streaming.source import RamSource, Source
from modules.models.families.architecture import LdmArchitecture
from modules.models.families.family import ModelFamily
from modules.models.families.registry import detect_family
from modules.models.files.catalogue import CheckpointInfo
from modules.models.files.eight_bits import scale_key_of
from modules.models.files.tensor_file import TensorEntry
from modules.models.loading.load_model import architecture_of
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from modules.models.names.component import Component
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.placing import Layer, Way, placed

BLOCK_SEARCH_BYTES = 42  # per element, as measured
MIN_BLOCKS = 2
"""Of equal blocks one after the other so many tell what all take: the second works while the first output is there."""


@dataclass(frozen=True)
class MetaModel:
    """The components of a checkpoint on the meta device, and the file's tensors by their names there."""

    info: CheckpointInfo
    family: ModelFamily
    architecture: LdmArchitecture
    components: tuple[Component, ...]
    entries: Mapping[str, TensorEntry]
    has_offsets: bool
    _known: dict[PrecisionPlan, dict[str, dict[str, int]]] = field(default_factory=dict, repr=False, compare=False)
    _tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    _cut: dict[tuple[PrecisionPlan, str], tuple[int, list[int], int]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def module(self, component: str) -> nn.Module:
        """The component of that name."""
        return next(item.module for item in self.components if item.name == component)

    @cached_property
    def tower(self) -> MetaModel | None:
        """The vision tower as a model of its own, of a text encoder; None where the files hold none."""
        if self.family.texts.tower is None:
            return None
        try:
            found = self.family.texts.tower(self.entries)
        except CheckpointError:
            return None
        component = replace(found, name="text_encoder")  # as which it is stored and streamed
        return replace(self, components=(component,), _known={}, _tensors={}, _cut={})

    @property
    def downscale(self) -> int:
        """Pixels a latent stands for, along one side."""
        return self.architecture.autoencoder.downscale

    @property
    def size_multiple_px(self) -> int:
        """Pixels that the sides of its images are multiples of."""
        return self.downscale * self.family.latents.multiple

    @cached_property
    def max_tensor_bytes(self) -> int:
        """Bytes of the largest tensor in the file."""
        return max((entry.size_bytes for entry in self.entries.values()), default=0)

    def loading_bytes(self, plan: PrecisionPlan) -> int:
        """Return what loading takes at most on the device besides the weights that are there after it. On the CPU,
        where several are read ahead, the largest tensor. On a GPU a tensor comes as the file has it and is converted or
        encoded there; of weights that stay, those that come later are not there yet, in the file's order."""
        if plan.device.type == "cpu":
            return self.max_tensor_bytes
        in_file = {}
        for component in self.components:
            tensors, rest = (
                self._tensors_of(component),
                plan.vae_dtype if component.name == "vae" else plan.offload_dtype,
            )
            for key, size in self.weights(plan)[component.name].items():
                original = component.keymap.to_original(key)
                if original is not None:
                    in_file[original] = (size, tensors[key].numel(), rest)
        smallest_moved = SMALL_BYTES if plan.streaming else math.inf
        placed = peak = 0
        for name, entry in self.entries.items():
            if name in in_file:
                size, count, dtype = in_file[name]
                is_kept = entry.dtype in (dtype, torch.uint8) or not entry.dtype.is_floating_point
                beside = 0 if size == entry.size_bytes and is_kept else entry.size_bytes
                if size < min(entry.size_bytes, 2 * count):
                    beside += _encoding_bytes(count, 8 * size / count)
                peak = max(peak, placed + size + beside)
                placed += size if size < smallest_moved else 0
        found = self.weights(plan).values()
        return max(0, peak - sum(size for sizes in found for size in sizes.values() if size < smallest_moved))

    def weights(self, plan: PrecisionPlan) -> dict[str, dict[str, int]]:
        """Bytes of every parameter and buffer as it will be stored, by component and name."""
        if plan not in self._known:
            found = {item.name: self._weights_of(item, plan) for item in self.components}
            self._known[plan] = found if plan.budget_bytes is None else _scaled(found, plan.budget_bytes)
        return self._known[plan]

    def _weights_of(self, component: Component, plan: PrecisionPlan) -> dict[str, int]:
        rules = plan.placing(component, self.has_offsets)
        if plan.budget_bytes is not None:  # in 16 bits, and then `_scaled`
            rules = replace(rules, storage=None)
        found = {}
        for key, tensor in self._tensors_of(component).items():
            path, _, name = key.rpartition(".")
            original = component.keymap.to_original(key) or ""
            entry = self.entries.get(original) or TensorEntry(tensor.dtype, tuple(tensor.shape), 0, 0)
            scale = self.entries.get(scale_key_of(self.entries, original) or "")
            layer = Layer(component.name, component.module.get_submodule(path), path, name, tuple(tensor.shape), scale)
            becomes = placed(entry, layer, rules)
            if becomes.way is not Way.IN_FILE:
                found[key] = becomes.size_bytes
        return found

    def resident_bytes(self, plan: PrecisionPlan, computes: Callable[[str], bool]) -> int:
        """Bytes of weights on the device while the components compute of which `computes` says so; less than all where
        weights are streamed: what is too small for it, and of the components at work, one after the other, the largest
        as a whole, or a block or layer with the next ones, which are in transfer."""
        weights = self.weights(plan)
        everything = sum(sum(sizes.values()) for sizes in weights.values())
        if plan.streaming is None:
            return everything
        total, at_work = plan.streaming.kept_bytes, 0
        for name in weights:
            stays, groups, room = self._groups(plan, plan.streaming, name)
            total += stays
            if computes(name):
                at_work = max(at_work, most_at_once(groups, room))
        return min(total + at_work, everything)

    def resting_bytes(self, plan: PrecisionPlan) -> int:
        """Bytes of weights in main memory that wait there for the device: of streamed ones, unless they rest on
        disk."""
        if plan.streaming is None or plan.streaming.on_disk:
            return 0
        return sum(sum(self._groups(plan, plan.streaming, name)[1]) for name in self.weights(plan))

    def moved_bytes(self, plan: PrecisionPlan, name: str) -> int:
        """Bytes of a component's weights that come to the device again for each of its calls."""
        if plan.streaming is None or plan.streaming.level_of(name) is Level.COMPONENT:
            return 0
        return sum(self._groups(plan, plan.streaming, name)[1])

    def decoded_bytes(self, plan: PrecisionPlan, name: str) -> int:
        """Bytes that are read and written, of a component's weights, to decode them to the compute dtype for a call."""
        tensors = self._tensors_of(next(item for item in self.components if item.name == name))
        whole = {key: tensor.numel() * plan.compute_dtype.itemsize for key, tensor in tensors.items()}
        return sum(size + whole[key] for key, size in self.weights(plan)[name].items() if size < whole[key])

    def _groups(self, plan: PrecisionPlan, streaming: StreamLayout, name: str) -> tuple[int, list[int], int]:
        """Return the bytes of a streamed component that stay on the device, those of each group that moves, and those
        that may come ahead of their use."""
        if (plan, name) not in self._cut:
            component = next(item for item in self.components if item.name == name)
            module, sources, stays = component.module, dict[tuple[int, str], Source](), 0
            rest = plan.vae_dtype if name == "vae" else plan.offload_dtype
            for key, size in self.weights(plan)[name].items():
                path, _, own = key.rpartition(".")
                layer = module.get_submodule(path)
                parameter = layer._parameters.get(own)
                if parameter is not None and size >= SMALL_BYTES:
                    if streaming.on_disk and size == parameter.numel() * rest.itemsize:
                        size = self._bytes_in_file(component, key) or size  # read in place, and converted on its way
                    sources[id(layer), own] = RamSource(torch.empty(size, dtype=torch.uint8, device="meta"))
                else:
                    stays += size
            levels = {name: streaming.level_of(name)}
            groups = make_groups({name: module}, sources, levels, max_block_bytes=MAX_BLOCK_BYTES)
            self._cut[plan, name] = (stays, [group.size_bytes for group in groups], room_ahead(groups).get(name, 0))
        return self._cut[plan, name]

    def _bytes_in_file(self, component: Component, key: str) -> int:
        """Return the bytes of a weight in 16 or 32 bits that can be read from its place in the file; else 0."""
        original = component.keymap.to_original(key)
        entry = self.entries.get(original) if original and self.has_offsets else None
        plain = entry is not None and entry.has_offset and entry.dtype.is_floating_point and entry.dtype.itemsize > 1
        return entry.size_bytes if entry is not None and plain else 0

    def _is_narrower_in_file(self, plan: PrecisionPlan) -> bool:
        """Whether weights that are read in place come in fewer bits than they are computed with."""
        if plan.streaming is None or not plan.streaming.on_disk or not self.has_offsets:
            return False
        return any(1 < entry.dtype.itemsize < plan.compute_dtype.itemsize for entry in self.entries.values())

    def scratch_bytes(self, plan: PrecisionPlan, component: str, by_blocks: bool = True) -> int:
        """The largest weight of a component decoded to the compute dtype, and what is on the way to it; 0 where none
        needs it. Rows of an embedding table are decoded one by one. `by_blocks`: with the smaller weights of its block,
        where those are decoded together (see `modules.memory.block_decoding`), as they are not while training."""
        item = next(item for item in self.components if item.name == component)
        is_packed = self._is_packed(item, plan)
        rules = plan.rules(component)
        if rules is None and not self._is_narrower_in_file(plan) and not is_packed:
            return 0
        if by_blocks and rules is not None and not is_packed and _decodes_blocks(plan, rules.storage):
            known = self.family.denoiser.blocks.decoded if component == "unet" else ()
            return decoded_peak_bytes(item.module, plan.compute_dtype, known)
        tables = {f"{name}.weight" for name, layer in item.module.named_modules() if isinstance(layer, nn.Embedding)}
        largest = max(
            (each.numel() for key, each in self._tensors_of(item).items() if each.ndim > 1 and key not in tables),
            default=0,
        )
        by_table = is_packed or not plan.float8
        beside = UNPACKING_BYTES * min(largest, decoded_at_once(plan.device)) if by_table else 0
        return largest * plan.compute_dtype.itemsize + beside

    def _is_packed(self, component: Component, plan: PrecisionPlan) -> bool:
        """Whether weights of a component are in blocks, in the file or by the plan."""
        rules = component.rules(plan.rules(component.name))
        if rules is not None and is_packed(FORMATS.get(rules.storage)):
            return True
        return any(
            entry.packed is not None and key.startswith(component.prefixes) for key, entry in self.entries.items()
        )

    def _tensors_of(self, component: Component) -> dict[str, Tensor]:
        """Its parameters and buffers as they were first: estimates give them other dtypes, but no other shape."""
        if component.name not in self._tensors:
            self._tensors[component.name] = component.module.state_dict()
        return self._tensors[component.name]


def _decodes_blocks(plan: PrecisionPlan, storage: str) -> bool:
    """Whether weights in this format are decoded by blocks."""
    is_resident = plan.streaming is None and plan.mode is not ComputeMode.INT8_MATMUL
    return is_resident and is_on_cuda(plan.device) and FORMATS.get(storage).dtype in NARROW


def _encoding_bytes(count: int, bits: float) -> int:
    """Return what encoding a weight on a GPU takes besides the weight: a slice of it in float32, or, for formats that
    choose codebooks for each block, what each of those would give."""
    return BLOCK_SEARCH_BYTES * min(count, ENCODED_AT_ONCE_ON_GPU) if bits < 8 else 4 * min(count, LARGE_SLICE_ELEMENTS)


def _scaled(weights: dict[str, dict[str, int]], most: int) -> dict[str, dict[str, int]]:
    """Sizes that are at most so many bytes together: which layers get smaller is only known when they are read."""
    share = min(1.0, most / max(1, sum(sum(sizes.values()) for sizes in weights.values())))
    return {part: {key: int(size * share) for key, size in sizes.items()} for part, sizes in weights.items()}


def build_meta_model(
    info: CheckpointInfo,
    configs_dir: Path,
    default_yaml: Path | None = None,
    optional: Collection[str] = (),
) -> MetaModel:
    """Read a checkpoint's header; a text encoder that its family can do without only where its setting is among
    `optional`. Raises `CheckpointError` as loading does, but for what only the data would show."""

    def wants_optional(family: ModelFamily) -> bool:
        return family.texts.optional is not None and family.texts.optional.setting in optional

    with open_checkpoint(info.path, wants_optional, modules=info.modules) as file:
        family = detect_family(file)
        architecture = architecture_of(file, info, family, configs_dir, default_yaml)
        folders = (info.path.parent, info.path.parent.parent, configs_dir.parent)
        components = tuple(family.components(file.entries, architecture, folders))
        return MetaModel(info, family, architecture, components, dict(file.entries), file.has_offsets)


@contextmanager
def few_blocks(unet: nn.Module, stacked: str) -> Iterator[None]:
    """While open, each module of the class `stacked` has `MIN_BLOCKS` of its equal blocks: the largest UNet then runs
    22 for 70, with the same peak of memory."""
    whole: list[tuple[Any, nn.ModuleList]] = []
    for module in unet.modules():
        blocks = getattr(module, "transformer_blocks", None)
        if type(module).__name__ == stacked and isinstance(blocks, nn.ModuleList):
            whole.append((module, blocks))
    try:
        for module, blocks in whole:
            module.transformer_blocks = blocks[:MIN_BLOCKS]
        yield
    finally:
        for module, blocks in whole:
            module.transformer_blocks = blocks
