"""The text encoders of SD3 files: CLIP-L, and OpenCLIP bigG with transformers' names."""

from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.errors import CheckpointError
from modules.models.families.family import Component, Header, on_meta
from modules.models.families.ldm.text import CHANNELS_PER_HEAD, END_TOKEN
from modules.models.families.sd3.layout import CLIP_G_PREFIX, CLIP_L_PREFIX
from modules.models.layouts.keymaps.clip_text import PARTS, clip_text_keymap
from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair

HINT = "Put it into the folder text_encoder next to the checkpoints' folder (models/text_encoder)."
CLIP_L_PROJECTION = f"{CLIP_L_PREFIX}.pooled_projection"
"""A projection of CLIP-L's pooled output, which original files never apply (they may hold one all the same, called
`text_projection`): folders of diffusers can have one that does something."""


def clip_l_keymap(with_projection: bool = False) -> KeyMap:
    """CLIPTextModel, or CLIPTextModelWithProjection where the pooled output is projected."""
    if not with_projection:
        return clip_text_keymap(prefix=CLIP_L_PREFIX)
    return KeyMap((*_level_deeper(CLIP_L_PREFIX), ModulePair(CLIP_L_PROJECTION, "text_projection")))


def clip_g_keymap() -> KeyMap:
    """CLIPTextModelWithProjection."""
    return KeyMap(
        (*_level_deeper(CLIP_G_PREFIX), ModulePair(f"{CLIP_G_PREFIX}.text_projection", "text_projection")),
    )


def _level_deeper(prefix: str) -> tuple[ModulePair, ...]:
    return tuple(ModulePair(f"{prefix}.text_model.{part}", f"text_model.{part}") for part in PARTS)


def encoder_components(header: Header) -> tuple[Component, ...]:
    """Raises `CheckpointError` that names the file that is missing."""
    projects = f"{CLIP_L_PROJECTION}.weight" in header
    model_class = CLIPTextModelWithProjection if projects else CLIPTextModel
    with on_meta():
        clip_l = model_class(_config(header, CLIP_L_PREFIX, "clip_l.safetensors", "quick_gelu"))
        clip_g = CLIPTextModelWithProjection(_config(header, CLIP_G_PREFIX, "clip_g.safetensors", "gelu"))
    return (
        Component("text_encoder", clip_l, clip_l_keymap(projects), (f"{CLIP_L_PREFIX}.",), HINT),
        Component("text_encoder_2", clip_g, clip_g_keymap(), (f"{CLIP_G_PREFIX}.",), HINT),
    )


def _config(header: Header, prefix: str, file: str, activation: str) -> CLIPTextConfig:
    level = f"{prefix}.text_model"
    try:
        vocabulary, width = header[f"{level}.embeddings.token_embedding.weight"].shape
        positions, _ = header[f"{level}.embeddings.position_embedding.weight"].shape
        mlp_width, _ = header[f"{level}.encoder.layers.0.mlp.fc1.weight"].shape
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"it has no text encoder (looked for {level}.*), and {file} was not found. {HINT}"
        ) from error
    projection = header.get(f"{prefix}.text_projection.weight")
    layers = {key.removeprefix(f"{level}.encoder.layers.").split(".")[0] for key in header if f"{level}.enc" in key}
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp_width,
        projection_dim=projection.shape[0] if projection is not None else width,
        num_hidden_layers=len(layers),
        num_attention_heads=max(width // CHANNELS_PER_HEAD, 1),
        max_position_embeddings=positions,
        hidden_act=activation,
        eos_token_id=END_TOKEN,
    )
