"""T5 (Raffel et al. 2020, arXiv:1910.10683; gated as in version 1.1), the third text encoder of SD3.

Names are those of transformers' `T5EncoderModel`; all sizes follow from the tensors.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from transformers import T5Config, T5EncoderModel

from modules.errors import CheckpointError
from modules.models.families.external_text_encoders import encoder_folders
from modules.models.families.family import Component, Header, OptionalEncoder, on_meta
from modules.models.families.sd3.layout import PREFIX, T5_LEVEL, T5_PREFIX
from modules.models.layouts.keymaps.keymap import KeyMap, ModulePair
from modules.models.reading.tensor_source import TensorSource

BLOCK = re.compile(rf"^{re.escape(T5_PREFIX)}\.encoder\.block\.(\d+)\.")
FIRST = f"{T5_PREFIX}.encoder.block.0.layer"
OWN_TOKENIZER = "tokenizer_3/tokenizer.json"  # in a folder of diffusers
TOKENIZERS = ("t5_tokenizer.json", "t5xxl/tokenizer.json")
LEAVE_OUT = r"^text_encoders\.t5xxl\."
T5_KEYMAP = KeyMap(
    (ModulePair(f"{T5_PREFIX}.shared", "encoder.embed_tokens"), ModulePair(f"{T5_PREFIX}.encoder", "encoder"))
)
"""Of T5EncoderModel, whose table of tokens is the encoder's own."""


def t5_tokenizer_file(checkpoint: Path) -> Path:
    """The tokenizer of T5, which no checkpoint file holds: that of a folder in the diffusers layout, else one of
    `TOKENIZERS` in a folder for text encoders, the nearest to the checkpoint. Raises `CheckpointError` that names
    the file and the place."""
    own = checkpoint / OWN_TOKENIZER
    if own.is_file():
        return own
    for folder in encoder_folders(checkpoint):
        for name in TOKENIZERS:
            if (folder / name).is_file():
                return folder / name
    raise CheckpointError(
        f"{checkpoint.name}: T5 is there, and its tokenizer is not. Put T5's tokenizer.json (of t5-v1_1-xxl) into the "
        f"folder text_encoder next to the checkpoints' folder, as models/text_encoder/{TOKENIZERS[0]}, or switch "
        "Enable T5 off in Settings > Stable Diffusion 3."
    )


T5 = OptionalEncoder(
    component="text_encoder_3",
    setting="sd3_enable_t5",
    field="T5",
    tokenizer=t5_tokenizer_file,
    missing="holds no T5, and models/text_encoder has no t5xxl.safetensors. Zeros take its place.",
    adapter_names=("lora_te3_", "text_encoder_3."),
    level=T5_LEVEL,
)
HINT = "Choose the encoder of t5-v1_1-xxl, or switch Enable T5 off in Settings > Stable Diffusion 3."


def t5_components(header: Header) -> tuple[Component, ...]:
    """The component "text_encoder_3", or nothing where the header has no T5. Raises `CheckpointError` for one that is
    not whole, of another kind, or of a width that the transformer does not take."""
    if not any(key.startswith(f"{T5_PREFIX}.") for key in header):
        return ()
    config = _config(header)
    context = header.get(f"{PREFIX}context_embedder.weight")
    if context is not None and context.shape[-1] != config.d_model:
        raise CheckpointError(f"its T5 is {config.d_model} wide, and its transformer takes {context.shape[-1]}. {HINT}")
    with on_meta():
        module = T5EncoderModel(config)
    del module.shared  # the same table as the encoder's
    return (Component(T5.component, module, T5_KEYMAP, (f"{T5_PREFIX}.",), HINT),)


def is_unused_of_t5(key: str) -> bool:
    """Tensors next to the encoder's own, and the second name that some files have for its table of tokens."""
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


def holds_t5(names: Collection[str]) -> bool:
    """Whether these are names of a checkpoint with T5 inside."""
    return any(name.startswith(f"{T5_PREFIX}.") for name in names)


def notes_on_converting(entries: Header) -> tuple[str, ...]:
    """A sentence for a checkpoint that holds T5: it is the larger half of such a file."""
    if not holds_t5(entries):
        return ()
    size = sum(entry.size_bytes for name, entry in entries.items() if name.startswith(f"{T5_PREFIX}."))
    return (
        f"The checkpoint holds T5 ({size / 1e9:.1f} GB of it), which is kept. To save it without, merge it alone (No "
        f"interpolation) with {LEAVE_OUT} under Discard weights.",
    )


def notes_on_merging(files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
    """A sentence for each fate of T5: `files` are the models that are merged, the first one gives the names; `result`
    are those that are written."""
    first, *others = files
    if holds_t5(result):
        merged = [file.path.name for file in others if holds_t5(file.entries)]
        how = "merged" if len(merged) == len(others) > 0 else "kept as it is there"
        return (f"T5 of {first.path.name} is {how}. To leave it out, discard {LEAVE_OUT}",)
    if holds_t5(first.entries):
        return (f"T5 of {first.path.name} is left out, as Discard weights says.",)
    holders = [file.path.name for file in others if holds_t5(file.entries)]
    if not holders:
        return ()
    return (f"T5 of {', '.join(holders)} is left out, because {first.path.name} holds none.",)
