"""FLUX.1's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import REFERENCE, ModelInputs, single_references
from modules.models.families.exact_times import exact_times
from modules.models.families.family import Denoiser, DenoiserInputSizes, GuidanceType, UsualSettings, denoiser_alone
from modules.models.families.flux1.layout import GUIDANCE, TABLE, VECTOR, transformer_rows, width_of
from modules.models.families.packing import PATCH, packed, unpacked
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes

AXES = (16, 56, 56)
HEAD_WIDTH = sum(AXES)
REFERENCE_INDEX = 1
"""The first of the three positions of an image that is shown next to the one that is made, whose is 0."""
TRAINED_TIMESTEPS = 1000.0
LATENT_CHANNELS = 16
MASK_FOLD = 8  # pixels of the mask a side that a latent stands for
INPAINTING_CHANNELS = 2 * LATENT_CHANNELS + MASK_FOLD**2
SKIP = (r"^x_embedder$", r"^context_embedder$", r"^time_text_embed\.", r"^norm_out\.", r"^proj_out$")
"""Layers that 8-bit formats leave alone: small ones at the ends, which the whole image depends on."""


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    width = width_of(header)
    with reading_sizes():
        channels = header[f"{PREFIX}img_in.weight"].shape[1]
        context = header[f"{PREFIX}txt_in.weight"].shape[1]
        vector = header[f"{PREFIX}{VECTOR}"].shape[1]
        out = header[f"{PREFIX}final_layer.linear.weight"].shape[0]
    check_width(width)
    if channels not in (PATCH**2 * LATENT_CHANNELS, PATCH**2 * INPAINTING_CHANNELS):
        raise CheckpointError(
            f"its transformer takes {channels} channels, as control models (Canny, Depth) do, which are not supported. "
            f"Choose a model of {PATCH**2 * LATENT_CHANNELS} channels, or of {PATCH**2 * INPAINTING_CHANNELS} (Fill)."
        )
    module = meta_module(
        "diffusers.FluxTransformer2DModel",
        in_channels=channels,
        out_channels=out,
        num_layers=TABLE.count(rows.sources, "double_blocks.{}.img_attn.qkv"),
        num_single_layers=TABLE.count(rows.sources, "single_blocks.{}.linear1"),
        attention_head_dim=HEAD_WIDTH,
        num_attention_heads=width // HEAD_WIDTH,
        joint_attention_dim=context,
        pooled_projection_dim=vector,
        guidance_embeds=f"{PREFIX}{GUIDANCE}" in header,
        axes_dims_rope=AXES,
    )
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def check_width(width: int) -> None:
    """Raises `CheckpointError` for a transformer that is no whole number of heads wide."""
    if width < HEAD_WIDTH or width % HEAD_WIDTH:
        raise CheckpointError(
            f"its transformer is {width} wide, and that of such models is a multiple of {HEAD_WIDTH}. Choose another "
            "file."
        )


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. References are put together, each next to or below those before it,
    whichever leaves the canvas nearer to a square."""
    x, ids, (height, width) = packed(inputs.x)
    count, extra = len(ids), dict(inputs.extra)
    rows = columns = 0  # of the references that are there already, in tokens
    for reference in single_references(extra.pop(REFERENCE, None), LATENT_CHANNELS):
        shown, places, (high, wide) = packed(reference, REFERENCE_INDEX)
        down, right = (0, columns) if rows + high > columns + wide else (rows, 0)
        x, ids = torch.cat([x, shown], dim=1), torch.cat([ids, places + places.new_tensor([0, down, right])])
        rows, columns = max(rows, down + high), max(columns, right + wide)
    guidance = extra.get("guidance")
    scale = guidance * TRAINED_TIMESTEPS if isinstance(guidance, Tensor) else None
    with exact_times(transformer.time_text_embed, inputs.timesteps, scale):
        output: Tensor = transformer(
            x,  # not by name: hooks look at it
            encoder_hidden_states=inputs.crossattn,
            pooled_projections=inputs.vector,
            timestep=inputs.timesteps / TRAINED_TIMESTEPS,
            img_ids=ids,
            txt_ids=ids.new_zeros(inputs.crossattn.shape[1], len(AXES)),
            return_dict=False,
            **extra,
        )[0]
    return unpacked(output[:, :count], height, width)[..., : inputs.x.shape[-2], : inputs.x.shape[-1]]


def folded_mask(masked: Tensor, mask: Tensor) -> Tensor:
    """See `Denoiser.inpainting_input`: the masked latents and then the mask, 8 x 8 pixels of it as channels."""
    size = [side * MASK_FOLD for side in masked.shape[-2:]]
    sized = mask if list(mask.shape[-2:]) == size else F.interpolate(mask, size=size)
    return torch.cat([masked, F.pixel_unshuffle(sized, MASK_FOLD).to(masked).expand(len(masked), -1, -1, -1)], dim=1)


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels // PATCH**2, config.joint_attention_dim, config.pooled_projection_dim)


def guidance_of(transformer: Any) -> GuidanceType:
    """Return how models of this class are guided, by the layer that takes the scale as an input."""
    return GuidanceType.DISTILLED if transformer.config.guidance_embeds else GuidanceType.CFG


def _takes_references(transformer: Any, name: str) -> bool:
    """Tell Kontext by its name, as it has the tensors of dev."""
    return "kontext" in name.lower()


def _usual_settings(transformer: Any, name: str) -> UsualSettings:
    """Give Fill and Kontext the scales that they were distilled to."""
    if not transformer.config.guidance_embeds:
        return UsualSettings(steps=4)
    if transformer_inputs(transformer).channels > LATENT_CHANNELS:
        return UsualSettings(steps=28, distilled_cfg_scale=30.0)
    return UsualSettings(steps=20, distilled_cfg_scale=2.5 if _takes_references(transformer, name) else 3.5)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    guidance=guidance_of,
    usual_settings=_usual_settings,
    takes_references=_takes_references,
    inpainting_input=folded_mask,
)
