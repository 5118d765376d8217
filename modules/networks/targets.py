"""Which layer of a loaded model a network file means: the names of all trainers, made from the model itself."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

TEXT_PREFIXES = {"text_encoder": ("lora_te", "lora_te1"), "text_encoder_2": ("lora_te2",)}
DOTTED_TEXT_PREFIXES = {"text_encoder": "text_encoder", "text_encoder_2": "text_encoder_2"}


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


class TargetTable:
    """All names of all layers with weights. Built once for a model."""

    def __init__(self, components: Mapping[str, tuple[nn.Module, Callable[[str], str | None]]]) -> None:
        """`components`: the module of "unet", "text_encoder" ..., and the original name of one of its parameters."""
        self._names: dict[str, Target] = {}
        for component, (module, to_original) in components.items():
            for path, layer in module.named_modules():
                if not layer._parameters:
                    continue
                target = Target(component, path, layer)
                original = to_original(f"{path}.weight")
                for name in _names(component, path, original.removesuffix(".weight") if original else None):
                    self._names.setdefault(name, target)

    def find(self, name: str) -> Target | None:
        """The layer that a file's name means."""
        return self._names.get(name) or self._names.get(_normalised(name))

    def __len__(self) -> int:
        return len(self._names)


def _names(component: str, path: str, original: str | None) -> Iterator[str]:
    """What trainers call a layer: kohya's names after diffusers' and after the original layout, and dotted ones."""
    if component == "unet":
        yield _kohya("lora_unet", path)
        yield f"unet.{path}"
        if original is not None:
            yield _kohya("lora_unet", original.removeprefix("model.diffusion_model."))
            yield original
            yield original.removeprefix("model.diffusion_model.")
        return
    for prefix in TEXT_PREFIXES.get(component, ()):
        yield _kohya(f"{prefix}_text_model", path)
        yield _kohya(prefix, path)
    dotted = DOTTED_TEXT_PREFIXES.get(component, component)
    yield f"{dotted}.text_model.{path}"
    yield f"{dotted}.{path}"
    if original is not None:
        yield original


def _kohya(prefix: str, path: str) -> str:
    return f"{prefix}_{path.replace('.', '_')}"


def _normalised(name: str) -> str:
    """Old spellings: `processor.to_q_lora` (diffusers before PEFT), `base_model.model.` (PEFT's own files)."""
    name = re.sub(r"^base_model\.model\.", "", name)
    name = re.sub(r"\.processor\.(to_[qkv])_lora$", r".\1", name)
    return re.sub(r"\.processor\.to_out_lora$", ".to_out.0", name)
