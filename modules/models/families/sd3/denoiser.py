"""SD3's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from modules.errors import InvalidValueError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import Denoiser, DenoiserInputSizes
from modules.models.families.sd3.layout import EMBEDDING, dual_layers_of, layers_of, transformer_rows
from modules.models.names.component import Component, Header, meta_module, reading_sizes

CHANNELS_PER_HEAD = 64
MISSING_HINT = "It may be a text encoder or a VAE: choose a full checkpoint."


def transformer_component(header: Header, latent_side: int) -> Component:
    """The transformer; `latent_side` is that of the images it was trained on."""
    rows = transformer_rows(header)
    with reading_sizes():
        keymap, layers, dual = rows.keymap(), layers_of(rows.sources), tuple(sorted(dual_layers_of(rows.sources)))
        width, in_channels, patch, _ = header[EMBEDDING].shape
        context, text_width = header[f"{PREFIX}context_embedder.weight"].shape
        vector = header[f"{PREFIX}y_embedder.mlp.0.weight"].shape[1]
        out = header[f"{PREFIX}final_layer.linear.weight"].shape[0] // patch**2
        positions = round(header[f"{PREFIX}pos_embed"].shape[1] ** 0.5)
    heads = max(width // CHANNELS_PER_HEAD, 1)
    module = meta_module(
        "diffusers.SD3Transformer2DModel",
        sample_size=latent_side,
        patch_size=patch,
        in_channels=in_channels,
        num_layers=layers,
        attention_head_dim=width // heads,
        num_attention_heads=heads,
        joint_attention_dim=text_width,
        caption_projection_dim=context,
        pooled_projection_dim=vector,
        out_channels=out,
        pos_embed_max_size=positions,
        dual_attention_layers=dual,
        qk_norm="rms_norm" if f"{PREFIX}joint_blocks.0.x_block.attn.ln_q.weight" in header else None,
    )
    return Component("unet", module, keymap, (PREFIX,), MISSING_HINT)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents of an odd side are continued by their last row or column for it.

    Raises `InvalidValueError` for an image that is larger than the model's table of positions.
    """
    config = transformer.config
    height, width = inputs.x.shape[-2:]
    patch, most = int(config.patch_size), int(config.patch_size * config.pos_embed_max_size)
    if max(height, width) > most:
        raise InvalidValueError(
            f"This model makes images of at most {most} latents a side ({most * 8} pixels), and {max(height, width)} "
            "were asked for. Choose a smaller size; hires fix with an upscaler on pixels goes no further either."
        )
    x = F.pad(inputs.x, (0, -width % patch, 0, -height % patch), mode="replicate")
    output: Tensor = transformer(
        x,  # not by name: token merging looks at it
        encoder_hidden_states=inputs.crossattn,
        pooled_projections=inputs.vector,
        timestep=inputs.timesteps,
        return_dict=False,
        **inputs.extra,
    )[0]
    return output[..., :height, :width]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels, config.joint_attention_dim, config.pooled_projection_dim)


DENOISER = Denoiser(
    build=lambda header, architecture: (transformer_component(header, architecture.latent_side),),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
)
