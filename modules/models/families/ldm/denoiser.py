"""The UNet of the families in the latent-diffusion layout: the module on the meta device, and how it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional as F

from modules.models.families.architecture import UNetArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import Blocks, Denoiser, DenoiserInputSizes
from modules.models.libraries import library_name
from modules.models.names import ldm_unet
from modules.models.names.component import Component, on_meta

if TYPE_CHECKING:
    from diffusers import UNet2DConditionModel

NORM_GROUPS = 32


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


def build_unet(architecture: UNetArchitecture) -> UNet2DConditionModel:
    """An uninitialised UNet of these sizes; call it under `on_meta` to allocate nothing."""
    attention = architecture.attention_levels
    levels = range(architecture.levels)
    down = [_depths(depths) for depths in architecture.down_depths]
    if architecture.middle_depth and architecture.levels - 1 not in attention:
        down[-1] = architecture.middle_depth  # diffusers takes the middle's depth from here
    if architecture.middle_depth and down[-1] != architecture.middle_depth:
        raise ValueError("the middle block must have as many transformer blocks as the coarsest level")
    unet = library_name("diffusers.UNet2DConditionModel")(
        in_channels=architecture.in_channels,
        out_channels=architecture.out_channels,
        block_out_channels=architecture.widths,
        layers_per_block=architecture.blocks_per_level,
        down_block_types=tuple("CrossAttnDownBlock2D" if i in attention else "DownBlock2D" for i in levels),
        mid_block_type=_middle(architecture),
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


def _middle(architecture: UNetArchitecture) -> str | None:
    if not architecture.has_middle:
        return None
    return "UNetMidBlock2DCrossAttn" if architecture.middle_depth else "UNetMidBlock2D"


def run_unet(unet: Any, inputs: ModelInputs) -> Tensor:
    """A UNet's prediction, see `Denoiser.run`."""
    extra = {name: list(value) if isinstance(value, tuple) else value for name, value in inputs.extra.items()}
    output: Tensor = unet(
        inputs.x,
        inputs.timesteps,
        encoder_hidden_states=inputs.crossattn,
        class_labels=inputs.vector,
        return_dict=False,
        **extra,
    )[0]
    return output


def unet_inputs(unet: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = unet.config
    vector = config.projection_class_embeddings_input_dim
    return DenoiserInputSizes(config.in_channels, config.cross_attention_dim, vector)


def _depths(depths: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where all are equal; levels without attention count as 1, which diffusers then ignores."""
    if any(depths) and not all(depths):
        raise ValueError("a level with attention behind only some of its residual blocks cannot be built")
    return max(depths[0], 1) if len(set(depths)) == 1 else depths


class LdmUpsample(nn.Module):
    """Double with nearest neighbours, convolve, then fit to `output_size`; takes over the convolution it replaces.

    A 12x12 latent becomes 6, 3, 2 on the way down; on the way up 2 becomes 4, which does not fit next to the 3 of the
    skip connection. diffusers resizes straight to 3 and convolves there; the original doubles, convolves, and then
    resizes to the skip's size. For even sizes both are the same. Images of hires fix depend on it.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, hidden_states: Tensor, output_size: tuple[int, int] | None = None) -> Tensor:
        """[B,C,h,w] to [B,C,2h,2w], or to `output_size` (height, width)."""
        result: Tensor = self.conv(F.interpolate(hidden_states, scale_factor=2.0, mode="nearest"))
        if output_size is not None and tuple(result.shape[2:]) != tuple(output_size):
            result = F.interpolate(result, size=tuple(output_size), mode="nearest")
        return result


def use_ldm_upsampling(unet: UNet2DConditionModel) -> UNet2DConditionModel:
    """Put `LdmUpsample` instead of the UNet's own upsamplers; names of parameters stay."""
    for block in unet.up_blocks:
        if block.upsamplers is not None:
            block.upsamplers = nn.ModuleList(LdmUpsample(upsampler.conv) for upsampler in block.upsamplers)
    return unet


DENOISER = Denoiser(
    build=lambda header, architecture: (unet_component(architecture.unet_sizes),),
    run=run_unet,
    sizes=unet_inputs,
    blocks=Blocks(
        decoded=("ResnetBlock2D", "Transformer2DModel", "TimestepEmbedding", "Downsample2D", "Upsample2D"),
        compiled=("ResnetBlock2D",),
        stacked="Transformer2DModel",
        mergeable="BasicTransformerBlock",
    ),
    runs_on_meta=True,
)
