"""`<lora:name:te:unet:dyn=N>` as numbers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from modules.adapters.block_weights import (
    NO_PRESETS,
    BlockWeights,
    looks_like_weights,
    read_block_weights,
    read_elements,
    split_elements,
)
from modules.adapters.step_range import ALL_STEPS, NAMES, StepRange
from modules.errors import InvalidValueError
from modules.prompting.extra_networks import PromptTag, PromptTags

LORA_ALGORITHMS = ("lora", "lyco")
NO_ADAPTER = "None"


@dataclass(frozen=True)
class LoraTag:
    """One wanted adapter: its name as typed and its strengths."""

    name: str
    te_strength: float = 1.0
    unet_strength: float = 1.0
    dynamic_rank: int | None = None
    blocks: tuple[tuple[str, float], ...] = ()  # factors of blocks of the UNet
    steps: StepRange = ALL_STEPS  # at which it holds on the UNet


def plain_name(name: str) -> str:
    """A name as the infotext's field "Lora hashes" has it: without the signs that separate its parts."""
    return re.sub(r"[:,]", "", name)


IsKnown = Callable[[str], bool]
"""Whether there is an adapter of this name."""


def _never(_: str) -> bool:
    return False


def lora_tags(
    tags: PromptTags, is_known: IsKnown = _never, presets: Mapping[str, str] = NO_PRESETS
) -> tuple[list[LoraTag], list[str]]:
    """The LoRA tags of a prompt, and sentences about those that cannot be read (they are left out).

    `is_known` tells names that hold colons or equals signs from strengths: the longest known one counts.
    `presets` are the user's own of block weights.
    """
    return _read_all([tag for algorithm in LORA_ALGORITHMS for tag in tags.get(algorithm, ())], is_known, presets)


def hypernetwork_tags(tags: PromptTags, is_known: IsKnown = _never) -> tuple[list[LoraTag], list[str]]:
    """The `<hypernet:name:strength>` tags, and sentences about those that cannot be read; as `lora_tags`."""
    wanted = tags.get("hypernet", ())
    found, problems = _read_all(wanted, is_known)
    return found, [*problems, *(said for tag in wanted for said in _without_steps(tag))]


def added_by_setting(tags: Sequence[PromptTag], name: str, strength: float) -> list[PromptTag]:
    """The tag of the adapter that a setting adds to every prompt; none for "None", and none where the prompt has that
    adapter itself."""
    if name in ("", NO_ADAPTER) or any(name_in(tag, name.__eq__)[0] == name for tag in tags):
        return []
    return [PromptTag((name, str(strength)))]


def name_in(tag: PromptTag, is_known: IsKnown) -> tuple[str, PromptTag]:
    """The longest known name at a tag's beginning, else its first part; and the tag with that as one part."""
    for length in range(len(tag.items), 0, -1):
        name = ":".join(tag.items[:length])
        if (length > 1 or "=" in name) and is_known(name):
            return name, PromptTag(("", *tag.items[length:]))
    return (tag.positional or ("",))[0], tag


def _read_all(
    tags: Sequence[PromptTag], is_known: IsKnown, presets: Mapping[str, str] = NO_PRESETS
) -> tuple[list[LoraTag], list[str]]:
    wanted, problems = [], []
    for tag in tags:
        try:
            wanted.append(_read(tag, is_known, presets))
        except InvalidValueError as error:
            problems.append(str(error))
    return wanted, problems


def _without_steps(tag: PromptTag) -> list[str]:
    """Return what to say of a hypernetwork's tag that names steps."""
    named = [f"{name}={tag.named[name]}" for name in NAMES if name in tag.named]
    text = f"<hypernet:{':'.join(tag.items)}>"
    return [f"{text}: {' and '.join(named)}: left out, a hypernetwork holds for all steps."] if named else []


def _read(whole: PromptTag, is_known: IsKnown, presets: Mapping[str, str]) -> LoraTag:
    """Positional: name, text encoder, UNet, rank; or te=, unet=, dyn=. The UNet's strength defaults to the first.
    lbw= gives factors by block, lbwe= by words of layers' names, start=, stop= or step= the steps at which it holds.
    """
    items, elements = split_elements(whole.items)
    name, tag = name_in(PromptTag(items), is_known)
    _, *given = tag.positional or ("",)
    text = f"<{':'.join(whole.items)}>"
    rest = [word for word in given if not looks_like_weights(word, presets)]
    weights = next((word for word in given if looks_like_weights(word, presets)), None)
    weights = tag.named.get("lbw", weights)
    by_block = read_block_weights(weights, presets) if weights is not None else BlockWeights()
    if elements:
        by_block = BlockWeights(by_block.base, (*by_block.blocks, *read_elements(elements)))
    te = _number(tag.named.get("te", rest[0] if rest else "1"), text)
    unet = _number(tag.named.get("unet", rest[1] if len(rest) > 1 else str(te)), text)
    te *= by_block.base
    rank = tag.named.get("dyn", rest[2] if len(rest) > 2 else None)
    try:
        steps = StepRange.of(tag.named)
    except InvalidValueError as error:
        raise InvalidValueError(f"{text}: {error} The tag was ignored.") from error
    if rank is None:
        return LoraTag(name, te, unet, blocks=by_block.blocks, steps=steps)
    value = _number(rank, text)
    if value != int(value) or value < 1:
        raise InvalidValueError(f"{text}: the rank {rank!r} is no whole number above 0; the tag was ignored.")
    return LoraTag(name, te, unet, int(value), by_block.blocks, steps)


def _number(text: str, tag: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise InvalidValueError(f"{tag}: {text!r} is no number; the tag was ignored.") from error
    if value != value or abs(value) == float("inf"):
        raise InvalidValueError(f"{tag}: {text!r} is no finite number; the tag was ignored.")
    return value
