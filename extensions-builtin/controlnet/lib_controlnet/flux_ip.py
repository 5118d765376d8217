"""IP-adapters of FLUX.1: XLabs' (what attention finds is added behind each double block) and InstantX's (it is added to
the attention of all blocks, by normed keys). The query is the block's own, before its positions turn it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.flow_nets import check_denoiser
from lib_controlnet.flux_nets import FLUX
from lib_controlnet.ip_adapter import AdapterFacts, LinearTokens, tokens_of_image
from lib_controlnet.nets import NOT_FITTING
from lib_controlnet.running import check_whole, is_on
from modules.errors import CheckpointError
from modules.memory.hook_chain import HookOrder
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.keymap import KeyMap, ModulePair
from modules.processing.request.model_use import ModelUse
from modules.scripts.program import Program

XLABS = "double_blocks.{}.processor.ip_adapter_double_stream_{}_proj"
INSTANTX = "ip_adapter.{}.to_{}_ip"
EPSILON = 1e-5


@dataclass(frozen=True)
class FluxIpFacts(AdapterFacts):
    """`is_instantx`: whose form it is."""

    is_instantx: bool = False


class MlpTokens(nn.Module):
    """InstantX's projection: a small network to many tokens, and a norm."""

    def __init__(self, width: int, inner: int, tokens: int, context: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, tokens * context))
        self.norm = nn.LayerNorm(context)
        self.context = context

    def forward(self, embedding: Tensor) -> Tensor:
        """[N,width] to [N,tokens,context]."""
        found: Tensor = self.norm(self.proj(embedding).reshape(len(embedding), -1, self.context))
        return found


def build_flux_ip(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder`. Raises `CheckpointError` for files of other models."""
    shapes = {key: entry.shape for key, entry in file.entries.items()}
    is_instantx = "image_proj.norm.weight" in shapes
    name, prefix = (INSTANTX, "image_proj") if is_instantx else (XLABS, "ip_adapter_proj_model")
    context = shapes[f"{prefix}.norm.weight"][0]
    count = sum(f"{name.format(place, 'k')}.weight" in shapes for place in range(len(blocks_of(model, True))))
    wanted = len(blocks_of(model, is_instantx))
    first = shapes.get(f"{name.format(0, 'k')}.weight")
    if count != wanted or first != (model.unet.inner_dim, context):
        raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
    with on_meta():
        net = nn.Module()
        if is_instantx:
            (inner, width), (out, _) = shapes[f"{prefix}.proj.0.weight"], shapes[f"{prefix}.proj.2.weight"]
            net.image_proj = MlpTokens(width, inner, out // context, context)
            pairs = [ModulePair(f"{prefix}.proj.{place}", f"image_proj.proj.{place}") for place in (0, 2)]
        else:
            out, width = shapes[f"{prefix}.proj.weight"]
            net.image_proj = LinearTokens(width, out // context, context)
            pairs = [ModulePair(f"{prefix}.proj", "image_proj.proj")]
        pairs.append(ModulePair(f"{prefix}.norm", "image_proj.norm"))
        net.layers = nn.ModuleList()
        for place in range(count):
            layer = nn.ModuleDict()
            for part in "kv":
                original = name.format(place, part)
                layer[part] = nn.Linear(context, model.unet.inner_dim, f"{original}.bias" in shapes)
                pairs.append(ModulePair(original, f"layers.{place}.{part}"))
            net.layers.append(layer)
    component = Component("ip_adapter", net, KeyMap(pairs), ("",), "")
    return AuxiliaryParts(component, facts=FluxIpFacts(False, width, count, is_instantx))


def blocks_of(model: Any, with_single: bool) -> list[Any]:
    """The blocks of a transformer, in the order of the files."""
    return [*model.unet.transformer_blocks, *(model.unet.single_transformer_blocks if with_single else ())]


def put_flux_ip(each: Any, use: ModelUse, program: Program) -> None:
    """Have the blocks of a pass attend to the image of a unit, too. Raises `CheckpointError`."""
    check_denoiser(each, FLUX.denoiser, use.model)
    adapter = use.auxiliary(each.file.path, build_flux_ip)
    facts: FluxIpFacts = adapter.facts
    tokens = tokens_of_image(each, adapter, facts, use, program)
    seen = _Seen(each, use, adapter, tokens)
    for number, block in enumerate(blocks_of(use.model, facts.is_instantx)):
        use.hook(block.attn.norm_q, seen.note, HookOrder.OBSERVE)
        pair, is_single = adapter.module.layers[number], number >= len(use.model.unet.transformer_blocks)
        if not facts.is_instantx:
            use.hook(block, seen.behind(pair), HookOrder.OBSERVE)
        elif is_single:
            use.hook(block.attn, seen.after(pair), HookOrder.OBSERVE)
        else:
            use.hook(block.attn.to_out[0], seen.before(pair), HookOrder.OBSERVE)


@dataclass(eq=False)
class _Seen:
    """Attention to the image's tokens, by the query that a block has just made; `tokens` are for prompts and for
    negative prompts."""

    each: Any
    use: ModelUse
    adapter: Any
    tokens: tuple[Tensor, Tensor]
    query: Tensor | None = None
    image_tokens: int = 0

    def note(self, module: Any, inner: Callable[..., Any], /, x: Tensor) -> Any:
        self.query = query = inner(x)
        return query

    def behind(self, pair: Any) -> Callable[..., Any]:
        def add(module: Any, inner: Callable[..., Any], /, *args: Any, **rest: Any) -> Any:
            text, image = inner(*args, **rest)
            return text, self.added(image, pair)

        return add

    def before(self, pair: Any) -> Callable[..., Any]:
        def add(module: Any, inner: Callable[..., Any], /, x: Tensor) -> Any:
            return inner(self.added(x, pair))

        return add

    def after(self, pair: Any) -> Callable[..., Any]:
        def add(module: Any, inner: Callable[..., Any], /, *args: Any, **rest: Any) -> Any:
            return self.added(inner(*args, **rest), pair, is_single=True)

        return add

    def added(self, x: Tensor, pair: Any, is_single: bool = False) -> Tensor:
        """Tokens [B,T,C] with what a layer finds."""
        query, self.query, unit = self.query, None, self.each.unit
        assert query is not None
        if not is_single:
            self.image_tokens = query.shape[1]
        if not is_on(unit, self.use) or not unit.weight:
            return x
        negative = torch.tensor(self.use.call.is_negative[: len(query)], device=self.adapter.device)[:, None, None]
        tokens = torch.where(negative, self.tokens[1], self.tokens[0])
        heads = query.shape[2]
        key, value = (pair[part](tokens).to(query).unflatten(-1, (heads, -1)).transpose(1, 2) for part in "kv")
        if self.adapter.facts.is_instantx:
            key = F.rms_norm(key, key.shape[-1:], eps=EPSILON)
        found = F.scaled_dot_product_attention(query.transpose(1, 2), key, value).transpose(1, 2).flatten(2)
        if unit.region is not None:
            found = found * self._region(found)
        result: Tensor = x + (found * unit.weight).to(x)
        return result

    def _region(self, found: Tensor) -> Tensor:
        """Where the unit counts, [1,T,1]: of the image that is made; nowhere for tokens of texts and other images."""
        check_whole(self.use.call, self.each.name, "effective_region_mask of its model")
        size = [-(-side // 2) for side in self.use.latent_size]
        region = torch.from_numpy(self.each.unit.region.copy())[None, None].to(found) / 255.0
        mask = F.interpolate(region, size=size, mode="bilinear", align_corners=False).reshape(1, -1, 1)
        text = found.shape[1] - self.image_tokens
        return F.pad(mask, (0, 0, text, self.image_tokens - mask.shape[1]))
