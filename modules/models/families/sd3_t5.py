"""T5 (Raffel et al. 2020, arXiv:1910.10683; gated as in version 1.1), the third text encoder of SD3.

Names are those of transformers' `T5EncoderModel`; all sizes follow from the tensors.
"""

import re

from transformers import T5Config, T5EncoderModel

from modules.errors import CheckpointError
from modules.models.families.external_text_encoders import t5_tokenizer_file
from modules.models.families.family import Component, Header, OptionalEncoder
from modules.models.layouts.keymaps.mmdit import PREFIX, T5_LEVEL, T5_PREFIX
from modules.models.layouts.keymaps.sd3_text import t5_keymap
from modules.models.meta_init import on_meta

BLOCK = re.compile(rf"^{re.escape(T5_PREFIX)}\.encoder\.block\.(\d+)\.")
FIRST = f"{T5_PREFIX}.encoder.block.0.layer"
T5 = OptionalEncoder(
    component="text_encoder_3",
    setting="sd3_enable_t5",
    field="T5",
    tokenizer=t5_tokenizer_file,
    missing="holds no T5, and models/text_encoder has no t5xxl.safetensors. Zeros take its place.",
)
HINT = "Choose the encoder of t5-v1_1-xxl, or switch Enable T5 off in Settings > Stable Diffusion 3."


def t5_components(header: Header) -> tuple[Component, ...]:
    """The component "text_encoder_3", or nothing where the header has no T5. Raises `CheckpointError` for one that is
    not whole, of another kind, or of a width that the transformer does not take."""
    if not any(key.startswith(f"{T5_PREFIX}.") for key in header):
        return ()
    config = _config(header)
    context = header.get(f"{PREFIX}.context_embedder.weight")
    if context is not None and context.shape[-1] != config.d_model:
        raise CheckpointError(f"its T5 is {config.d_model} wide, and its transformer takes {context.shape[-1]}. {HINT}")
    with on_meta():
        module = T5EncoderModel(config)
    del module.shared  # the same table as the encoder's
    return (Component(T5.component, module, t5_keymap(), (f"{T5_PREFIX}.",), HINT),)


def is_unused_of_t5(key: str) -> bool:
    """Tensors beside the encoder's own, and the second name that some files have for its table of tokens."""
    if not key.startswith(T5_LEVEL):
        return False
    return not key.startswith(f"{T5_PREFIX}.") or key.startswith(f"{T5_PREFIX}.encoder.embed_tokens.")


def _config(header: Header) -> T5Config:
    attention, feed_forward = f"{FIRST}.0.SelfAttention", f"{FIRST}.1.DenseReluDense"
    try:
        vocabulary, width = header[f"{T5_PREFIX}.shared.weight"].shape
        buckets, heads = header[f"{attention}.relative_attention_bias.weight"].shape
        inner, _ = header[f"{attention}.q.weight"].shape
        mlp_width, _ = header[f"{feed_forward}.wi_0.weight"].shape
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"its T5 is not whole or of another kind ({error} is missing or of another shape). {HINT}"
        ) from error
    blocks = {int(match[1]) for key in header if (match := BLOCK.match(key))}
    return T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=inner // max(heads, 1),
        d_ff=mlp_width,
        num_layers=max(blocks) + 1,
        num_heads=heads,
        relative_attention_num_buckets=buckets,
        feed_forward_proj="gated-gelu",
    )
