"""ControlNets of FLUX.1: those of diffusers' names (InstantX, Shakker, union networks with a type of control; Alimama's
for inpainting, which see a mask beside the latents) and XLabs' in the original layout, which take the image itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.files import Kind
from lib_controlnet.flow_family import Call, Hint, Rest, blocks_of, for_all, inpaint_hint, placed, spread, tokens_of
from lib_controlnet.nets import HINT_CONVOLUTIONS, NOT_FITTING, NetFacts, OwnNames
from lib_controlnet.units import UNION_TAGS
from modules.errors import CheckpointError
from modules.models.families.flux1.layout import TABLE
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import Auxiliary, AuxiliaryParts
from modules.models.names.component import Component, on_meta

PATCH, LATENT_CHANNELS = 2, 16
SKIP = (r"^x_embedder$", r"^context_embedder$", r"^time_text_embed\.", r"^controlnet_x_embedder$")
"""Layers that 8-bit formats leave alone, as in the transformer itself."""
ORIGINAL = LayerTable(
    (
        *TABLE.layers,
        Layer("controlnet_blocks.{}", ("controlnet_blocks.{}",)),
        Layer("pos_embed_input", ("controlnet_x_embedder",)),
        *(Layer(f"input_hint_block.{n}", (f"input_hint_block.{ours}",)) for n, ours in HINT_CONVOLUTIONS.items()),
    )
)
"""XLabs' names."""
ORIGINAL_SIGN = "double_blocks.0.img_attn.qkv.weight"
MODES = {"Hard Edge": 0, "Tile": 1, "Depth": 2, "OpenPose": 4}
"""How union networks number the types of control (InstantX, Shakker Labs); 6 is for images of low quality."""
BLUR, GRAY = 3, 5
USUAL_GUIDANCE = 3.5  # where the model itself has no such input
MODES_OF_MODULES = {"blur_gaussian": BLUR, "recolor_luminance": GRAY, "recolor_intensity": GRAY}


class FluxNets:
    """A `FlowNets`."""

    kind = Kind.FLUX
    denoiser = "FluxTransformer2DModel"

    def build(self, file: TensorSource, model: Any) -> AuxiliaryParts:
        from diffusers import FluxControlNetModel

        config, width = model.unet.config, model.unet.inner_dim
        rows = ORIGINAL.row_map(file.entries, "", width) if ORIGINAL_SIGN in file.entries else None
        names = set(file.entries if rows is None else rows.sources)
        shapes = {key: entry.shape for key, entry in file.entries.items()}
        first = "controlnet_x_embedder.weight" if rows is None else "pos_embed_input.weight"
        context = shapes.get("context_embedder.weight" if rows is None else "txt_in.weight", (0, 0))
        channels = PATCH**2 * LATENT_CHANNELS
        if shapes.get(first, (0, 0))[0] != width or context[1] != config.joint_attention_dim:
            raise CheckpointError(f"{file.path.name}: {NOT_FITTING.format(family=model.family.label)}")
        with_mask = channels + PATCH**2
        if shapes[first][1] not in (channels, with_mask):
            raise CheckpointError(
                f"{file.path.name}: takes {shapes[first][1]} channels of control. Choose a network of {channels}, or "
                f"of {with_mask} for inpainting."
            )
        modes = shapes.get("controlnet_mode_embedder.weight")
        takes_pixels = "input_hint_block.conv_in.weight" in names
        with on_meta():
            net = FluxControlNetModel(
                patch_size=PATCH if takes_pixels else 1,
                in_channels=channels,
                num_layers=blocks_of(names, "transformer_blocks."),
                num_single_layers=blocks_of(names, "single_transformer_blocks."),
                attention_head_dim=config.attention_head_dim,
                num_attention_heads=config.num_attention_heads,
                joint_attention_dim=context[1],
                pooled_projection_dim=config.pooled_projection_dim,
                guidance_embeds="time_text_embed.guidance_embedder.linear_1.weight" in names,
                axes_dims_rope=config.axes_dims_rope,
                num_mode=modes[0] if modes else None,
                conditioning_embedding_channels=16 if takes_pixels else None,
            )
            if shapes[first][1] == with_mask:
                net.controlnet_x_embedder = nn.Linear(with_mask, width)
        keymap = OwnNames() if rows is None else rows.keymap()
        component = Component("control", net, keymap, ("",), "", skip=SKIP)
        return AuxiliaryParts(component, facts=NetFacts(self.kind), rows=rows)

    def hint(self, net: Auxiliary, color: Tensor, mask: Tensor | None, model: Any) -> Hint:
        if net.module.controlnet_x_embedder.in_features > net.module.config.in_channels:
            return inpaint_hint(net, color * 2.0 - 1.0, mask, model)
        if net.module.input_hint_block is None:
            return Hint(model.encode(color * 2.0 - 1.0))
        return Hint(color * 2.0 - 1.0, model.downscale)

    def outputs(
        self, net: Auxiliary, hint: Tensor, call: Call, control_type: int | None, weight: float, model: Any
    ) -> list[Tensor]:
        module, rest = net.module, call.rest
        if module.input_hint_block is None:
            hint = tokens_of(hint, PATCH)
        else:
            multiple = PATCH * model.downscale
            hint = F.pad(hint, (0, -hint.shape[3] % multiple, 0, -hint.shape[2] % multiple), mode="replicate")
        count = hint.shape[1] if hint.ndim == 3 else hint.shape[2] * hint.shape[3] // (PATCH * model.downscale) ** 2
        x = placed(call.x[:, :count, : module.x_embedder.weight.shape[1]], net)  # without images that are shown beside
        guidance = rest.get("guidance")
        mode = None
        if module.union:
            mode = torch.full((len(x), 1), control_type or 0, dtype=torch.long, device=net.device)
        if module.config.guidance_embeds and guidance is None:
            guidance = torch.full((len(x),), USUAL_GUIDANCE)
        double, single = module(
            x,
            controlnet_cond=hint,
            controlnet_mode=mode,
            encoder_hidden_states=placed(rest["encoder_hidden_states"], net),
            pooled_projections=placed(rest["pooled_projections"], net),
            timestep=rest["timestep"].to(net.device),
            img_ids=rest["img_ids"][:count].to(net.device),
            txt_ids=rest["txt_ids"].to(net.device),
            guidance=guidance.to(net.device) if module.config.guidance_embeds and guidance is not None else None,
            return_dict=False,
        )
        return [for_all(output, call.x) for output in (*(double or ()), *(single or ()))]

    def places(self, net: Auxiliary, denoiser: Any) -> list[list[int]]:
        double, module = len(denoiser.transformer_blocks), net.module
        return [
            *spread(len(module.transformer_blocks), double, 0, module.input_hint_block is not None),
            *spread(len(module.single_transformer_blocks), len(denoiser.single_transformer_blocks), double),
        ]

    def add(self, found: Mapping[int, Tensor], denoiser: Any, rest: Rest) -> None:
        double, single = len(denoiser.transformer_blocks), len(denoiser.single_transformer_blocks)
        nothing = next(iter(found.values())).new_zeros(())
        for name, blocks in (
            ("controlnet_block_samples", range(double)),
            ("controlnet_single_block_samples", range(double, double + single)),
        ):
            if any(block in found for block in blocks):
                rest[name] = [found.get(block, nothing) for block in blocks]

    def rows_of(self, call: Call, rows: Sequence[int]) -> Call:
        chosen = list(rows)
        by_row = ("encoder_hidden_states", "pooled_projections", "timestep", "guidance")
        rest = {
            name: value[chosen] if name in by_row and value is not None else value for name, value in call.rest.items()
        }
        return Call(call.x[chosen], call.args, rest)


FLUX = FluxNets()


def mode_of(unit: Any, known: int) -> int | None:
    """The number of a unit's type of control in a union network of `known` types; None where nothing says it."""
    number = MODES_OF_MODULES.get(unit.module.name)
    names = (unit.union_type, *(UNION_TAGS[tag] for tag in unit.module.tags if tag in UNION_TAGS))
    found = next((MODES[name] for name in names if name in MODES), number)
    return found if found is not None and found < known else None
