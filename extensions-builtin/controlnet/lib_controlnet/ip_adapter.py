"""IP-adapters (Ye et al. 2023, arXiv:2308.06721): an image as tokens of its own that every cross-attention attends to
beside the text. The query is the layer's own, keys and values come from the adapter; the result is added before the
layer's output projection."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.files import Kind, clip_vision_file, kind_of
from lib_controlnet.maps import images_after_first
from lib_controlnet.nets import NOT_FITTING, OwnNames
from lib_controlnet.pixels import Pixels, resize_area
from lib_controlnet.running import is_on, region_of_tokens
from lib_controlnet.units import Unit, check_layer_weights
from modules.errors import CheckpointError, InvalidValueError
from modules.memory.hook_chain import HookOrder
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.processing.request.model_use import ModelUse
from modules.scripts.program import Program
from modules.system.bounded import read_json_file

ENCODER_H, ENCODER_G, ENCODER_L, ENCODER_SIGLIP = "clip_h", "clip_g", "clip_vitl", "sigclip_vision_patch14_384"
ENCODERS = {
    "ip-adapter_clip_sd15": ENCODER_H,
    "ip-adapter_clip_sdxl": ENCODER_G,
    "ip-adapter_clip_sdxl_plus_vith": ENCODER_H,
}
HEAD_WIDTH = 64
SIGLIP_SIGN, SIGLIP_HEAD = "vision_model.head.probe", 72
SIGLIP = "siglip_vision_model"
HALF = (0.5, 0.5, 0.5)
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class LinearTokens(nn.Module):
    """The plain projection: one linear layer to a few tokens, and a norm."""

    def __init__(self, width: int, tokens: int, context: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, tokens * context)
        self.norm = nn.LayerNorm(context)
        self.context = context

    def forward(self, embedding: Tensor) -> Tensor:
        """[N,width] to [N,tokens,context]."""
        found: Tensor = self.norm(self.proj(embedding).reshape(len(embedding), -1, self.context))
        return found


class FaceTokens(nn.Module):
    """The projection of full-face adapters: every token of the encoder through a small network."""

    def __init__(self, width: int, inner: int, context: int) -> None:
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, context), nn.LayerNorm(context))

    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = self.proj(states)
        return found


class ResamplerAttention(nn.Module):
    """Latent queries attend to the image's tokens and to themselves."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        x, latents = self.norm1(x), self.norm2(latents)
        key, value = self.to_kv(torch.cat([x, latents], dim=1)).chunk(2, dim=-1)
        query, key, value = (
            each.reshape(len(each), -1, each.shape[-1] // HEAD_WIDTH, HEAD_WIDTH).transpose(1, 2)
            for each in (self.to_q(latents), key, value)
        )
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        found: Tensor = self.to_out(seen)
        return found


class Resampler(nn.Module):
    """The projection of "plus" adapters (Alayrac et al. 2022, arXiv:2204.14198)."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        _, tokens, width = shapes["latents"]
        depth = len({key.split(".")[1] for key in shapes if key.startswith("layers.")})
        inner, hidden = shapes["layers.0.0.to_q.weight"][0], shapes["layers.0.1.1.weight"][0]
        self.latents = nn.Parameter(torch.empty(1, tokens, width))
        self.proj_in = nn.Linear(shapes["proj_in.weight"][1], width)
        self.proj_out = nn.Linear(width, shapes["proj_out.weight"][0])
        self.norm_out = nn.LayerNorm(shapes["norm_out.weight"][0])
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    ResamplerAttention(width, inner),
                    nn.Sequential(
                        nn.LayerNorm(width),
                        nn.Linear(width, hidden, bias=False),
                        nn.GELU(),
                        nn.Linear(hidden, width, bias=False),
                    ),
                ]
            )
            for _ in range(depth)
        )

    def forward(self, states: Tensor) -> Tensor:
        """[N,tokens of the encoder,width] to [N,tokens,context]."""
        latents = self.latents.expand(len(states), -1, -1).to(states)
        x = self.proj_in(states)
        for layer in self.layers:
            attention, feed_forward = list(layer.children())
            latents = attention(x, latents) + latents
            latents = feed_forward(latents) + latents
        found: Tensor = self.norm_out(self.proj_out(latents))
        return found


@dataclass(frozen=True)
class AdapterFacts:
    """`wants_states`: the projection takes the encoder's tokens, not its embedding. `width` of what it takes; `layers`:
    names of the cross-attention layers with keys and values of their own."""

    wants_states: bool
    width: int
    count: int


def build_adapter(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder` of IP-adapters."""
    if kind_of(file.entries, file.path) is not Kind.IP:
        raise CheckpointError(f"{file.path.name} is no IP-adapter. Choose another file.")
    shapes = {key: entry.shape for key, entry in file.entries.items()}
    layers = cross_attentions(model.unet)
    image = {key.removeprefix("image_proj."): shape for key, shape in shapes.items() if key.startswith("image_proj.")}
    with on_meta():
        if "latents" in image:
            projection: nn.Module = Resampler(image)
            width, wants_states = image["proj_in.weight"][1], True
        elif "proj.3.weight" in image:
            width, wants_states = image["proj.0.weight"][1], True
            projection = FaceTokens(width, image["proj.0.weight"][0], image["proj.3.weight"][0])
        elif "proj.weight" in image:
            context = image["norm.weight"][0]
            width, wants_states = image["proj.weight"][1], False
            projection = LinearTokens(width, image["proj.weight"][0] // context, context)
        else:
            raise CheckpointError(f"{file.path.name}: IP-adapters of faces' identities are not supported.")
        net = nn.Module()
        net.image_proj = projection
        net.ip_adapter = nn.ModuleDict()
        for number, layer in enumerate(layers):
            pair, place = nn.Module(), str(2 * number + 1)
            shape = shapes.get(f"ip_adapter.{place}.to_k_ip.weight")
            if shape is None or shape[0] != layer.to_k.out_features:
                raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
            pair.to_k_ip = nn.Linear(shape[1], shape[0], bias=False)
            pair.to_v_ip = nn.Linear(shape[1], shape[0], bias=False)
            net.ip_adapter[place] = pair
    component = Component("ip_adapter", net, OwnNames(), ("",), "")
    return AuxiliaryParts(component, facts=AdapterFacts(wants_states, width, len(layers)))


def cross_attentions(unet: Any) -> list[Any]:
    """The cross-attention layers in the order of the files: down, up, middle."""
    return [
        block.attn2
        for part in (*unet.down_blocks, *unet.up_blocks, unet.mid_block)
        for block in part.modules()
        if type(block).__name__ == "BasicTransformerBlock"
    ]


def layer_weights(unit: Unit, unet: Any, name: str) -> dict[Any, float]:
    """Return the weight of each cross-attention, by the block that it is in: down, middle, up. Raises
    `InvalidValueError` where the unit has another number of weights."""
    parts = (*unet.down_blocks, unet.mid_block, *unet.up_blocks)
    blocks = [block for part in parts for block in getattr(part, "attentions", ())]
    check_layer_weights(unit, len(blocks), name, is_exact=True)
    weights = unit.layer_weights or [unit.weight] * len(blocks)
    return {layer: max(weight, 0.0) for weight, block in zip(weights, blocks, strict=True) for layer in block.modules()}


def build_siglip(file: TensorSource, shapes: dict[str, tuple[int, ...]]) -> AuxiliaryParts:
    """The vision model of SigLIP (Zhai et al. 2023, arXiv:2303.15343), sizes from its tensors."""
    from transformers import SiglipVisionConfig, SiglipVisionModel

    width, _, patch, _ = shapes["vision_model.embeddings.patch_embedding.weight"]
    layers = 1 + max(int(key.split(".")[3]) for key in shapes if key.startswith("vision_model.encoder.layers."))
    config = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        num_hidden_layers=layers,
        num_attention_heads=max(width // SIGLIP_HEAD, 1),
        patch_size=patch,
        image_size=patch * math.isqrt(shapes["vision_model.embeddings.position_embedding.weight"][0]),
    )
    with on_meta():
        encoder = SiglipVisionModel(config)
    component = Component("clip_vision", encoder, OwnNames("vision_model."), ("vision_model.",), "")
    return AuxiliaryParts(component, lambda key: not key.startswith("vision_model."), config)


def build_encoder(file: TensorSource, model: Any) -> AuxiliaryParts:
    """A `Builder` of vision models of CLIP and SigLIP, sizes from the settings next to the file or from its tensors."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    settings = file.path.with_name("config.json")
    shapes = {key: entry.shape for key, entry in file.entries.items()}
    if SIGLIP_SIGN in shapes:
        return build_siglip(file, shapes)
    if "visual_projection.weight" not in shapes or "vision_model.embeddings.class_embedding" not in shapes:
        raise CheckpointError(f"{file.path.name} is no CLIP vision model in transformers' names.")
    if settings.is_file():
        try:
            given = read_json_file(settings)
            config = CLIPVisionConfig(**{key: value for key, value in given.items() if key != "architectures"})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{settings} cannot be used: {error}. Get it again, or remove it.") from error
    else:
        width = shapes["vision_model.embeddings.class_embedding"][0]
        patch = shapes["vision_model.embeddings.patch_embedding.weight"][-1]
        layers = 1 + max(int(key.split(".")[3]) for key in shapes if key.startswith("vision_model.encoder.layers."))
        config = CLIPVisionConfig(
            hidden_size=width,
            intermediate_size=shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
            num_hidden_layers=layers,
            num_attention_heads=width // (104 if width == 1664 else 80 if width == 1280 else HEAD_WIDTH),
            patch_size=patch,
            image_size=patch * math.isqrt(shapes["vision_model.embeddings.position_embedding.weight"][0] - 1),
            projection_dim=shapes["visual_projection.weight"][0],
            hidden_act="quick_gelu" if width == 1024 else "gelu",
        )
    with on_meta():
        encoder = CLIPVisionModelWithProjection(config)
    component = Component("clip_vision", encoder, OwnNames(), ("",), "")

    def belongs_elsewhere(key: str) -> bool:  # to the text encoder of a whole CLIP
        return key.endswith("position_ids") or not key.startswith(("vision_model.", "visual_projection."))

    return AuxiliaryParts(component, belongs_elsewhere, config)


def preprocessed(
    image: Pixels, mask: Pixels | None, side: int, mean: Sequence[float] = MEAN, std: Sequence[float] = STD
) -> Tensor:
    """[1,3,side,side], normed: the whole image [H,W,3] in a square, by area. What a mask [H,W] covers is 0."""
    values = resize_area(image, side, side).astype(np.float32) / 255.0
    normed = (values - np.array(mean, np.float32)) / np.array(std, np.float32)
    if mask is not None:
        normed *= 1.0 - resize_area(mask, side, side).astype(np.float32)[:, :, None] / 255.0
    return torch.from_numpy(normed).permute(2, 0, 1)[None]


def put_ip_adapter(each: Any, use: ModelUse, program: Program) -> None:
    """Have the cross-attentions of a pass attend to the image of a unit, too. Raises `CheckpointError`."""
    adapter = use.auxiliary(each.file.path, build_adapter)
    facts: AdapterFacts = adapter.facts
    positive, negative = tokens_of_image(each, adapter, facts, use, program)
    layers = cross_attentions(use.model.unet)
    weights = layer_weights(each.unit, use.model.unet, each.name)
    for number, layer in enumerate(layers):
        pair = adapter.module.ip_adapter[str(2 * number + 1)]
        _attend_too(use, layer, pair, adapter, positive, negative, weights[layer], each)


def _attend_too(
    use: ModelUse, layer: Any, pair: Any, adapter: Any, positive: Tensor, negative: Tensor, weight: float, each: Any
) -> None:
    state: dict[str, Tensor] = {}

    def note_query(module: Any, inner: Any, /, x: Tensor, *args: Any) -> Any:
        state["query"] = query = inner(x, *args)
        return query

    def add(module: Any, inner: Any, /, x: Tensor, *args: Any) -> Any:
        query = state.pop("query", None)
        if query is None or not is_on(each.unit, use) or weight == 0:
            return inner(x, *args)
        call = use.call
        mark = torch.tensor(call.is_negative[: len(query)], device=adapter.device)[:, None, None]
        tokens = torch.where(mark, negative, positive)
        heads = layer.heads
        key, value = pair.to_k_ip(tokens).to(query), pair.to_v_ip(tokens).to(query)
        q, k, v = (
            part.reshape(len(part), -1, heads, part.shape[-1] // heads).transpose(1, 2) for part in (query, key, value)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) * weight
        if each.unit.region is not None:
            seen = seen * region_of_tokens(each, seen.shape[1], use).to(seen)
        return inner(x + seen.to(x), *args)

    use.hook(layer.to_q, note_query, HookOrder.OBSERVE)
    use.hook(layer.to_out[0], add, HookOrder.OBSERVE)


def tokens_of_image(
    each: Any, adapter: Any, facts: AdapterFacts, use: ModelUse, program: Program
) -> tuple[Tensor, Tensor]:
    """For prompts and for negative prompts, [1,tokens,context] each; several images are averaged."""
    projection = adapter.module.image_proj

    def projected(values: Tensor) -> Tensor:
        found: Tensor = projection(values.to(adapter.device, adapter.dtype))
        return found

    if each.unit.embeddings:
        found = [_given_embedding(data, each, facts) for data in each.unit.embeddings]
        positive = torch.stack([projected(cond) for cond in found]).mean(0)
        return positive, projected(torch.zeros_like(found[0]))
    path = _encoder_file(each, facts, use, program)
    encoder = use.auxiliary(path, build_encoder)
    side, is_siglip = encoder.facts.image_size, encoder.facts.model_type == SIGLIP

    def seen(pixels: Tensor) -> Tensor:
        output = encoder.module(pixels.to(encoder.device, encoder.dtype), output_hidden_states=True)
        if facts.wants_states:
            states: Tensor = output.hidden_states[-2]
            return states
        result: Tensor = output.pooler_output if is_siglip else output.image_embeds
        return result

    norm = (HALF, HALF) if is_siglip else (MEAN, STD)
    encoded = [seen(preprocessed(image, mask, side, *norm)) for image, mask in _images(each)]
    if encoded[0].shape[-1] != facts.width:
        raise CheckpointError(
            f"{each.file.name} takes features of width {facts.width}, {path.name} gives {encoded[0].shape[-1]}. Choose "
            "another module, or put the image encoder that belongs to it into models/clip_vision."
        )
    positive = torch.stack([projected(values) for values in encoded]).mean(0)
    nothing = seen(torch.zeros(1, 3, side, side)) if facts.wants_states else torch.zeros_like(encoded[0])
    return positive, projected(nothing)


def _encoder_file(each: Any, facts: Any, use: ModelUse, program: Program) -> Path:
    name = ENCODERS.get(each.unit.module.name)
    if each.kind is Kind.FLUX_IP:
        name = ENCODER_SIGLIP if facts.is_instantx else ENCODER_L
    if name is None:  # by the name of the model's file
        words = each.file.name.lower()
        name = ENCODER_G if "sdxl" in words and "vit-h" not in words and "plus" not in words else ENCODER_H
    return clip_vision_file(program, name)


def _images(each: Any) -> Sequence[tuple[Pixels, Pixels | None]]:
    """The images of a unit with their masks."""
    found = []
    for pixels in (each.map.pixels, *images_after_first(each.unit)):
        mask = np.ascontiguousarray(pixels[:, :, 3]) if pixels.shape[2] == 4 else None
        found.append((np.ascontiguousarray(pixels[:, :, :3]), mask))
    return found


def _given_embedding(data: bytes, each: Any, facts: AdapterFacts) -> Tensor:
    """An embedding that a caller gives as a file of torch's, read weights-only."""
    try:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever its reader raises, the file is not what it should be
        raise InvalidValueError(f"{each.name}: ipadapter_input is no file of tensors: {error}") from error
    values = found.get("image_embeds", found.get("cond")) if isinstance(found, dict) else found
    if not isinstance(values, Tensor) or values.shape[-1] != facts.width:
        raise InvalidValueError(f"{each.name}: ipadapter_input holds no embedding of width {facts.width}.")
    return values.float()
