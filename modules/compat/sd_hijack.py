"""`modules.sd_hijack`: what the reference UI changes inside of a model, which has other modules here."""

from __future__ import annotations

from typing import Any

from modules.compat.model_view import INSIDE
from modules.compat.refusal import Named, refusing


class ModelHijack:
    """`model_hijack`: counts tokens; everything else is refused."""

    def __init__(self) -> None:
        self.comments: list[str] = []
        self.extra_generation_params: dict[str, Any] = {}
        self.embedding_db: Any = Named("embedding_db", "GET /sdapi/v1/embeddings lists embeddings.")
        self.clip: Any = Named("model_hijack.clip", INSIDE)

    def get_prompt_lengths(self, text: str) -> tuple[int, int]:
        """Tokens of a prompt by the count of its words, and the room that they take."""
        count = len(text.split())
        return count, max(-(-count // 75), 1) * 75

    def redo_hijack(self, m: Any) -> None:
        """Nothing has to be done again."""

    def apply_circular(self, enable: bool) -> None:
        """Set p.tiling."""

    def clear_comments(self) -> None:
        """There are none."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"model_hijack.{name} is not supported here: {INSIDE}", name=name)


model_hijack = ModelHijack()
__getattr__ = refusing(
    "sd_hijack", dict.fromkeys(("StableDiffusionModelHijack", "list_optimizers", "optimizers"), INSIDE)
)
