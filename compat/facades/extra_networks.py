"""`modules.extra_networks`: what `modules.scripts.extra_networks` has, and tags taken out of prompts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compat.facades.refusal import lazy
from modules.prompting.extra_networks import extract_tags
from modules.scripts.extra_networks import *  # noqa: F403 - every name
from modules.system.bounded import read_json_file

re_extra_net = re.compile(r"<(\w+):([^>]+)>")


class ExtraNetworkParams:
    """Contents of one tag: `items`, those without a name (`positional`) and those written name=value (`named`)."""

    def __init__(self, items: Sequence[str] | None = None) -> None:
        self.items = list(items or ())
        pairs = [item.split("=", 1) for item in self.items]
        self.positional = [pair[0] for pair in pairs if len(pair) == 1]
        self.named = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtraNetworkParams) and other.items == self.items

    __hash__ = None  # type: ignore[assignment]


def parse_prompt(prompt: str) -> tuple[str, dict[str, list[ExtraNetworkParams]]]:
    """A prompt without its tags, and the tags by type."""
    text, tags = extract_tags(prompt)
    found: dict[str, list[ExtraNetworkParams]] = defaultdict(list)
    for kind, of_kind in tags.items():
        found[kind] = [ExtraNetworkParams(tag.items) for tag in of_kind]
    return text, found


def parse_prompts(prompts: Sequence[str]) -> tuple[list[str], dict[str, list[ExtraNetworkParams]] | None]:
    """Several prompts without their tags, and the tags of the first."""
    parsed = [parse_prompt(prompt) for prompt in prompts]
    return [text for text, _ in parsed], parsed[0][1] if parsed else None


def get_user_metadata(filename: str, lister: Any = None) -> dict[str, Any]:
    """The notes beside a model file (NAME.json); {} where there are none."""

    try:
        found = read_json_file(Path(filename).with_suffix(".json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _registry() -> Mapping[str, Any]:
    from compat.host import host_now

    return {name: one for one in host_now().scripts.adapters.types for name in (one.name,)}


_OURS = "the program has these called for the tags of each batch (docs/extensions.md, Tags in the prompt)."
_REASONS = dict.fromkeys(
    ("activate", "deactivate", "initialize", "lookup_extra_networks", "register_extra_network_alias"), _OURS
)
__getattr__ = lazy("extra_networks", {"extra_network_registry": _registry, "extra_network_aliases": dict}, _REASONS)
