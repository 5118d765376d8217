"""Control LoRAs of FLUX.1 (Canny, Depth), of Black Forest Labs: the embedding of latents also sees those of the control
image, every layer gets a change of low rank with a bias, and attention has other norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.flow_family import Hint, tokens_of
from lib_controlnet.flow_nets import FlowControl, check_denoiser, fitted_to_latents
from lib_controlnet.flux_nets import FLUX
from lib_controlnet.nets import NOT_FITTING, NetFacts
from lib_controlnet.running import hint_of, is_on
from modules.errors import CheckpointError
from modules.memory.hook_chain import HookOrder
from modules.models.families.flux1.layout import TABLE
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.row_map import RowMap, Source
from modules.processing.request.model_use import ModelUse

PATCH = 2
EMBEDDER = "x_embedder"
DOWN, UP = ".lora_A.weight", ".lora_B."
NOT_IN_NAMES = "/"  # for the dots of a layer's name, which names of parts cannot have


@dataclass(frozen=True)
class LoraFacts:
    """Layers and norms of ours that a file changes: layers with the name of the part that holds their first factor."""

    downs: Mapping[str, str]
    norms: tuple[str, ...]


def build_flux_lora(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder`. Raises `CheckpointError` for files of other models."""
    changes = {key.replace(UP, "."): entry for key, entry in file.entries.items() if UP in key}
    norms = {key: entry for key, entry in file.entries.items() if key.endswith(".scale")}
    sources, width = dict[str, Source](), model.unet.inner_dim
    factors, scales = {}, {}
    downs: dict[str, str] = {}
    with on_meta():
        for key, entry in file.entries.items():
            if key.endswith(DOWN):
                part = key.removesuffix(DOWN).replace(".", NOT_IN_NAMES)
                factors[part] = nn.Linear(entry.shape[1], entry.shape[0], bias=False)
                sources[f"downs.{part}.weight"] = Source(key)
        ups = nn.ModuleDict()
        for ours, source in TABLE.row_map(changes, "", width).sources.items():
            layer, _, leaf = ours.rpartition(".")
            stem, _, _ = source.key.rpartition(".")
            part = layer.replace(".", NOT_IN_NAMES)
            sources[f"ups.{part}.{leaf}"] = Source(f"{stem}{UP}{leaf}", source.rows)
            if leaf == "weight":
                downs[layer] = stem.replace(".", NOT_IN_NAMES)
                out = _out_features(model.unet, layer, file)
                ups[part] = nn.Linear(changes[source.key].shape[1], out, f"{stem}.bias" in changes)
        for ours, source in TABLE.row_map(norms, "", width).sources.items():
            name = ours.replace(".", NOT_IN_NAMES)
            scales[name] = nn.Parameter(torch.empty(norms[source.key].shape))
            sources[f"norms.{name}"] = source
        net = nn.ModuleDict({"downs": nn.ModuleDict(factors), "ups": ups, "norms": nn.ParameterDict(scales)})
    embedder = factors.get(downs.get(EMBEDDER, ""))
    if embedder is None or embedder.in_features != 2 * model.unet.x_embedder.in_features:
        raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
    rows = RowMap(sources)
    component = Component("control", net, rows.keymap(), ("",), "")
    return AuxiliaryParts(component, facts=LoraFacts(downs, tuple(scales)), rows=rows)


def _out_features(transformer: Any, layer: str, file: TensorSource) -> int:
    try:
        found: int = transformer.get_submodule(layer).out_features
    except AttributeError as error:
        raise CheckpointError(f"{file.path.name}: changes {layer}, which the model does not have.") from error
    return found


def put_flux_lora(each: Any, pixels: Any, drops: bool, use: ModelUse) -> None:
    """Put the changes of a unit on the layers of a pass; `drops`: they count for prompts only."""
    check_denoiser(each, FLUX.denoiser, use.model)
    lora = use.auxiliary(each.file.path, build_flux_lora)
    color = hint_of(fitted_to_latents(each, pixels, use), is_inpaint=False)
    image = Hint(use.model.encode(color * 2.0 - 1.0))
    control = FlowControl(each.unit, lora, NetFacts(each.kind), color, drops_negatives=drops, image=image)
    facts: LoraFacts = lora.facts
    if not each.unit.weight:
        return
    for layer, part in facts.downs.items():
        down, up = lora.module["downs"][part], lora.module["ups"][layer.replace(".", NOT_IN_NAMES)]
        hook = _added(control, use, down, up, layer == EMBEDDER)
        use.hook(use.model.unet.get_submodule(layer), hook, HookOrder.OBSERVE)
    for name in facts.norms:
        norm = use.model.unet.get_submodule(name.replace(NOT_IN_NAMES, ".").removesuffix(".weight"))
        use.hook(norm, _normed(control, use, name), HookOrder.OBSERVE)


def _added(control: FlowControl, use: ModelUse, down: Any, up: Any, sees_image: bool) -> Callable[..., Any]:
    def add(module: Any, inner: Callable[..., Any], /, x: Tensor, *args: Any) -> Any:
        if not is_on(control.unit, use):
            return inner(x, *args)
        lora, call = control.net, use.call
        seen = x.to(lora.device, lora.dtype)
        if sees_image:
            hint = tokens_of(control.image_of(call, range(len(x))), PATCH)
            seen = torch.cat([seen, F.pad(hint, (0, 0, 0, x.shape[1] - hint.shape[1]))], dim=-1)
        change = up(down(seen)) * control.unit.weight
        rows = control.rows(call)
        if len(rows) < len(x):
            counts = change.new_zeros(len(x))
            counts[rows] = 1.0
            change = change * counts.reshape(-1, *(1,) * (change.ndim - 1))
        return inner(x, *args) + change.to(x)

    return add


def _normed(control: FlowControl, use: ModelUse, name: str) -> Callable[..., Any]:
    def norm(module: Any, inner: Callable[..., Any], /, x: Tensor, *args: Any) -> Any:
        if not is_on(control.unit, use):
            return inner(x, *args)
        weight = control.net.module["norms"][name].to(x)
        return F.rms_norm(x, weight.shape, weight, module.eps)

    return norm
