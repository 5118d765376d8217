"""From what was typed to what is encoded: comments out, network tags out and reported."""

from dataclasses import dataclass

from modules.prompting.comments import strip_comments
from modules.prompting.extra_networks import extract_networks
from modules.settings.values import Settings


@dataclass(frozen=True)
class PromptText:
    """`shown` stands in the infotext (with network tags), `encoded` is what the text encoder reads."""

    shown: str
    encoded: str
    networks: tuple[str, ...]  # tags found, as "kind:name"


def prepare_text(text: str, settings: Settings) -> PromptText:
    """Strip comments (if the setting says so) and take the network tags out."""
    shown = strip_comments(text) if settings.flag("enable_prompt_comments") else text
    encoded, tags = extract_networks(shown)
    names = tuple(f"{kind}:{tag.items[0]}" for kind, found in tags.items() for tag in found if tag.items)
    return PromptText(shown, encoded, names)
