"""From a file to an empty network of transformers: its sizes from config.json next to it, else from its tensors.

SAM 2 (Ravi et al. 2024, arXiv:2408.00714) is read with the names of transformers and of its own repository
(facebookresearch/sam2); CLIPSeg (Lueddecke and Ecker 2022, arXiv:2112.10003) and OWLv2 (Minderer et al. 2023,
arXiv:2306.09683) with those of transformers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lib_segmentation.files import CLIPSEG, OWL, SAM
from modules.errors import CheckpointError, first_line
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.auxiliary import AuxiliaryParts, Builder
from modules.models.names.component import Component, on_meta
from modules.models.names.row_map import RowMap, Source
from modules.system.bounded import read_json_file

Shapes = Mapping[str, tuple[int, ...]]
MAX_SIZE = 2**17
"""Largest number of a config.json that can be a width, a side or a count."""
HEAD_WIDTH = 64
HIERA: Mapping[tuple[int, int], dict[str, Any]] = {
    (96, 12): {"blocks": [1, 2, 7, 2], "heads": 1, "windows": [8, 4, 14, 7], "global": [5, 7, 9]},
    (96, 16): {"blocks": [1, 2, 11, 2], "heads": 1, "windows": [8, 4, 14, 7], "global": [7, 10, 13]},
    (112, 24): {"blocks": [2, 3, 16, 3], "heads": 2, "windows": [8, 4, 14, 7], "global": [12, 16, 20]},
    (144, 48): {"blocks": [2, 6, 36, 4], "heads": 2, "windows": [8, 4, 16, 8], "global": [23, 33, 43]},
}
"""The published sizes of SAM 2 (tiny, small, base+, large), by width and number of blocks."""
VIDEO = re.compile(
    r"^(memory_|maskmem_|mask_downsample|obj(ect)?_p|temporal_pos|no_mem(ory)?_pos|no_obj|occlusion_spatial)"
)
"""Tensors that SAM 2 has for videos alone, in both layouts."""
GAUSSIAN = "positional_encoding_gaussian_matrix"
ORIGINAL = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"^shared_image_embedding\.positional_embedding$", f"prompt_encoder.pe_layer.{GAUSSIAN}"),
        (r"^no_memory_embedding$", "no_mem_embed"),
        (r"^vision_encoder\.backbone\.", "image_encoder.trunk."),
        (r"^vision_encoder\.neck\.convs\.(\d+)\.", r"image_encoder.neck.convs.\1.conv."),
        (r"patch_embed\.projection", "patch_embed.proj"),
        (r"((?:blocks|transformer\.layers)\.\d+)\.layer_norm(\d)", r"\1.norm\2"),
        (r"layer_norm_final_attn", "norm_final_attn"),
        (r"\.o_proj\.", ".out_proj."),
        (r"\.mlp\.proj_in\.", ".mlp.layers.0."),
        (r"\.mlp\.proj_out\.", ".mlp.layers.1."),
        (r"(mlps\.\d+|_head)\.layers\.0\.", r"\1.layers.1."),
        (r"(mlps\.\d+|_head)\.proj_in\.", r"\1.layers.0."),
        (r"(mlps\.\d+|_head)\.proj_out\.", r"\1.layers.2."),
        (r"\.upscale_conv1\.", ".output_upscaling.0."),
        (r"\.upscale_layer_norm\.", ".output_upscaling.1."),
        (r"\.upscale_conv2\.", ".output_upscaling.3."),
        (r"mask_embed\.conv1\.(?=\w+$)", "mask_downscaling.0."),
        (r"mask_embed\.layer_norm1\.", "mask_downscaling.1."),
        (r"mask_embed\.conv2\.", "mask_downscaling.3."),
        (r"mask_embed\.layer_norm2\.", "mask_downscaling.4."),
        (r"mask_embed\.conv3\.", "mask_downscaling.6."),
        (r"^prompt_encoder\.point_embed\.", "prompt_encoder.point_embeddings."),
        (r"^(mask_decoder|prompt_encoder)\.", r"sam_\1."),
    )
)
"""From transformers' names of SAM 2 to those of its repository, replaced in turn."""


class PointTypes(nn.ModuleList):
    """The embeddings of the types of points as one table, of which the original layout has a tensor for each type."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__(nn.Embedding(1, width) for _ in range(count))

    @property
    def weight(self) -> Tensor:
        """[types, width]."""
        return torch.cat([one.weight for one in self])  # type: ignore[misc]

    def forward(self, types: Tensor) -> Tensor:
        """[...] to [..., width]."""
        return functional.embedding(types, self.weight)


class NoPositions(nn.Module):
    """Stands for the encodings of places that only SAM 2's memory of videos reads; transformers' own keeps the last of
    them on the device for good."""

    def forward(self, shape: object, device: torch.device, dtype: torch.dtype, mask: object = None) -> Tensor:
        """[1,1,1,1], whatever the shape."""
        return torch.zeros(1, 1, 1, 1, device=device, dtype=dtype)


def build_sam(file: TensorSource, model: object) -> AuxiliaryParts:
    """A `Builder` of SAM 2."""
    from transformers import Sam2Config, Sam2Model

    shapes = shapes_of(file)
    is_original = "sam_mask_decoder.iou_token.weight" in shapes
    trunk = "image_encoder.trunk" if is_original else "vision_encoder.backbone"
    given = settings_of(file, f"{trunk}.blocks.")
    names = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    sizes = {name: given[name] for name in names if name in given} if given else _hiera(file, shapes, trunk)
    network = _made(file, lambda: Sam2Model(Sam2Config(**sizes)))
    # Both parts read one table, which files hold once or twice.
    encoder = network.prompt_encoder
    del encoder.shared_embedding
    encoder.__dict__["shared_embedding"] = network.shared_image_embedding
    twice = "prompt_encoder.shared_embedding.positional_embedding"
    network.vision_encoder.neck.position_encoding = NoPositions()
    if is_original:
        with on_meta():
            encoder.point_embed = PointTypes(encoder.point_embed.num_embeddings, encoder.hidden_size)
    sources = {name: original_name(name) if is_original else name for name in network.state_dict()}
    if twice in shapes and "shared_image_embedding.positional_embedding" not in shapes:
        sources["shared_image_embedding.positional_embedding"] = twice
    unused = {twice} - set(sources.values())
    return _parts(network, sources, lambda key: key in unused or VIDEO.match(key) is not None)


def build_clipseg(file: TensorSource, model: object) -> AuxiliaryParts:
    """A `Builder` of CLIPSeg."""
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    shapes = shapes_of(file)
    sizes = settings_of(file, "clip.vision_model.encoder.layers.") or {
        **_clip_sizes(shapes, "clip."),
        "projection_dim": shapes["clip.visual_projection.weight"][0],
        "reduce_dim": shapes["decoder.film_mul.weight"][0],
        "decoder_intermediate_size": shapes["decoder.layers.0.mlp.fc1.weight"][0],
        "use_complex_transposed_convolution": "decoder.transposed_convolution.0.weight" in shapes,
    }
    network = _made(file, lambda: CLIPSegForImageSegmentation(CLIPSegConfig(**sizes)))
    return _parts(network, {name: name for name in network.state_dict()}, _is_counted)


def build_owl(file: TensorSource, model: object) -> AuxiliaryParts:
    """A `Builder` of OWLv2."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    shapes = shapes_of(file)
    sizes = settings_of(file, "owlv2.vision_model.encoder.layers.") or {
        **_clip_sizes(shapes, "owlv2."),
        "projection_dim": shapes["owlv2.visual_projection.weight"][0],
    }
    network = _made(file, lambda: Owlv2ForObjectDetection(Owlv2Config(**sizes)))
    # No file holds it: it follows from the number of patches.
    network.box_bias = network.compute_box_bias(network.num_patches_height, network.num_patches_width)
    return _parts(network, {name: name for name in network.state_dict()}, _is_counted)


BUILDERS: Mapping[str, Builder] = {SAM: build_sam, CLIPSEG: build_clipseg, OWL: build_owl}


def shapes_of(file: TensorSource) -> Shapes:
    """Return the shapes of a file's tensors."""
    return {key: entry.shape for key, entry in file.entries.items()}


def settings_of(file: TensorSource, blocks: str) -> dict[str, Any]:
    """Read config.json next to a file; empty without one. Raises `CheckpointError` where that describes more than the
    file can hold."""
    path = file.path.with_name("config.json")
    if not path.is_file():
        return {}
    try:
        given = read_json_file(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if not isinstance(given, dict):
        raise _unusable(path, "it holds no settings")
    count = sum(key.startswith(blocks) for key in file.entries)
    for name, number in _numbers(given):
        if abs(number) > MAX_SIZE or (("layers" in name or "blocks" in name) and number > count):
            raise _unusable(path, f"{name} is {number}, which {file.path.name} does not hold")
    return {key: value for key, value in given.items() if key not in ("architectures", "transformers_version", "dtype")}


def _unusable(path: Path, why: object) -> CheckpointError:
    return CheckpointError(f"{path} cannot be used: {why}. Get it again, or remove it.")


def _numbers(given: object, name: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers of some settings, with the name of the setting."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            yield from _numbers(value, str(key))
    elif isinstance(given, list):
        for value in given:
            yield from _numbers(value, name)
    elif isinstance(given, int):
        yield name, given


def _hiera(file: TensorSource, shapes: Shapes, trunk: str) -> dict[str, Any]:
    """Return the sizes of a published SAM 2."""
    width = shapes[f"{trunk}.pos_embed"][1]
    blocks = len({key.split(".")[3] for key in shapes if key.startswith(f"{trunk}.blocks.")})
    row = HIERA.get((width, blocks))
    if row is None:
        raise CheckpointError(
            f"{file.path.name} is a SAM 2 of {blocks} blocks and {width} channels, which is none of the published "
            "sizes. Put its config.json, in transformers' layout, next to it in a folder of its own."
        )
    widths = [width * 2**stage for stage in range(4)]
    backbone = {
        "model_type": "sam2_hiera_det_model",
        "hidden_size": width,
        "num_attention_heads": row["heads"],
        "blocks_per_stage": row["blocks"],
        "embed_dim_per_stage": widths,
        "num_attention_heads_per_stage": [row["heads"] * 2**stage for stage in range(4)],
        "window_size_per_stage": row["windows"],
        "global_attention_blocks": row["global"],
        "window_positional_embedding_background_size": list(shapes[f"{trunk}.pos_embed"][2:]),
    }
    vision = {"model_type": "sam2_vision_model", "backbone_config": backbone, "backbone_channel_list": widths[::-1]}
    return {"vision_config": vision}


def _clip_sizes(shapes: Shapes, prefix: str) -> dict[str, Any]:
    """Return the sizes of CLIP's two towers; heads have 64 channels."""
    vision, text = f"{prefix}vision_model.", f"{prefix}text_model."
    patch = shapes[f"{vision}embeddings.patch_embedding.weight"][-1]
    side = patch * math.isqrt(shapes[f"{vision}embeddings.position_embedding.weight"][0] - 1)
    words = shapes[f"{text}embeddings.token_embedding.weight"][0]
    length = shapes[f"{text}embeddings.position_embedding.weight"][0]
    return {
        "vision_config": {**_tower(shapes, vision), "patch_size": patch, "image_size": side},
        "text_config": {**_tower(shapes, text), "vocab_size": words, "max_position_embeddings": length},
    }


def _tower(shapes: Shapes, prefix: str) -> dict[str, int]:
    inner, width = shapes[f"{prefix}encoder.layers.0.mlp.fc1.weight"]
    at = len(prefix.split(".")) + 1
    layers = {key.split(".")[at] for key in shapes if key.startswith(f"{prefix}encoder.layers.")}
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": len(layers)}
    return {**sizes, "num_attention_heads": max(1, width // HEAD_WIDTH)}


def _made(file: TensorSource, make: Any) -> Any:
    """An empty network. Raises `CheckpointError` for impossible sizes."""
    try:
        with on_meta():
            return make()
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        raise CheckpointError(f"{file.path.name}: its sizes describe no model: {first_line(error)}") from error


def original_name(name: str) -> str:
    """Return what SAM 2's own repository calls a tensor."""
    for pattern, word in ORIGINAL:
        name = pattern.sub(word, name)
    return name


def _parts(network: nn.Module, sources: Mapping[str, str], ignores: Any) -> AuxiliaryParts:
    keymap = RowMap({ours: Source(theirs) for ours, theirs in sources.items()}).keymap()
    return AuxiliaryParts(Component("segmentation", network, keymap, ("",), ""), ignores, network.config)


def _is_counted(key: str) -> bool:
    """Whether a tensor counts places, which older files hold."""
    return key.endswith("position_ids")
