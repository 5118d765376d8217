"""Chroma's transformer: its layers by name, sizes from the tensors, the module on the meta device, and its calls."""

from typing import Any

import torch
from torch import Tensor

from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import ModelInputs, rows_by_length
from modules.models.families.exact_times import exact_times
from modules.models.families.family import Denoiser, DenoiserInputSizes, UsualSettings, denoiser_alone, usual_by_name
from modules.models.families.flux1.denoiser import AXES, HEAD_WIDTH, TRAINED_TIMESTEPS, check_width
from modules.models.families.flux1.layout import BLOCKS, OUTER, width_of
from modules.models.families.layer_table import Layer, LayerTable
from modules.models.families.packing import PATCH, packed, unpacked
from modules.models.libraries import library_name
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes
from modules.models.names.row_map import RowMap

APPROXIMATOR = "distilled_guidance_layer"
"""The network that the modulation of all blocks is approximated with."""
TABLE = LayerTable(
    (
        *BLOCKS,
        *OUTER,
        Layer(f"{APPROXIMATOR}.in_proj", (f"{APPROXIMATOR}.in_proj",)),
        Layer(f"{APPROXIMATOR}.out_proj", (f"{APPROXIMATOR}.out_proj",)),
        Layer(f"{APPROXIMATOR}.layers.{{}}.in_layer", (f"{APPROXIMATOR}.layers.{{}}.linear_1",)),
        Layer(f"{APPROXIMATOR}.layers.{{}}.out_layer", (f"{APPROXIMATOR}.layers.{{}}.linear_2",)),
        Layer(f"{APPROXIMATOR}.norms.{{}}", (f"{APPROXIMATOR}.norms.{{}}",), weight="scale"),
    )
)
SKIP = (rf"^{APPROXIMATOR}\.", r"^x_embedder$", r"^context_embedder$", r"^proj_out$")
"""Layers that 8-bit formats leave alone: those at the ends, and the approximator, which all blocks hang on."""
INDEX_CHANNELS = 4  # of the approximator's input the share of one sinusoidal embedding


def transformer_rows(header: Header) -> RowMap:
    """Return the row map of a checkpoint's transformer."""
    return TABLE.row_map(header, PREFIX, width_of(header))


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    width = width_of(header)
    with reading_sizes():
        channels = header[f"{PREFIX}img_in.weight"].shape[1]
        context = header[f"{PREFIX}txt_in.weight"].shape[1]
        out = header[f"{PREFIX}final_layer.linear.weight"].shape[0]
        hidden, inputs = header[f"{PREFIX}{APPROXIMATOR}.in_proj.weight"].shape
    check_width(width)
    module = meta_module(
        "diffusers.ChromaTransformer2DModel",
        in_channels=channels,
        out_channels=out,
        num_layers=TABLE.count(rows.sources, "double_blocks.{}.img_attn.qkv"),
        num_single_layers=TABLE.count(rows.sources, "single_blocks.{}.linear1"),
        attention_head_dim=HEAD_WIDTH,
        num_attention_heads=width // HEAD_WIDTH,
        joint_attention_dim=context,
        axes_dims_rope=AXES,
        approximator_num_channels=inputs,
        approximator_hidden_dim=hidden,
        approximator_layers=TABLE.count(rows.sources, f"{APPROXIMATOR}.layers.{{}}.in_layer"),
    )
    _number_vectors(module, inputs)
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def _number_vectors(module: Any, inputs: int) -> None:
    """Give the embeddings [vectors, inputs / 2] of the numbers of the modulation vectors their values, which no file
    holds."""
    embedding = module.time_text_embed
    numbers = torch.arange(embedding.mod_proj.shape[0]) * int(TRAINED_TIMESTEPS)
    values = library_name("diffusers.models.embeddings.get_timestep_embedding")(
        numbers, 2 * (inputs // INDEX_CHANNELS), flip_sin_to_cos=True, downscale_freq_shift=0
    )
    embedding.register_buffer("mod_proj", values, persistent=False)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Texts of unequal length are called one after the other, each without the
    padding that the mask leaves out: it has no position, so nothing else depends on it."""
    x, ids, (height, width) = packed(inputs.x)
    output = torch.empty_like(x[..., : transformer.proj_out.out_features])
    for rows, own in rows_by_length(inputs):
        with exact_times(transformer.time_text_embed, own.timesteps):
            output[rows] = transformer(
                x[rows],  # not by name: hooks look at it
                encoder_hidden_states=own.crossattn,
                timestep=own.timesteps / TRAINED_TIMESTEPS,
                img_ids=ids,
                txt_ids=ids.new_zeros(own.crossattn.shape[1], len(AXES)),
                return_dict=False,
                **own.extra,
            )[0]
    return unpacked(output, height, width)[..., : inputs.x.shape[-2], : inputs.x.shape[-1]]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels // PATCH**2, config.joint_attention_dim)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    usual_settings=usual_by_name(("flash",), UsualSettings(steps=12), UsualSettings(steps=26, cfg_scale=4.0)),
)
