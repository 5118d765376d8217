"""Which layer of a loaded model an adapter file means: the names of all trainers, made from the model itself; and
whether an adapter fits these layers, for which nothing is computed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.block_weights import block_of
from modules.errors import InvalidValueError
from modules.memory.changes import LayerChange
from modules.memory.layer import shape_of
from modules.models.names.fused import original_name
from modules.models.names.row_map import Rows
from modules.system.texts import page_text

TEXT_ENCODER = "text_encoder"
DENOISER = "model.diffusion_model."
"""Before the names of a denoiser in a whole checkpoint, which may hold an adapter of its text tokens too."""
ORIGINAL_LEVEL = re.compile(r"^(model\.)?diffusion_model\.|^transformer\.(?=(double|single)_blocks\.)")
THIRD_ENCODER, THIRD_PATH = "lora_te3", "encoder.block."
"""What trainers call the third text encoder even where it is the second, and what its layers begin with."""
BLOCK = re.compile(r"(?<!adapter[._])(?<![a-z])(blocks[._])(\d+)(?=[._])")
"""The number of a block of the denoiser in a layer's name."""
STARTS = re.compile(r"^(oft|lycoris)_(?=unet_|transformer_(?!blocks_)|te[123]?_)")


@dataclass(frozen=True)
class Target:
    """A layer: the component it is in, its path there, and itself."""

    component: str
    path: str
    layer: nn.Module
    block: str = ""  # of the UNet ("IN04"), for weights by block

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
        grown: Mapping[int, tuple[int, ...]] = {},
    ) -> None:
        """`components`: the module of "unet", "text_encoder" ..., and the original name of one of its parameters.
        `switched_off`: the beginnings of names of a text encoder that the model does without. `grown`: by the number of
        blocks of a denoiser those that were inserted between the blocks of a smaller one."""
        self._names: dict[str, Target] = {}
        self._fused: dict[str, list[Part]] = {}
        self._switched_off = switched_off
        self._kept: list[int] = []
        for component, (module, to_original) in components.items():
            for path, layer in module.named_modules():
                if not layer._parameters:
                    continue
                original = to_original(f"{path}.weight")
                target = Target(component, path, layer, block_of(original))
                for name in _names(component, path, original.removesuffix(".weight") if original else None):
                    self._names.setdefault(name, target)
                if original is not None:
                    self._note_fused(component, target, original)

        count = _blocks(self._names) if grown else 0
        if inserted := grown.get(count):
            self._kept = [number for number in range(count) if number not in inserted]

    def in_place(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names of layers in this model by those in a file. They differ where the model has blocks inserted,
        and the file was made for one without them."""
        known = list(names)
        if not self._kept or _blocks(known) > len(self._kept):
            return {name: name for name in known}
        return {name: BLOCK.sub(lambda match: f"{match[1]}{self._kept[int(match[2])]}", name) for name in known}

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


def _blocks(names: Iterable[str]) -> int:
    """Return how many blocks the layers of a denoiser are in."""
    return max((int(match[2]) + 1 for name in names if (match := BLOCK.search(name))), default=0)


def _names(component: str, path: str, original: str | None) -> Iterator[str]:
    """List what trainers call a layer: kohya's names after diffusers' and after the original layout, and dotted
    ones."""
    if component == "unet":
        yield _kohya("lora_unet", path)
        yield _kohya("lora_transformer", path)
        yield f"unet.{path}"
        yield f"transformer.{path}"
        yield path
        if original is not None:
            yield from _original_names(component, original)
        return
    number = component.removeprefix(TEXT_ENCODER).removeprefix("_")
    prefixes = (f"lora_te{number}",) if number else ("lora_te", "lora_te1")
    for prefix in (*prefixes, THIRD_ENCODER) if path.startswith(THIRD_PATH) else prefixes:
        yield _kohya(f"{prefix}_text_model", path)
        yield _kohya(prefix, path)
    yield f"{component}.text_model.{path}"
    yield f"{component}.{path}"
    if original is not None:
        yield from _original_names("unet" if original.startswith(DENOISER) else component, original)


def _original_names(component: str, original: str) -> Iterator[str]:
    """Names after the original layout."""
    if component == "unet":
        short = original.removeprefix(DENOISER)
        yield _kohya("lora_unet", short)
        yield short
    yield original


def _kohya(prefix: str, path: str) -> str:
    return f"{prefix}_{path.replace('.', '_')}"


def _normalised(name: str) -> str:
    """Other spellings: `oft_unet_` (kohya's OFT), `lycoris_` (LyCORIS around diffusers' names),
    `processor.to_q_lora` (diffusers before PEFT), `to.q`, `base_model.model.` (PEFT's own files), `diffusion_model.`
    and `transformer.` before names of the original layout."""
    name = STARTS.sub("lora_", name)
    name = re.sub(r"^lycoris_", "lora_unet_", name)
    name = re.sub(r"^base_model\.model\.", "", name)
    name = ORIGINAL_LEVEL.sub("", name)
    name = re.sub(r"\.processor\.(to_[qkv])_lora$", r".\1", name)
    name = re.sub(r"\.to\.([qkv])$", r".to_\1", name)
    return re.sub(r"\.processor\.to_out_lora$", ".to_out.0", name)


MAX_MISSING = 0.1  # of its layers
LISTED = 8


def check_shapes(adapter: str, target: Target, change: LayerChange) -> None:
    """Raises `AdapterError` for a change of another shape than the layer's, or factors that do not fit each other."""
    shape = shape_of(target.layer, "weight")
    if shape is None:
        raise AdapterError(f"{adapter}: {target.path} has no weight to change. {_CHOOSE}")
    if _plainly_fits(change, shape):
        return
    try:
        delta = change.weight_delta(torch.empty(shape, device="meta"))
        fits = delta is None or delta.shape == shape
        bias = change.bias_delta(None)
        fits = fits and (bias is None or bias.numel() == shape[0])
    except (RuntimeError, IndexError, ValueError, InvalidValueError):  # what PyTorch raises for shapes, and our own
        fits = False
    if not fits:
        raise AdapterError(
            f"{adapter}: its change to {target.path} does not fit the layer's {list(shape)}, or is damaged. {_CHOOSE}"
        )


def _plainly_fits(change: LayerChange, shape: torch.Size) -> bool:
    """The usual case, without running through the change: two factors of just the layer's shape."""
    branch = change.branch()
    if branch is None or branch.mid is not None or branch.up.ndim < 2 or branch.down.ndim < 2:
        return False
    rank = branch.down.shape[0]
    is_up = branch.up.shape[:2] == (shape[0], rank) and branch.up.numel() == shape[0] * rank
    return is_up and branch.down.shape[1:] == shape[1:]


def check_missing(adapter: str, count: int, missing: int, names: Sequence[str]) -> None:
    """Raises `AdapterError` where so many of an adapter's `count` layers are `missing` that it is for another family.

    A few may be: trainers reach some layers that other programs do not have. `names` are those to tell.
    """
    if missing > MAX_MISSING * count or (count and len(names) == count):
        raise AdapterError(
            f"{adapter} was made for another kind of model: {len(names)} of its {count} layers are not in this one "
            f"({_some(names)}). Choose a checkpoint of the kind it was trained on."
        )


def left_out(adapter: str, names: Sequence[str]) -> str:
    """The sentence about layers that are not in the model."""
    return page_text(f"{adapter}: {len(names)} of its layers are not in this model and were left out: {_some(names)}.")


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED} more"


_CHOOSE = "It was made for another kind of model; choose a checkpoint of that kind."
