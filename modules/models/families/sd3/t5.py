"""T5, the third text encoder of SD3, which its models can do without."""

from collections.abc import Collection, Sequence
from pathlib import Path

from modules.models.detection.families import PREFIX
from modules.models.families.family import OptionalEncoder
from modules.models.families.sd3.layout import T5_LEVEL, T5_PREFIX
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header
from modules.models.text_encoders.t5 import t5_component, t5_tokenizer
from modules.models.text_encoders.tokenizers import T5Tokenizer

OWN_TOKENIZER = "tokenizer_3/tokenizer.json"  # in a folder of diffusers
LEAVE_OUT = r"^text_encoders\.t5xxl\."
WITHOUT = ", or switch Enable T5 off in Settings > Stable Diffusion 3"


def tokenizer_of(checkpoint: Path, vocabulary: int, files: Sequence[Path] = ()) -> T5Tokenizer:
    """See `t5_tokenizer`."""
    return t5_tokenizer(checkpoint, vocabulary, OWN_TOKENIZER, WITHOUT, files)


T5 = OptionalEncoder(
    component="text_encoder_3",
    setting="sd3_enable_t5",
    field="T5",
    tokenizer=tokenizer_of,
    missing="holds no T5, and models/text_encoder has no t5xxl.safetensors. Zeros take its place.",
    adapter_names=("lora_te3_", "text_encoder_3."),
    level=T5_LEVEL,
)
HINT = "Choose the encoder of t5-v1_1-xxl, or switch Enable T5 off in Settings > Stable Diffusion 3."


def t5_components(header: Header) -> tuple[Component, ...]:
    """The component "text_encoder_3", or nothing where the header has no T5. Raises `CheckpointError`, see
    `t5_component`."""
    if not any(key.startswith(f"{T5_PREFIX}.") for key in header):
        return ()
    context = header.get(f"{PREFIX}context_embedder.weight")
    return (t5_component(T5.component, header, T5_PREFIX, HINT, None if context is None else context.shape[-1]),)


def is_unused_of_t5(key: str) -> bool:
    """Tensors next to the encoder's own, and the second name that some files have for its table of tokens."""
    if not key.startswith(T5_LEVEL):
        return False
    return not key.startswith(f"{T5_PREFIX}.") or key.startswith(f"{T5_PREFIX}.encoder.embed_tokens.")


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
