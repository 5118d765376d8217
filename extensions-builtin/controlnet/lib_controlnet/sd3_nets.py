"""ControlNets of SD3 and SD3.5: those of diffusers' names, and Stability AI's for SD3.5 large in their own, which
share the model's embedding of positions and see no text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lib_controlnet.files import Kind
from lib_controlnet.flow_family import Call, Hint, Rest, inpaint_hint, placed
from lib_controlnet.nets import NOT_FITTING, NetFacts, OwnNames
from modules.errors import CheckpointError
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts
from modules.models.names.component import Component, on_meta
from modules.models.names.row_map import RowMap, Source

ORIGINAL_SIGN = "transformer_blocks.0.adaLN_modulation.1.weight"
CONTROL_TYPE = "control_type"
CANNY, DEPTH = 1, 2
"""What Stability AI's files say of themselves in a tensor: networks for edges see the image in another range, those for
depth see what is near as dark."""
RENAMED = (
    (re.compile(r"^t_embedder\.mlp\.0\."), "time_text_embed.timestep_embedder.linear_1."),
    (re.compile(r"^t_embedder\.mlp\.2\."), "time_text_embed.timestep_embedder.linear_2."),
    (re.compile(r"^y_embedder\.mlp\.0\."), "time_text_embed.text_embedder.linear_1."),
    (re.compile(r"^y_embedder\.mlp\.2\."), "time_text_embed.text_embedder.linear_2."),
    (re.compile(r"\.attn\.proj\."), ".attn.to_out.0."),
    (re.compile(r"\.mlp\.fc1\."), ".ff.net.0.proj."),
    (re.compile(r"\.mlp\.fc2\."), ".ff.net.2."),
    (re.compile(r"\.adaLN_modulation\.1\."), ".norm1.linear."),
)
FUSED = re.compile(r"\.attn\.qkv\.(weight|bias)$")
SKIP = (r"^pos_embed", r"^context_embedder$", r"^time_text_embed\.")


@dataclass(frozen=True)
class Sd3Facts(NetFacts):
    """`is_shifted`: latents of the control image are shifted as the model's are, and the network sees the pooled text;
    networks of the same text blocks as the model's know neither. `control_type` is of Stability AI's files."""

    is_shifted: bool = False
    control_type: int | None = None


def rows_of_original(file: TensorSource) -> RowMap:
    """Which rows of the tensors of a file of Stability AI's are which parameters of diffusers' module."""
    sources: dict[str, Source] = {}
    for name, entry in file.entries.items():
        if FUSED.search(name) is None:
            ours = name
            for pattern, word in RENAMED:
                ours = pattern.sub(word, ours)
            sources[ours] = Source(name)
            continue
        height = entry.shape[0] // 3
        for part, letter in enumerate("qkv"):
            sources[FUSED.sub(rf".attn.to_{letter}.\1", name)] = Source(name, ((part * height, (part + 1) * height),))
    return RowMap(sources)


class Sd3Nets:
    """A `FlowNets`."""

    kind = Kind.SD3
    denoiser = "SD3Transformer2DModel"

    def build(self, file: TensorSource, model: Any) -> AuxiliaryParts:
        from diffusers import SD3ControlNetModel

        config = model.unet.config
        rows = rows_of_original(file) if ORIGINAL_SIGN in file.entries else None
        names = set(file.entries if rows is None else rows.sources)
        width, channels, patch, _ = file.entries["pos_embed_input.proj.weight"].shape
        context = file.entries.get("context_embedder.weight")
        is_wrong = width != model.unet.inner_dim or patch != config.patch_size
        is_wrong |= context is not None and context.shape[1] != config.joint_attention_dim
        extra = channels - config.in_channels
        if is_wrong or extra not in (0, 1):
            raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
        layers = len({name.split(".")[1] for name in names if name.startswith("transformer_blocks.")})
        dual = [n for n in range(layers) if f"transformer_blocks.{n}.attn2.to_q.weight" in names]
        positions = file.entries.get("pos_embed.pos_embed")
        has_positions = "pos_embed.proj.weight" in names
        table = config.pos_embed_max_size if positions is None else round(positions.shape[1] ** 0.5)
        with on_meta():
            net = SD3ControlNetModel(
                sample_size=config.sample_size,
                patch_size=patch,
                in_channels=config.in_channels,
                num_layers=layers,
                attention_head_dim=config.attention_head_dim,
                num_attention_heads=config.num_attention_heads,
                joint_attention_dim=None if context is None else context.shape[1],
                caption_projection_dim=config.caption_projection_dim,
                pooled_projection_dim=config.pooled_projection_dim,
                out_channels=config.out_channels,
                pos_embed_max_size=table,
                extra_conditioning_channels=extra,
                dual_attention_layers=tuple(dual),
                qk_norm="rms_norm" if "transformer_blocks.0.attn.norm_q.weight" in names else None,
                use_pos_embed=has_positions,
            )
        control_type = round(float(file.read(CONTROL_TYPE))) if CONTROL_TYPE in file.entries else None
        facts = Sd3Facts(self.kind, is_shifted=context is None or extra == 1, control_type=control_type)
        keymap = OwnNames() if rows is None else rows.keymap()
        component = Component("control", net, keymap, ("",), "", skip=SKIP)
        return AuxiliaryParts(component, lambda key: key == CONTROL_TYPE, facts, rows)

    def hint(self, net: Auxiliary, color: Tensor, mask: Tensor | None, model: Any) -> Hint:
        facts = net.facts
        values = color * 2.0 - 1.0
        if facts.control_type == CANNY:
            values = color * 127.5 + 0.5
        elif facts.control_type == DEPTH:
            values = 1.0 - color * 2.0
        if not net.module.config.extra_conditioning_channels:
            latents = model.encode(values)
            return Hint(latents if facts.is_shifted else _without_shift(latents, model))
        return inpaint_hint(net, values, mask, model)

    def outputs(
        self, net: Auxiliary, hint: Tensor, call: Call, control_type: int | None, weight: float, model: Any
    ) -> list[Tensor]:
        module, rest = net.module, call.rest
        hint = F.pad(hint, (0, call.x.shape[3] - hint.shape[3], 0, call.x.shape[2] - hint.shape[2]), mode="replicate")
        pooled = placed(rest["pooled_projections"], net)
        x = call.x if module.pos_embed is not None else model.unet.pos_embed(call.x)
        (found,) = module(
            placed(x, net),
            hint,
            encoder_hidden_states=None
            if module.context_embedder is None
            else placed(rest["encoder_hidden_states"], net),
            pooled_projections=pooled if net.facts.is_shifted else torch.zeros_like(pooled),
            timestep=rest["timestep"].to(net.device),
            return_dict=False,
        )
        return [output.to(call.x.device, call.x.dtype) for output in found]

    def places(self, net: Auxiliary, denoiser: Any) -> list[list[int]]:
        blocks, count = len(denoiser.transformer_blocks), len(net.module.transformer_blocks)
        found: list[list[int]] = [[] for _ in range(count)]
        for block in range(blocks):
            found[int(block / (blocks / count))].append(block)
        return found

    def add(self, found: Mapping[int, Tensor], denoiser: Any, rest: Rest) -> None:
        nothing = next(iter(found.values())).new_zeros(())
        rest["block_controlnet_hidden_states"] = [
            found.get(block, nothing) for block in range(len(denoiser.transformer_blocks))
        ]

    def rows_of(self, call: Call, rows: Sequence[int]) -> Call:
        chosen = list(rows)
        by_row = ("encoder_hidden_states", "pooled_projections", "timestep")
        rest = {name: value[chosen] if name in by_row else value for name, value in call.rest.items()}
        return Call(call.x[chosen], call.args, rest)


SD3 = Sd3Nets()


def _without_shift(latents: Tensor, model: Any) -> Tensor:
    """Scaled latents as they would be if the VAE's own were not shifted before."""
    shift, one = (model.autoencoder.to_own(model.vae, latents.new_tensor([[[[value]]]])) for value in (0.0, 1.0))
    unshifted: Tensor = latents + shift / (one - shift)
    return unshifted
