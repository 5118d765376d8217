"""CLIP's text models: sizes from the tensors, modules on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from modules.errors import CheckpointError
from modules.models.libraries import library_name
from modules.models.names import clip_text
from modules.models.names.component import Component, Header, meta_module
from modules.models.names.keymap import KeyMap, ModulePair
from modules.system.bounded import read_json_file

if TYPE_CHECKING:
    from transformers import CLIPTextConfig

CONFIG, MODEL = "transformers.CLIPTextConfig", "transformers.CLIPTextModel"
PROJECTED = "transformers.CLIPTextModelWithProjection"
CHANNELS_PER_HEAD = 64  # of CLIP's and OpenCLIP's text towers
END_TOKEN = 49407
MISSING_HINT = "It may be a UNet-only file: choose a full checkpoint."
IN_PROJECTION = (r"\.self_attn\.[qkv]_proj$",)
"""Of plain formats: the original keeps these three in one bare parameter, which the reference UI does not cast."""
TEXT_PROJECTION = (r"^text_projection$",)


def clip_component(
    name: str, header: Header, prefix: str, config_folder: str | None = None, config_folders: tuple[Path, ...] = ()
) -> Component:
    """CLIP-L as transformers names it, at `prefix`; of very old files without the level `text_model`."""
    has_level = not any(key.startswith(f"{prefix}.embeddings.") for key in header)
    level = f"{prefix}.text_model" if has_level else prefix
    config = _named_config(config_folder, config_folders) or _config(
        header, level, _CLIP, f"no text encoder found (looked for {level}.*). {MISSING_HINT}", "quick_gelu"
    )
    module = meta_module(MODEL, config)
    return Component(name, module, clip_text.clip_text_keymap(has_level, prefix), (f"{prefix}.",), MISSING_HINT)


def open_clip_component(name: str, header: Header, prefix: str, with_projection: bool) -> Component:
    """OpenCLIP's text model at `prefix`, as `unfused` presents it."""
    missing = f"no text encoder found (looked for {prefix}.*). {MISSING_HINT}"
    config = _config(header, prefix, _OPEN_CLIP, missing, "gelu", f"{prefix}.text_projection.weight")
    module = meta_module(PROJECTED if with_projection else MODEL, config)
    keymap = clip_text.open_clip_keymap(prefix, int(config.num_hidden_layers), with_projection)
    return Component(name, module, keymap, (f"{prefix}.",), MISSING_HINT, IN_PROJECTION, TEXT_PROJECTION)


def separate_clip_component(
    name: str,
    header: Header,
    prefix: str,
    hint: str,
    vector_width: int | None = None,
    *,
    activation: str = "quick_gelu",
    projection: str = "",
) -> Component:
    """A CLIP text model that often is a file of its own: at `prefix`, with transformers' names. What the tensor
    `projection` (without ".weight"; "": none) holds is applied to its pooled output. Raises `CheckpointError`, which
    says by `hint` what to do, where it is missing or of another width than the vector that the denoiser takes
    (`vector_width`; None: any)."""
    whole = f"{prefix}.text_model"
    missing = f"it has no text encoder (looked for {whole}.*), and none was found. {hint}"
    config = _config(header, whole, _CLIP, missing, activation, f"{prefix}.text_projection.weight")
    if vector_width is not None and config.hidden_size != vector_width:
        path = header[f"{whole}.{_CLIP[0]}"].file
        raise CheckpointError(
            f"its text encoder{f' {path.name}' if path else ''} is {config.hidden_size} wide, and the model takes a "
            f"vector of {vector_width}. {hint}"
        )
    level = "text_model." if projection else ""
    module = meta_module(PROJECTED if projection else MODEL, config)
    return Component(name, module, separate_clip_keymap(prefix, projection, level), (f"{prefix}.",), hint)


def separate_clip_keymap(prefix: str, projection: str = "", level: str = "") -> KeyMap:
    """Return the key map of a text model with transformers' names at `prefix`; `level` is before its parts in our
    module."""
    pairs = [ModulePair(f"{prefix}.text_model.{part}", f"{level}{part}") for part in clip_text.PARTS]
    return KeyMap([*pairs, ModulePair(projection, "text_projection")] if projection else pairs)


# Where a text model of a layout has what its size follows from, below its level: tokens, positions, MLP, layers.
_CLIP = (
    "embeddings.token_embedding.weight",
    "embeddings.position_embedding.weight",
    "encoder.layers.0.mlp.fc1.weight",
    "encoder.layers.",
)
_OPEN_CLIP = (
    "token_embedding.weight",
    "positional_embedding.weight",
    "transformer.resblocks.0.mlp.c_fc.weight",
    "transformer.resblocks.",
)


def _config(
    header: Header, level: str, names: tuple[str, str, str, str], missing: str, activation: str, pooled: str = ""
) -> CLIPTextConfig:
    """From the shapes of a text model at `level`. `missing` is what `CheckpointError` says where there is none. A model
    with a pooled output that counts is projected by the tensor `pooled`, where the file has it."""
    tokens, places, mlp, layers = (f"{level}.{name}" for name in names)
    try:
        vocabulary, width = header[tokens].shape
        positions, _ = header[places].shape
        mlp_width, _ = header[mlp].shape
    except (KeyError, ValueError) as error:
        raise CheckpointError(missing) from error
    projected = header[pooled].shape[0] if pooled in header else width
    return library_name(CONFIG)(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=_count(header, layers),
        num_attention_heads=max(width // CHANNELS_PER_HEAD, 1),
        max_position_embeddings=positions,
        hidden_act=activation,
        **({"projection_dim": projected, "eos_token_id": END_TOKEN} if pooled else {}),
    )


def _count(header: Header, prefix: str) -> int:
    """How many layers are numbered behind `prefix`."""
    return len({key[len(prefix) :].split(".")[0] for key in header if key.startswith(prefix)})


def _named_config(name: str | None, folders: tuple[Path, ...]) -> CLIPTextConfig | None:
    """From the local folder that a YAML names, where that exists."""
    for folder in folders if name else ():
        config_file = folder / str(name) / "config.json"
        if config_file.is_file():
            try:
                return library_name(CONFIG).from_dict(read_json_file(config_file))
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{config_file.parent.name}/config.json cannot be used: {error}") from error
    return None
