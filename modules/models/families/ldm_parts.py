"""What the families of the latent-diffusion layout share: UNet, autoencoder, and what their files leave over."""

import re
from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor

from modules.models.architecture import UNetArchitecture, VaeArchitecture
from modules.models.families.family import Component, DenoiserInputSizes, Header
from modules.models.layouts.keymaps import ldm_unet, ldm_vae
from modules.models.ldm_upsample import use_ldm_upsampling
from modules.models.meta_init import on_meta

LEFT_OVER = re.compile(
    r"^model_ema\.|^(alphas|betas|sqrt|log_one_minus|posterior|logvar|scale_factor|lvlb_weights)[a-z0-9_]*$"
    r"|^denoiser\.|^first_stage_model\.loss\.|\.position_ids$|\.attn_mask$|\.logit_scale$|^(v_pred|ztsnr)$"
    r"|^cond_stage_model\.text_projection"
)
NORM_GROUPS = 32
V_KEY, ZERO_SNR_KEY = "v_pred", "ztsnr"
"""Empty tensors by which a file says that it predicts v, and that its last step is pure noise."""
PREDICTION_KEY = "modelspec.prediction_type"  # in the metadata, after the standard ModelSpec
PREDICTIONS = {"epsilon": "epsilon", "v": "v_prediction", "v_prediction": "v_prediction"}


def input_channels(header: Header) -> int | None:
    """Channels that the UNet of a file takes: 4, and more for inpainting, edits, depth; None without a UNet."""
    first = header.get(f"{ldm_unet.PREFIX}.input_blocks.0.0.weight")
    return None if first is None or len(first.shape) != 4 else first.shape[1]


def has_vector(header: Header) -> bool:
    """Whether the UNet of a file adds a vector to its time embedding, as SDXL does."""
    return f"{ldm_unet.PREFIX}.label_emb.0.0.weight" in header


def unet_component(architecture: UNetArchitecture) -> Component:
    """The UNet on the meta device."""
    layout = ldm_unet.UNetLayout(
        architecture.levels,
        architecture.blocks_per_level,
        architecture.attention_levels,
        architecture.middle_depth > 0,
    )
    with on_meta():
        return Component(
            "unet",
            build_unet(architecture),
            ldm_unet.unet_keymap(layout),
            (f"{ldm_unet.PREFIX}.",),
            "It may be a VAE or a text encoder: choose a full checkpoint.",
        )


def vae_component(architecture: VaeArchitecture) -> Component:
    """The autoencoder on the meta device."""
    with on_meta():
        return Component(
            "vae",
            build_vae(architecture),
            ldm_vae.vae_keymap(architecture.levels, architecture.blocks_per_level),
            (f"{ldm_vae.PREFIX}.",),
            "It may be a pruned file without a VAE: choose a full checkpoint.",
        )


def build_unet(architecture: UNetArchitecture) -> UNet2DConditionModel:
    """An uninitialised UNet of these sizes; wrap the call in `hollow()` to allocate nothing."""
    attention = architecture.attention_levels
    levels = range(architecture.levels)
    down = [_depths(depths) for depths in architecture.down_depths]
    if architecture.middle_depth and architecture.levels - 1 not in attention:
        down[-1] = architecture.middle_depth  # diffusers takes the middle's depth from here
    if architecture.middle_depth and down[-1] != architecture.middle_depth:
        raise ValueError("the middle block must have as many transformer blocks as the coarsest level")
    unet = UNet2DConditionModel(
        in_channels=architecture.in_channels,
        out_channels=architecture.out_channels,
        block_out_channels=architecture.widths,
        layers_per_block=architecture.blocks_per_level,
        down_block_types=tuple("CrossAttnDownBlock2D" if i in attention else "DownBlock2D" for i in levels),
        mid_block_type="UNetMidBlock2DCrossAttn" if architecture.middle_depth else "UNetMidBlock2D",
        up_block_types=tuple("CrossAttnUpBlock2D" if i in attention else "UpBlock2D" for i in reversed(levels)),
        cross_attention_dim=architecture.context_width,
        # diffusers' old name: it means the number of heads
        attention_head_dim=tuple(architecture.heads_at(level) for level in levels),
        transformer_layers_per_block=tuple(down),
        reverse_transformer_layers_per_block=tuple(_depths(depths) for depths in architecture.up_depths),
        use_linear_projection=architecture.linear_projection,
        class_embed_type="projection" if architecture.vector_width else None,
        projection_class_embeddings_input_dim=architecture.vector_width,
        norm_num_groups=NORM_GROUPS,
    )
    return use_ldm_upsampling(unet)


def build_vae(architecture: VaeArchitecture) -> AutoencoderKL:
    """An uninitialised autoencoder of these sizes; see `build_unet`."""
    return AutoencoderKL(
        in_channels=architecture.in_channels,
        out_channels=architecture.out_channels,
        latent_channels=architecture.latent_channels,
        block_out_channels=architecture.widths,
        layers_per_block=architecture.blocks_per_level,
        down_block_types=("DownEncoderBlock2D",) * architecture.levels,
        up_block_types=("UpDecoderBlock2D",) * architecture.levels,
        norm_num_groups=NORM_GROUPS,
        use_quant_conv=architecture.has_quant_conv,
        use_post_quant_conv=architecture.has_quant_conv,
    )


def run_unet(unet: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
    """A UNet's prediction, see `ModelFamily.run`."""
    output: Tensor = unet(x, timesteps, encoder_hidden_states=crossattn, class_labels=vector, return_dict=False)[0]
    return output


def unet_inputs(unet: Any) -> DenoiserInputSizes:
    """See `ModelFamily.input_sizes`."""
    config = unet.config
    vector = config.projection_class_embeddings_input_dim
    return DenoiserInputSizes(config.in_channels, config.cross_attention_dim, vector)


def prediction_in(metadata: Mapping[str, str]) -> str | None:
    """What a file's metadata says that the network predicts."""
    return PREDICTIONS.get(metadata.get(PREDICTION_KEY, "").lower())


def is_left_over(key: str) -> bool:
    """Whether a tensor is of the training, or follows from the YAML."""
    return LEFT_OVER.search(key) is not None


def _depths(depths: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where all are equal; levels without attention count as 1, which diffusers then ignores."""
    if any(depths) and not all(depths):
        raise ValueError("a level with attention behind only some of its residual blocks cannot be built")
    return max(depths[0], 1) if len(set(depths)) == 1 else depths
