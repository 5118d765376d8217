"""From what was typed to what is encoded: comments out, adapter tags out and reported."""

from dataclasses import dataclass

from modules.prompting.comments import strip_comments
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions
from modules.prompting.extra_networks import PromptTags, extract_tags
from modules.settings.values import Settings


@dataclass(frozen=True)
class PromptText:
    """`shown` stands in the infotext (with adapter tags), `encoded` is what the text encoder reads."""

    shown: str
    encoded: str
    tags: PromptTags


def prepare_text(text: str, settings: Settings, with_tags: bool = True) -> PromptText:
    """Strip comments (if the setting says so) and take the adapter tags out.

    Without `with_tags` tags are ordinary text: so they are in negative prompts, as in the reference UI.
    """
    shown = strip_comments(text) if settings.stable_diffusion.enable_prompt_comments else text
    if not with_tags:
        return PromptText(shown, shown, {})
    encoded, tags = extract_tags(shown)
    return PromptText(shown, encoded, tags)


def text_options(settings: Settings) -> TextOptions:
    """How the settings want texts encoded."""
    return TextOptions(
        emphasis=Emphasis(settings.stable_diffusion.emphasis),
        comma_backtrack=settings.stable_diffusion.comma_padding_backtrack,
        clip_skip=settings.stable_diffusion.CLIP_stop_at_last_layers,
        old_emphasis=settings.compatibility.use_old_emphasis_implementation,
        settings=settings.of_encodings(),
    )
