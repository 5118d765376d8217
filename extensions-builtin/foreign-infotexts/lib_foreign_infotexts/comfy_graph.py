"""Walks through a graph of ComfyUI: the node behind a link, numbers, sizes and texts, through reroutes and switches.

A graph may hold rings and thousands of nodes: what was found for a node is kept, and what leads back to itself is
nothing.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lib_foreign_infotexts.record import size_of
from modules.system.bounded import joined

Node = Mapping[str, Any]

MAX_DEPTH = 100
MAX_JOINED = 12
MAX_JOINED_CHARS = 200_000
MIN_SIDE_PX = 16

TEXTS = (
    *("populated_text", "text", "text_g", "t5xxl", "prompt", "string", "value", "clip_l", "text_l", "caption"),
    *("wildcard_text", "positive_prompt", "source", "input"),
)
"""Inputs with a text, the one that says most first."""
CONDITIONS = ("conditioning", "cond1", "cond", "conditioning_1", "conditioning_to")
PARTS = frozenset(
    {"clip", "model", "vae", "control_net", "image", "pixels", "mask", "style_model", "latent", "samples", "noise"}
)
"""Inputs that never lead to a text."""
NUMBERS = ("value", "seed", "noise_seed", "number", "int", "float", "boolean", "string", "text")
"""Inputs of a node that only holds something, in the order in which they are asked."""
SELECTORS = ("switch", "select", "selected", "boolean", "condition", "index", "input", "mode")
"""Inputs that say which of its others a switch passes on."""
ZEROED = re.compile(r"zero[ _-]?(?:ed )?out", re.IGNORECASE)
WRITES_TEXT = re.compile(
    r"textgenerat|ollama|gemini|openai|llm|florence|caption|tagger|interrogat|llava", re.IGNORECASE
)
"""Nodes whose text a model wrote: a graph does not hold it."""
SWITCH = re.compile(r"switch|select|choose", re.IGNORECASE)
_JOINED_TEXT = re.compile(r"(?:string|text|prompt)_?(?:[a-f]|\d{1,2})")
_JOINED_CONDITION = re.compile(r"conditioning_?(?:\d{1,2}|to|from|[a-d])")
_NUMBERED = re.compile(r"[a-z_]*?(\d{1,3})")
_TRUE_OR_FALSE = re.compile(r"(?:^|_)(true|false)(?:_|$)")
_SIZE_TEXT = re.compile(r"\b(\d{2,5})\s*[x×*]\s*(\d{2,5})\b")
_RATIO = re.compile(r"(\d{1,3})\s*:\s*(\d{1,3})\b")
SIZES = (("width", "height"), ("empty_latent_width", "empty_latent_height"), ("image_width", "image_height"))
SIZE_TEXTS = ("dimensions", "resolution", "size", "image_size", "aspect_ratio", "preset")
BEFORE_SAMPLING = ("latent_image", "latent", "samples", "optional_latent")


class Graph:
    """The nodes of a graph by name. Every input of a node is a value, or a link: the name of a node and a number."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self._values: dict[tuple[int, str], Any] = {}

    def linked(self, given: object) -> Node | None:
        """Return the node that an input is connected to: ["4", 0]."""
        if isinstance(given, list) and len(given) == 2 and isinstance(given[0], str | int):
            return self.nodes.get(str(given[0]))
        return None

    def value(self, given: object, name: str = "", depth: int = 0) -> Any:
        """Return the number, truth or text that an input of this name is, or that stands behind its link; None where
        nothing does."""
        node = self.linked(given)
        if node is None:
            return given if isinstance(given, str | int | float) else None
        key = (id(node), name)
        if key not in self._values and depth < MAX_DEPTH:
            self._values[key] = None
            inputs = node["inputs"]
            asked = self.branches(node, depth) or [inputs[each] for each in (name, *NUMBERS) if each in inputs]
            asked += [each for each in inputs.values() if _is_number(each) or self.linked(each) is not None]
            found = (self.value(each, name, depth + 1) for each in asked)
            self._values[key] = next((each for each in found if each is not None), None)
        return self._values.get(key)

    def branches(self, node: Node, depth: int = 0) -> list[Any] | None:
        """Return the inputs of a switch, the one that it passes on first; None for other nodes."""
        inputs = {name.lower(): value for name, value in node["inputs"].items()}
        sides = {found[1]: inputs[name] for name in inputs if (found := _TRUE_OR_FALSE.search(name))}
        is_switch = SWITCH.search(str(node.get("class_type", ""))) is not None
        if not is_switch and len(sides) < 2:
            return None
        selector = next((inputs[name] for name in SELECTORS if name in inputs), None)
        chosen = None if selector is None else self.value(selector, "value", depth + 1)
        if sides:
            order = ("true", "false") if _is_true(chosen) else ("false", "true")
            return [sides[side] for side in order if side in sides]
        numbered = {
            int(found[1]): value
            for name, value in inputs.items()
            if (found := _NUMBERED.fullmatch(name)) and (isinstance(value, str) or self.linked(value) is not None)
        }
        if not numbered:
            return None
        number = int(str(chosen)) if str(chosen).isdecimal() else -1
        return [numbered[each] for each in sorted(numbered, key=lambda each: (each != number, each))]

    def before(self, start: Node) -> Iterator[Node]:
        """Yield a node and those that lead to it, the nearest first, but no other samplers."""
        seen, waiting = {id(start)}, deque([start])
        while waiting:
            node = waiting.popleft()
            yield node
            for value in node["inputs"].values():
                other = self.linked(value)
                if other is not None and id(other) not in seen and not is_sampler(other):
                    seen.add(id(other))
                    waiting.append(other)

    def values_before(self, start: Node, names: Iterable[str]) -> dict[str, Any]:
        """Return the values of these inputs of a node and of those that lead to it, the nearest first."""
        wanted, found = set(names), dict[str, Any]()
        for node in self.before(start):
            for name in wanted.intersection(node["inputs"]).difference(found):
                value = self.value(node["inputs"][name], name)
                if value is not None:
                    found[name] = value
        return found

    def size(self, sampler: Node) -> str | None:
        """Return the size of the latents that a sampler begins with. Nodes of conditions have sizes of their own: the
        size that SDXL receives, or that for which Flux shifts its sigmas; they count where no other node has one."""
        given = next((sampler["inputs"][name] for name in BEFORE_SAMPLING if name in sampler["inputs"]), None)
        start = self.linked(given)
        for node in (*(self.before(start) if start is not None and not is_sampler(start) else ()), sampler):
            found = self._own_size(node)
            if found is not None:
                return found
        return next((found for node in self.before(sampler) if (found := self._own_size(node))), None)

    def _own_size(self, node: Node, depth: int = 0) -> str | None:
        """Return the size that one node gives: two numbers, "1024 x 768", or a ratio and megapixels."""
        inputs = {name.lower(): value for name, value in node["inputs"].items()}
        for width, height in SIZES:
            if width in inputs and height in inputs:
                other = self.linked(inputs[width])
                found = self._own_size(other, depth + 1) if other is not None and depth < 3 else None
                sides = [self.value(inputs[name], name) for name in (width, height)]
                if found is None and all(_is_number(side) and side >= MIN_SIDE_PX for side in sides):
                    found = size_of(*map(int, sides))
                if found is not None:
                    return found
        ratio, pixels = self.value(inputs.get("aspect_ratio")), self.value(inputs.get("megapixels"))
        sides_of = _RATIO.match(str(ratio))
        if sides_of and _is_number(pixels) and 0 < pixels < 1000 and int(sides_of[1]) and int(sides_of[2]):
            multiple = self.value(inputs.get("multiple"))
            step = multiple if isinstance(multiple, int) and multiple > 0 else 8
            scale = math.sqrt(pixels * 1024 * 1024 / (int(sides_of[1]) * int(sides_of[2])))
            return size_of(*(round(int(side) * scale / step) * step for side in sides_of.groups()))
        for name in SIZE_TEXTS:
            text = _SIZE_TEXT.search(str(self.value(inputs.get(name))))
            if text:
                return size_of(text[1], text[2])
        return None


class Texts:
    """The texts at the ends of links, each node's once. `side` is "positive" or "negative": a node that has one of the
    two as an input has both, so where the other side's is linked only, there is no text. `asks_models`: the texts that
    models were asked with count as theirs. `merged` are the names of nodes that put several conditions together."""

    def __init__(self, graph: Graph, side: str, *, asks_models: bool = False) -> None:
        self._graph, self._side, self._asks_models = graph, side, asks_models
        self._own = re.compile(rf"(?:text_|prompt_)?{side}(?:_(?:prompt|text|conditioning|cond|g|l))?_?\d?")
        self._found: dict[int, str | None] = {}
        self.merged: dict[str, None] = {}

    def at(self, given: object, depth: int = 0) -> str | None:
        """Return the text that an input is, or that is at the end of its link; None where no text is known, which is
        not the same as an empty one."""
        node = self._graph.linked(given)
        if node is None:
            return given if isinstance(given, str) else None
        if id(node) not in self._found and depth <= MAX_DEPTH:
            self._found[id(node)] = None
            self._found[id(node)] = self._of(node, depth + 1)
        return self._found.get(id(node))

    def _of(self, node: Node, depth: int) -> str | None:
        kind = str(node.get("class_type", ""))
        if ZEROED.search(kind):
            return ""
        if WRITES_TEXT.search(kind) and not self._asks_models:
            return None
        inputs = {name.lower(): value for name, value in node["inputs"].items() if self._leads_on(value)}
        branches = self._graph.branches(node)
        if branches is not None:
            return self._first(branches, depth)
        own = sorted((name for name in inputs if self._own.fullmatch(name)), key=len)
        if own:
            return self._first((inputs[name] for name in own), depth)
        if self._side == "negative" and "guider" in kind.lower():
            return ""  # a guider without a negative side
        for pattern, is_condition in ((_JOINED_TEXT, False), (_JOINED_CONDITION, True)):
            names = sorted((name for name in inputs if pattern.fullmatch(name)), key=_by_number)
            if len(names) > 1:
                return self._joined(kind, inputs, names[:MAX_JOINED], is_condition, depth)
        said = [self.at(inputs[name], depth) for name in (*CONDITIONS, *TEXTS) if name in inputs]
        if any(said):
            return next(text for text in said if text)
        rest = (name for name in inputs if name not in (*PARTS, *CONDITIONS, *TEXTS))
        passed_on = [self.at(inputs[name], depth) for name in rest if self._graph.linked(inputs[name]) is not None]
        others = list(dict.fromkeys(text for text in passed_on if text))
        if len(others) == 1:
            return others[0]
        return next((text for text in (*said, *passed_on) if text is not None), None)

    def _joined(self, kind: str, inputs: Mapping[str, Any], names: list[str], is_condition: bool, depth: int) -> str:
        texts = [self.at(inputs[name], depth) or "" for name in names]
        if not is_condition:
            between = inputs.get("delimiter", inputs.get("separator"))
            return joined(texts, between if isinstance(between, str) else " ", MAX_JOINED_CHARS)
        texts = [text for text in dict.fromkeys(texts) if text.strip()]
        if len(texts) > 1:
            self.merged[kind] = None
        apart = " BREAK " if "concat" in kind.lower() else " AND " if self._side == "positive" else ", "
        return joined(texts, apart, MAX_JOINED_CHARS)

    def _first(self, given: Iterable[object], depth: int) -> str | None:
        return next((text for each in given if (text := self.at(each, depth)) is not None), None)

    def _leads_on(self, value: object) -> bool:
        return isinstance(value, str) or self._graph.linked(value) is not None


def is_sampler(node: Node) -> bool:
    """Return whether a node samples: it takes latents and conditions, or the settings of a sampler from a pipe."""
    inputs = node["inputs"]
    if "latent_image" in inputs and ("positive" in inputs or "guider" in inputs):
        return True
    return {"steps", "sampler_name"} <= set(inputs) and ("seed" in inputs or "noise_seed" in inputs)


def _by_number(name: str) -> tuple[int, str]:
    """Sort "text10" after "text2", and what is put behind another condition after it."""
    found = _NUMBERED.fullmatch(name)
    return (int(found[1]), "") if found else (0, name.replace("_to", "_a"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_true(value: object) -> bool:
    return value.strip().lower() in ("true", "yes", "on", "1") if isinstance(value, str) else bool(value)
