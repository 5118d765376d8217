"""A model known by its file's header alone: the networks without weights, and what the weights would take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import nn

from modules.memory.streaming.groups import Level
from modules.models.architecture import LdmArchitecture
from modules.models.catalogue import CheckpointInfo
from modules.models.families.family import Component, ModelFamily
from modules.models.filling import SMALLEST_TABLE_BYTES
from modules.models.loading import architecture_of, detect_family
from modules.models.open_clip_layout import open_checkpoint
from modules.models.precision import PrecisionPlan
from modules.models.tensor_file import TensorEntry

SCALE_BYTES = 4


@dataclass(frozen=True)
class ModelSketch:
    """The networks of a checkpoint on the meta device, and the file's tensors by their names there."""

    info: CheckpointInfo
    family: ModelFamily
    architecture: LdmArchitecture
    components: tuple[Component, ...]
    entries: Mapping[str, TensorEntry]
    has_offsets: bool
    _known: dict[PrecisionPlan, dict[str, dict[str, int]]] = field(default_factory=dict, repr=False, compare=False)

    def module(self, component: str) -> nn.Module:
        """The network of that name."""
        return next(item.module for item in self.components if item.name == component)

    @property
    def downscale(self) -> int:
        """Pixels a latent stands for, along one side."""
        return 1 << (self.architecture.vae.levels - 1)

    @cached_property
    def largest_tensor_bytes(self) -> int:
        """Bytes of the largest tensor in the file: what loading holds besides the model."""
        return max((entry.size_bytes for entry in self.entries.values()), default=0)

    def weights(self, plan: PrecisionPlan) -> dict[str, dict[str, int]]:
        """Bytes of every parameter and buffer as it will be stored, by component and name."""
        if plan not in self._known:
            self._known[plan] = {item.name: self._weights_of(item, plan) for item in self.components}
        return self._known[plan]

    def _weights_of(self, component: Component, plan: PrecisionPlan) -> dict[str, int]:
        rules = component.rules(plan.rules(component.name))
        streams_from_disk = plan.streaming is not None and plan.streaming.on_disk
        tables_stay = component.name != "vae" and self.has_offsets and (rules is not None or streams_from_disk)
        rest = plan.vae_dtype if component.name == "vae" else plan.rest_dtype
        found = {}
        for key, tensor in component.module.state_dict().items():
            path, _, name = key.rpartition(".")
            layer = component.module.get_submodule(path)
            shape = tuple(tensor.shape)
            original = component.keymap.to_original(key)
            entry = self.entries.get(original) if original else None
            if tables_stay and isinstance(layer, nn.Embedding) and entry and entry.size_bytes >= SMALLEST_TABLE_BYTES:
                continue
            storage = rules.format_of(path, layer, name, shape) if rules is not None else None
            if storage is not None:
                found[key] = tensor.numel() * storage.dtype.itemsize
                found[key] += SCALE_BYTES * shape[0] if storage.scaled and len(shape) > 1 else 0
            elif entry is not None and entry.dtype.itemsize == 1 and component.name != "vae":
                found[key] = tensor.numel()  # what is in 8 bits in the file stays so
            else:
                found[key] = tensor.numel() * (rest.itemsize if tensor.is_floating_point() else tensor.element_size())
        return found

    def resident_bytes(self, plan: PrecisionPlan, stage: str) -> int:
        """Bytes of weights on the device in a stage ("text", "denoise", "decode" ...); less than all where weights
        are streamed: the networks at work, or twice (the next is on its way) their largest block or layer."""
        weights = self.weights(plan)
        if plan.streaming is None:
            return sum(sum(sizes.values()) for sizes in weights.values())
        total = plan.streaming.kept_bytes
        for name, sizes in weights.items():
            if not _works(stage, name):
                continue
            level = plan.streaming.level_of(name)
            groups: dict[str, int] = {}
            for key, size in sizes.items():
                group = _group_of(key, level)
                groups[group] = groups.get(group, 0) + size
            largest = max(groups.values(), default=0)
            total += min(sum(sizes.values()), largest if level is Level.COMPONENT else 2 * largest)
        return total

    def scratch_bytes(self, plan: PrecisionPlan, component: str) -> int:
        """The largest weight of a component decoded to the compute dtype; 0 where none is stored in 8 bits."""
        rules = plan.rules(component)
        if rules is None:
            return 0
        sizes = (tensor.numel() for tensor in self.module(component).state_dict().values() if tensor.ndim > 1)
        return max(sizes, default=0) * plan.compute_dtype.itemsize


def sketch_model(
    info: CheckpointInfo, configs_dir: Path, default_yaml: Path | None = None, with_t5: bool = False
) -> ModelSketch:
    """Read a checkpoint's header, SD3's T5 only if it is asked for. Raises `CheckpointError` as loading does, but for
    what only the data would show."""
    with open_checkpoint(info.path, with_t5) as file:
        family = detect_family(file)
        architecture = architecture_of(file, info, family, configs_dir, default_yaml)
        folders = (info.path.parent, info.path.parent.parent, configs_dir.parent)
        components = tuple(family.components(file.entries, architecture, folders))
        return ModelSketch(info, family, architecture, components, dict(file.entries), file.has_offsets)


def _works(stage: str, component: str) -> bool:
    """Whether a network computes in a stage; all do while networks are put on and the model loads."""
    if stage in ("networks", "load"):
        return True
    if stage == "text":
        return component.startswith("text_encoder")
    return component == ("unet" if stage.startswith("denoise") else "vae")


def _group_of(key: str, level: Level) -> str:
    if level is Level.COMPONENT:
        return ""
    path = key.rpartition(".")[0]
    return path if level is Level.LAYER else ".".join(path.split(".")[:2])
