"""Key maps derived from diffusers' converters, by running them on addresses of rows."""

from collections.abc import Iterator, Mapping

import pytest
import torch
from diffusers import FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.names.row_map import RowMap, Shape, Source, original_shapes, row_map, whole_shapes

WIDTH = 3072
ENDS = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
DOUBLE = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
DOUBLE_NORMS = {
    "attn.norm_q": "img_attn.norm.query_norm",
    "attn.norm_k": "img_attn.norm.key_norm",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
}
SINGLE = {"norm.linear": "modulation.lin", "proj_out": "linear2"}
SINGLE_NORMS = {"attn.norm_q": "norm.query_norm", "attn.norm_k": "norm.key_norm"}


def flux_parameters() -> dict[str, Shape]:
    """Names and shapes of the full-size model in diffusers."""
    with torch.device("meta"):
        model = FluxTransformer2DModel(guidance_embeds=True)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def flux_header(ours: Mapping[str, Shape]) -> dict[str, Shape]:
    """The same in the original layout."""
    return dict(_original(ours))


def _original(ours: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
    def both(there: str, here: str, parts: tuple[str, ...] = ("",)) -> Iterator[tuple[str, Shape]]:
        for kind in ("weight", "bias"):
            shapes = [ours[f"{here}{part}.{kind}"] for part in parts]
            yield f"{there}.{kind}", (sum(shape[0] for shape in shapes), *shapes[0][1:])

    for here, there in ENDS.items():
        yield from both(there, here)
    for number in range(19):
        here, there = f"transformer_blocks.{number}", f"double_blocks.{number}"
        for part, original in DOUBLE.items():
            yield from both(f"{there}.{original}", f"{here}.{part}")
        for part, original in DOUBLE_NORMS.items():
            yield f"{there}.{original}.scale", ours[f"{here}.{part}.weight"]
        yield from both(f"{there}.img_attn.qkv", f"{here}.attn.", ("to_q", "to_k", "to_v"))
        yield from both(f"{there}.txt_attn.qkv", f"{here}.attn.", ("add_q_proj", "add_k_proj", "add_v_proj"))
    for number in range(38):
        here, there = f"single_transformer_blocks.{number}", f"single_blocks.{number}"
        for part, original in SINGLE.items():
            yield from both(f"{there}.{original}", f"{here}.{part}")
        for part, original in SINGLE_NORMS.items():
            yield f"{there}.{original}.scale", ours[f"{here}.{part}.weight"]
        yield from both(f"{there}.linear1", f"{here}.", ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"))


@pytest.fixture(scope="module")
def flux() -> RowMap:
    return row_map(convert_flux_transformer_checkpoint_to_diffusers, flux_header(flux_parameters()))


def test_a_full_size_flux_is_mapped_whole(flux: RowMap) -> None:
    ours = flux_parameters()
    header = flux_header(ours)
    assert len(header) == 780 and len(flux.sources) == 1160
    assert flux.sources.keys() == ours.keys() and not flux.missing
    assert {source.key for source in flux.sources.values()} == header.keys()
    for name, source in flux.sources.items():
        rows = source.rows or ((0, header[source.key][0]),)
        assert (sum(end - begin for begin, end in rows), *header[source.key][1:]) == ours[name]
    several = [name for name, source in flux.sources.items() if source.rows and len(source.rows) > 1]
    assert several == ["norm_out.linear.weight", "norm_out.linear.bias"]


def test_every_row_of_a_fused_tensor_is_used_once(flux: RowMap) -> None:
    header = flux_header(flux_parameters())
    for key, sources in flux.by_key().items():
        if sources[0].rows is None:
            assert len(sources) == 1
            continue
        runs = sorted(run for source in sources for run in source.rows or ())
        assert [begin for begin, _ in runs] == [0, *(end for _, end in runs[:-1])]
        assert runs[-1][1] == header[key][0]


def test_parts_are_named_so_that_layers_stay_together(flux: RowMap) -> None:
    weight, bias = (flux.sources[f"single_transformer_blocks.0.proj_mlp.{leaf}"] for leaf in ("weight", "bias"))
    assert weight == Source("single_blocks.0.linear1.weight", ((3 * WIDTH, 7 * WIDTH),))
    assert weight.name == "single_blocks.0.linear1.rows_9216_21504.weight"
    assert weight.name.removesuffix("weight") == bias.name.removesuffix("bias")
    for source in flux.sources.values():
        assert Source.of(source.name) == source


def test_the_key_map_goes_both_ways(flux: RowMap) -> None:
    keymap = flux.keymap()
    for name, source in flux.sources.items():
        assert keymap.to_original(name) == source.name
        assert keymap.to_ours(source.name) == name
    assert keymap.to_ours("img_in.scale") is None and keymap.to_original("x_embedder") is None


def test_a_header_of_parts_is_that_of_the_whole(flux: RowMap) -> None:
    ours = flux_parameters()
    parts = {source.name: ours[name] for name, source in flux.sources.items()}
    assert whole_shapes(parts) == flux_header(ours)


def convert(tensors: dict[str, Tensor]) -> Mapping[str, Tensor]:
    """A converter of two layers."""
    layers = max(int(name.split(".")[1]) for name in tensors) + 1
    converted: dict[str, Tensor] = {}
    for layer in range(layers):
        up, down = tensors.pop(f"layers.{layer}.both.weight").chunk(2)
        converted |= {f"blocks.{layer}.up.weight": up, f"blocks.{layer}.down.weight": down}
        converted[f"blocks.{layer}.norm.weight"] = tensors[f"layers.{layer}.norm.scale"]
    return converted


def test_names_and_shapes_of_a_file_follow_from_ours() -> None:
    ours = {"blocks.0.up.weight": (4, 3), "blocks.0.down.weight": (4, 3), "blocks.0.norm.weight": (5,)}
    shapes = original_shapes(convert, ["layers.0.both.weight"], ours)
    assert shapes == {"layers.0.both.weight": (8, 3), "layers.0.norm.scale": (5,)}
    assert row_map(convert, shapes, "top.").sources["blocks.0.down.weight"].name == "top.layers.0.both.rows_4_8.weight"


def test_a_tensor_that_is_not_there_is_named() -> None:
    found = row_map(convert, {"layers.0.both.weight": (8, 3)}, "top.")
    assert found.missing == ("top.layers.0.norm.scale",)
    assert found.sources["blocks.0.norm.weight"] == Source("top.layers.0.norm.scale")


def test_a_header_that_tells_no_depth_is_refused() -> None:
    with pytest.raises(CheckpointError, match="not whole"):
        row_map(convert, {})


def test_a_parameter_of_several_tensors_is_refused() -> None:
    def join(tensors: dict[str, Tensor]) -> Mapping[str, Tensor]:
        return {"all": torch.cat([tensors.pop("a"), tensors.pop("b")])}

    with pytest.raises(CheckpointError, match="made of 2 tensors"):
        row_map(join, {"a": (2, 1), "b": (2, 1)})
