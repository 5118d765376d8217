"""Control networks as modules: ControlNets in both layouts, Control-LoRAs over the model's own layers, T2I-adapters."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.files import Kind, kind_of
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.names.ldm_unet import UNetLayout, unet_keymap

HINT_CHANNELS = (16, 32, 96, 256)
HINT_CONVOLUTIONS = {0: "conv_in", **{2 * place: f"blocks.{place - 1}" for place in range(1, 7)}, 14: "conv_out"}
NOT_FITTING = "it was made for another family of models. Choose one for {family}."


@dataclass(eq=False)
class SharedWeights:
    """How a Control-LoRA uses the model's own layers: `around(layer)` is open while one is called."""

    around: Callable[[nn.Module], AbstractContextManager[None]] = field(default=lambda _: nullcontext())


@dataclass(frozen=True)
class NetFacts:
    """`kind` of the file; `is_averaged`: the outputs are averaged over the image and only for prompts; `shared` is of a
    Control-LoRA."""

    kind: Kind
    is_averaged: bool = False
    shared: SharedWeights | None = None


class OwnNames(KeyMap):
    """Tensors that a file names as our module does, but for a beginning and some words."""

    def __init__(self, prefix: str = "", words: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(())
        self._prefix, self._words = prefix, words

    def to_ours(self, key: str) -> str | None:
        if not key.startswith(self._prefix):
            return None
        found = key.removeprefix(self._prefix)
        for theirs, ours in self._words:
            found = found.replace(theirs, ours)
        return found

    def to_original(self, key: str) -> str | None:
        for theirs, ours in self._words:
            key = key.replace(ours, theirs)
        return self._prefix + key


class _Joined(KeyMap):
    """Two maps; the first counts where it knows a name."""

    def __init__(self, first: KeyMap, second: KeyMap) -> None:
        super().__init__(())
        self._maps = (first, second)

    def to_ours(self, key: str) -> str | None:
        return next((found for each in self._maps if (found := each.to_ours(key)) is not None), None)

    def to_original(self, key: str) -> str | None:
        return next((found for each in self._maps if (found := each.to_original(key)) is not None), None)


def build_net(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder` of every kind of network whose outputs are added to the denoiser's features."""
    kind = kind_of(file.entries, file.path)
    if kind is Kind.T2I:
        return _t2i(file, model)
    if not kind.is_net:
        raise CheckpointError(f"{file.path.name} is {kind.value}, which is no network of this kind.")
    if kind is Kind.UNION:
        return _union(file, model)
    _check_family(file, model)
    shared = SharedWeights() if kind is Kind.LORA else None
    facts = NetFacts(kind, "shuffle" in file.path.stem.lower(), shared)
    with on_meta():
        net = controlnet_for(model.unet)
    if kind is Kind.DIFFUSERS:
        own = OwnNames("", (("add_embedding.", "class_embedding."),))
        return AuxiliaryParts(Component("control", net, own, ("",), ""), facts=facts)
    prefix = next((key.partition("input_hint_block")[0] for key in file.entries if "input_hint_block" in key), "")
    names = original_names(model, prefix.rstrip("."))
    if shared is not None:
        share_layers(net, model.unet, file, names, shared)
        return AuxiliaryParts(
            Component("control", net, names, (prefix,), ""), lambda key: key == "lora_controlnet", facts
        )

    def belongs_elsewhere(key: str) -> bool:
        return not key.startswith(prefix)

    return AuxiliaryParts(Component("control", net, names, (prefix,), ""), belongs_elsewhere, facts)


def controlnet_for(unet: Any) -> Any:
    """An empty ControlNet of the sizes of a UNet."""
    from diffusers import ControlNetModel

    config = unet.config
    return ControlNetModel(
        in_channels=4,
        down_block_types=config.down_block_types,
        mid_block_type=config.mid_block_type,
        block_out_channels=config.block_out_channels,
        layers_per_block=config.layers_per_block,
        cross_attention_dim=config.cross_attention_dim,
        attention_head_dim=config.attention_head_dim,
        transformer_layers_per_block=config.transformer_layers_per_block,
        use_linear_projection=config.use_linear_projection,
        class_embed_type=config.class_embed_type,
        projection_class_embeddings_input_dim=config.projection_class_embeddings_input_dim,
        norm_num_groups=config.norm_num_groups,
        conditioning_embedding_out_channels=HINT_CHANNELS,
    )


def original_names(model: Any, prefix: str) -> KeyMap:
    """How the original layout names a ControlNet's tensors."""
    sizes = model.architecture.unet_sizes
    layout = UNetLayout(sizes.levels, sizes.blocks_per_level, frozenset(sizes.attention_levels), sizes.middle_depth > 0)
    dot = f"{prefix}." if prefix else ""
    outputs = 1 + sizes.levels * sizes.blocks_per_level + sizes.levels - 1
    own = [ModulePair(f"{dot}zero_convs.{place}.0", f"controlnet_down_blocks.{place}") for place in range(outputs)]
    own.append(ModulePair(f"{dot}middle_block_out.0", "controlnet_mid_block"))
    own += [
        ModulePair(f"{dot}input_hint_block.{place}", f"controlnet_cond_embedding.{ours}")
        for place, ours in HINT_CONVOLUTIONS.items()
    ]
    base = unet_keymap(layout, prefix or "~")
    return _Joined(KeyMap(own), base if prefix else _Unprefixed(base))


class _Unprefixed(KeyMap):
    """A map whose prefix `~` files do not have."""

    def __init__(self, inner: KeyMap) -> None:
        super().__init__(())
        self._inner = inner

    def to_ours(self, key: str) -> str | None:
        return self._inner.to_ours(f"~.{key}")

    def to_original(self, key: str) -> str | None:
        found = self._inner.to_original(key)
        return None if found is None else found.removeprefix("~.")


def _check_family(file: TensorSource, model: Any) -> None:
    """Raise `CheckpointError` for a network of other sizes than the model's."""
    config = model.unet.config
    for key, entry in file.entries.items():
        is_first = key.endswith(("input_blocks.0.0.bias", "conv_in.bias")) and "cond_embedding" not in key
        is_wrong = is_first and entry.shape != (config.block_out_channels[0],)
        is_wrong |= key.endswith("attn2.to_k.weight") and entry.shape[-1] != config.cross_attention_dim
        if is_wrong:
            raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")


class SharedLayer(nn.Module):
    """A layer of the model's own with a change of low rank and a bias of its own. Its weights are the model's: with
    their storage, their streaming, and the adapters that are on them."""

    def __init__(
        self, base: nn.Module, up: tuple[int, ...], down: tuple[int, ...], has_bias: bool, shared: SharedWeights
    ) -> None:
        super().__init__()
        self.shared = shared
        self.up = nn.Parameter(torch.empty(up))
        self.down = nn.Parameter(torch.empty(down))
        self.bias = nn.Parameter(torch.empty(up[0])) if has_bias else None
        self.__dict__["_base"] = weakref.ref(base)
        if isinstance(base, nn.Conv2d):
            self.convolution: dict[str, Any] | None = {"stride": base.stride, "padding": base.padding}
        else:
            self.convolution = None

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        base: Any = self.__dict__["_base"]()
        with self.shared.around(base):
            result: Tensor = base(x)
        if self.convolution is None:
            result = result + F.linear(F.linear(x, self.down.flatten(1)), self.up.flatten(1))
        else:
            up = self.up if self.up.ndim == 4 else self.up[:, :, None, None]
            result = result + F.conv2d(F.conv2d(x, self.down, **self.convolution), up)
        if self.bias is None:
            return result
        bias = self.bias if base.bias is None else self.bias - base.bias
        return result + (bias if self.convolution is None else bias[:, None, None])


def share_layers(net: nn.Module, unet: nn.Module, file: TensorSource, names: KeyMap, shared: SharedWeights) -> None:
    """Put `SharedLayer`s in the place of the layers of which a file has a change of low rank."""
    layers = dict(unet.named_modules())
    for key in list(file.entries):
        if not key.endswith(".up"):
            continue
        path = (names.to_ours(key) or "").removesuffix(".up")
        base = layers.get(path)
        stem = key.removesuffix(".up")
        if base is None or f"{stem}.down" not in file.entries:
            raise CheckpointError(f"{file.path.name}: {key} belongs to no layer of the model. Choose another file.")
        down = file.entries[f"{stem}.down"].shape
        own = SharedLayer(base, file.entries[key].shape, down, f"{stem}.bias" in file.entries, shared)
        parent, _, leaf = path.rpartition(".")
        setattr(net.get_submodule(parent), leaf, own)


def _t2i(file: TensorSource, model: Any) -> AuxiliaryParts:
    """The full adapters of SD1 and SDXL, and light ones, of original and diffusers' names."""
    from diffusers import T2IAdapter

    prefix = "adapter." if any(key.startswith("adapter.") for key in file.entries) else ""
    shapes = {key.removeprefix(prefix): entry.shape for key, entry in file.entries.items()}
    if "conv_in.weight" not in shapes:
        raise CheckpointError(f"{file.path.name}: light T2I-adapters are not supported; choose a full one.")
    is_large = len(model.unet.config.block_out_channels) == 3
    scale = 16 if is_large else 8
    widths = tuple(model.unet.config.block_out_channels)
    channels = (*widths, widths[-1]) if is_large else widths
    if shapes["conv_in.weight"][0] != channels[0] or shapes["conv_in.weight"][1] % scale**2:
        raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
    with on_meta():
        adapter = T2IAdapter(
            in_channels=shapes["conv_in.weight"][1] // scale**2,
            channels=list(channels),
            num_res_blocks=2,
            downscale_factor=scale,
            adapter_type="full_adapter_xl" if is_large else "full_adapter",
        )
    for layer in adapter.modules():
        if isinstance(layer, nn.AvgPool2d):
            layer.ceil_mode = False  # as the adapters were trained
    pairs = [ModulePair(f"{prefix}conv_in", "adapter.conv_in")]
    is_original = "body.0.block1.weight" in shapes
    for level in range(len(channels)):
        first = f"body.{2 * level}.in_conv" if is_original else f"body.{level}.in_conv"
        pairs.append(ModulePair(f"{prefix}{first}", f"adapter.body.{level}.in_conv"))
        for place in range(2):
            for block in ("block1", "block2"):
                theirs = f"body.{2 * level + place}.{block}" if is_original else f"body.{level}.resnets.{place}.{block}"
                ours = f"adapter.body.{level}.resnets.{place}.{block}"
                pairs.append(ModulePair(f"{prefix}{theirs}", ours))
    component = Component("adapter", adapter, KeyMap(pairs), (prefix,), "")
    return AuxiliaryParts(component, facts=NetFacts(Kind.T2I))


def _union(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A network for several kinds of control (ControlNet++, ProMax), in diffusers' names."""
    from diffusers import ControlNetUnionModel

    _check_family(file, model)
    config = model.unet.config
    types = file.entries["task_embedding"].shape[0] if "task_embedding" in file.entries else 6
    with on_meta():
        net = ControlNetUnionModel(
            down_block_types=config.down_block_types,
            block_out_channels=config.block_out_channels,
            layers_per_block=config.layers_per_block,
            cross_attention_dim=config.cross_attention_dim,
            attention_head_dim=config.attention_head_dim,
            transformer_layers_per_block=config.transformer_layers_per_block,
            use_linear_projection=config.use_linear_projection,
            class_embed_type=config.class_embed_type,
            projection_class_embeddings_input_dim=config.projection_class_embeddings_input_dim,
            addition_time_embed_dim=256,
            norm_num_groups=config.norm_num_groups,
            num_control_type=types,
            num_trans_channel=config.block_out_channels[0],
            num_proj_channel=config.block_out_channels[0],
        )
    words = (
        ("control_add_embedding.linear1", "control_add_embedding.linear_1"),
        ("control_add_embedding.linear2", "control_add_embedding.linear_2"),
        ("add_embedding.linear_", "class_embedding.linear_"),
        ("control_class_embedding.", "control_add_embedding."),
        ("attn.in_proj_weight", "attn.in_proj_weight"),
    )
    component = Component("control", net, OwnNames("", words), ("",), "")
    return AuxiliaryParts(component, facts=NetFacts(Kind.UNION))
