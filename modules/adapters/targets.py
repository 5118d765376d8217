"""Which layer of a loaded model an adapter file means: the names of all trainers, made from the model itself."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from modules.models.layouts.open_clip_layout import original_name
from modules.models.layouts.row_map import Rows

TEXT_ENCODER = "text_encoder"
STARTS = re.compile(r"^(oft|lycoris)_(?=unet_|transformer_|te[123]?_)")


@dataclass(frozen=True)
class Target:
    """A layer: the component it is in, its path there, and itself."""

    component: str
    path: str
    layer: nn.Module

    @property
    def is_text(self) -> bool:
        """Whether the text encoder's strength applies."""
        return self.component.startswith("text_encoder")


@dataclass(frozen=True)
class Part:
    """A layer that is `rows` of a fused one of the original layout, in this order."""

    target: Target
    rows: Rows


class TargetTable:
    """All names of all layers with weights. Built once for a model."""

    def __init__(
        self,
        components: Mapping[str, tuple[nn.Module, Callable[[str], str | None]]],
        switched_off: tuple[str, ...] = (),
    ) -> None:
        """`components`: the module of "unet", "text_encoder" ..., and the original name of one of its parameters.
        `switched_off`: the beginnings of names of a text encoder that the model does without."""
        self._names: dict[str, Target] = {}
        self._fused: dict[str, list[Part]] = {}
        self._switched_off = switched_off
        for component, (module, to_original) in components.items():
            for path, layer in module.named_modules():
                if not layer._parameters:
                    continue
                target = Target(component, path, layer)
                original = to_original(f"{path}.weight")
                for name in _names(component, path, original.removesuffix(".weight") if original else None):
                    self._names.setdefault(name, target)
                if original is not None:
                    self._note_fused(component, target, original)

    def _note_fused(self, component: str, target: Target, original: str) -> None:
        origin = original_name(original)
        if not origin.key.endswith(".weight"):
            return
        rows = origin.rows
        if origin.part is not None and isinstance(target.layer, nn.Linear):
            height = target.layer.out_features
            rows = ((origin.part * height, (origin.part + 1) * height),)
        if rows is None:
            return
        for name in _original_names(component, origin.key.removesuffix(".weight")):
            self._names.pop(name, None)
            self._fused.setdefault(name, []).append(Part(target, rows))

    def parts(self, name: str) -> list[Part]:
        """The layers that a file's name means together, where the original layout has them in one tensor."""
        return self._fused.get(name) or self._fused.get(_normalised(name)) or []

    def find(self, name: str) -> Target | None:
        """The layer that a file's name means."""
        return self._names.get(name) or self._names.get(_normalised(name))

    def is_switched_off(self, name: str) -> bool:
        """Whether a name means a text encoder that such models can do without, and this one does."""
        return name.startswith(self._switched_off)

    def __len__(self) -> int:
        return len(self._names)


def _names(component: str, path: str, original: str | None) -> Iterator[str]:
    """What trainers call a layer: kohya's names after diffusers' and after the original layout, and dotted ones."""
    if component == "unet":
        yield _kohya("lora_unet", path)
        yield _kohya("lora_transformer", path)
        yield f"unet.{path}"
        yield f"transformer.{path}"
        if original is not None:
            yield from _original_names(component, original)
        return
    number = component.removeprefix(TEXT_ENCODER).removeprefix("_")
    for prefix in (f"lora_te{number}",) if number else ("lora_te", "lora_te1"):
        yield _kohya(f"{prefix}_text_model", path)
        yield _kohya(prefix, path)
    yield f"{component}.text_model.{path}"
    yield f"{component}.{path}"
    if original is not None:
        yield original


def _original_names(component: str, original: str) -> Iterator[str]:
    """Names after the original layout."""
    if component == "unet":
        short = original.removeprefix("model.diffusion_model.")
        yield _kohya("lora_unet", short)
        yield short
    yield original


def _kohya(prefix: str, path: str) -> str:
    return f"{prefix}_{path.replace('.', '_')}"


def _normalised(name: str) -> str:
    """Other spellings: `oft_unet_` (kohya's OFT), `lycoris_` (LyCORIS around diffusers' names),
    `processor.to_q_lora` (diffusers before PEFT), `base_model.model.` (PEFT's own files)."""
    name = STARTS.sub("lora_", name)
    name = re.sub(r"^lycoris_", "lora_unet_", name)
    name = re.sub(r"^base_model\.model\.", "", name)
    name = re.sub(r"\.processor\.(to_[qkv])_lora$", r".\1", name)
    return re.sub(r"\.processor\.to_out_lora$", ".to_out.0", name)
