"""`<lora:name:0.8>` and its like: taken out of the prompt, kept as tags for whoever knows that type of adapter."""

import re
from dataclasses import dataclass, field

_OPENING = re.compile(r"<(\w+):")


@dataclass(frozen=True)
class PromptTag:
    """The arguments of one tag: all of them, those without a name, and those written `name=value`."""

    items: tuple[str, ...]
    positional: tuple[str, ...] = field(init=False)
    named: dict[str, str] = field(init=False, hash=False)

    def __post_init__(self) -> None:
        pairs = [item.split("=") for item in self.items]
        object.__setattr__(self, "positional", tuple(i for i, p in zip(self.items, pairs, strict=True) if len(p) != 2))
        object.__setattr__(self, "named", {pair[0]: pair[1] for pair in pairs if len(pair) == 2})


PromptTags = dict[str, list[PromptTag]]


def extract_tags(prompt: str) -> tuple[str, PromptTags]:
    """The prompt without its tags, and the tags by type ("lora", "hypernet", "lyco" ...) in order of appearance.

    Every tag of the form `<type:arguments>` is taken out, known or not; whether the type and the name exist is for
    the caller to find out. Linear in the length of the prompt.
    """
    tags: PromptTags = {}
    kept: list[str] = []
    position = 0
    opening = _OPENING.search(prompt)
    while opening is not None:
        end = prompt.find(">", opening.end())
        if end < 0:
            break
        if end > opening.end():
            kept.append(prompt[position : opening.start()])
            tag = PromptTag(tuple(prompt[opening.end() : end].split(":")))
            tags.setdefault(opening.group(1), []).append(tag)
            position = end + 1
        opening = _OPENING.search(prompt, max(position, opening.end()))
    kept.append(prompt[position:])
    return "".join(kept), tags
