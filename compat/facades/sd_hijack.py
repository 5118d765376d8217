"""`modules.sd_hijack`: what the reference UI changes inside of a model, which has other modules here."""

from __future__ import annotations

from typing import Any

from compat.facades.model_view import INSIDE
from compat.facades.refusal import named, refusing
from compat.facades.textual_inversion.textual_inversion import EmbeddingDatabase
from compat.host import host_now, models_now
from modules.models.text_encoders.counting import BY_CHUNKS
from modules.processing.request.texts import text_options


class ModelHijack:
    """`model_hijack`: tokens of prompts; everything else is refused."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.extra_generation_params: dict[str, Any] = {}
        self.embedding_db = EmbeddingDatabase()
        self.clip: Any = named("model_hijack.clip", INSIDE)

    def get_prompt_lengths(self, text: str) -> tuple[int, int]:
        """Tokens of a prompt, by the tokenizer of the model that is in use, and the room that they take."""
        facts, options = models_now().status.model, text_options(host_now().settings.current)
        found = (facts.counting if facts is not None else BY_CHUNKS).count(text, options)
        return found.count, found.limit

    def tokenize(self, text: str) -> tuple[list[int], int, int]:
        """A prompt's ids in CLIP's chunks, how many count, and the room that they take."""
        from compat.facades.clip_view import chunk_ids

        return chunk_ids(text, text_options(host_now().settings.current)), *self.get_prompt_lengths(text)

    def redo_hijack(self, m: Any) -> None:
        """Nothing has to be done again."""

    def apply_circular(self, enable: bool) -> None:
        """Set p.tiling."""

    def clear_comments(self) -> None:
        """There are none."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"model_hijack.{name} is not supported here: {INSIDE}", name=name)


model_hijack = ModelHijack()
_NAMES: tuple[str, ...] = ("StableDiffusionModelHijack", "list_optimizers", "optimizers", "current_optimizer")
_NAMES += ("EmbeddingsWithFixes", "add_circular_option_to_conv_2d", "apply_optimizations", "undo_optimizations")
_NAMES += ("fix_checkpoint", "weighted_loss", "weighted_forward", "apply_weighted_forward", "undo_weighted_forward")
_NAMES += ("attention_CrossAttention_forward", "diffusionmodules_model_nonlinearity", "ldm", "sd_hijack_clip")
_NAMES += ("diffusionmodules_model_AttnBlock_forward", "sd_hijack_optimizations", "sd_hijack_unet", "CondFunc")
__getattr__ = refusing("sd_hijack", dict.fromkeys(_NAMES, INSIDE))
