"""Prompts with choices in them, and the prompts that they stand for.

    {a|b|c}              one of these                   {0.5::a|b}        with weights, 1 where none is given
    {2$$a|b|c}           two different ones             {1-3$$a|b|c}      one to three; {-2$$...}, {1-$$...}
    {2$$ and $$a|b|c}    with this between them         __colors__        a text of a wildcard (wildcards.py)
    \\{ \\} \\| \\__       as they stand

Choices may stand in choices and in the texts of wildcards. A word such as bad__hands__v2 is text. Braces that hold no
choice are text, as they are without.
The grammar is that of the dynamic prompts of other Stable Diffusion web UIs.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Protocol, TypeAlias

from modules.errors import InvalidValueError

MAX_CHARACTERS = 1_000_000  # of a prompt that a template becomes
MAX_NESTING = 64
SEPARATOR = ", "
FIRST_WITHOUT_BLANKS = "\u0e00"  # the scripts from here on (Thai, Chinese, Japanese) put no blanks between words
TOO_LONG = f"The template becomes a prompt of more than {MAX_CHARACTERS:,} characters; shorten its lists."

_COUNT = re.compile(r"\s*(?:(\d{1,4})|(\d{0,4})\s*-\s*(\d{0,4}))\s*\$\$")
_WEIGHT = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*::")
_WILDCARD = re.compile(r"__((?:[^\W_]|\*)(?:(?!__)[^{}|<>,:$\n])*)__")


class Wildcards(Protocol):
    """Where the texts of wildcards come from."""

    def texts(self, name: str) -> Sequence[str]:
        """Return those of one; raises a `FeatherweightError` where there are none."""

    def matching(self, name: str) -> Sequence[str]:
        """The names that a name means."""


@dataclass(frozen=True)
class Option:
    """One of several, with its weight. Of long lists few texts are ever needed: a text is parsed when it is."""

    source: "Template | str"
    weight: float = 1.0

    @property
    def body(self) -> "Template":
        return _stripped(parse_template(self.source)) if isinstance(self.source, str) else self.source


@dataclass(frozen=True)
class Choice:
    """`least` to `most` different ones of the options, `separator` between them."""

    options: tuple[Option, ...]
    least: int = 1
    most: int = 1
    separator: str = SEPARATOR


@dataclass(frozen=True)
class Wildcard:
    """A text of the wildcard of this name. One that is not there `may_be_text`: in a tag such as <lora:...>, and where
    a letter touches it."""

    name: str
    may_be_text: bool = False


Part: TypeAlias = str | Choice | Wildcard
Template: TypeAlias = tuple[Part, ...]


def parse_template(text: str) -> Template:
    """A template as its parts. Any text is one: what is no choice stands as it is."""
    parts, _ = _Reader(text).parts(0, depth=0)
    return parts


def has_choices(text: str) -> bool:
    """Whether a text is more than itself, escapes counted."""
    return parse_template(text) != (() if text == "" else (text,))


def random_prompt(template: Template, wildcards: Wildcards, seed: int | str) -> str:
    """The prompt that a template becomes with this seed, always the same one.

    Raises `InvalidValueError` for a wildcard that refers to itself and for prompts without end, and what `wildcards`
    raises.
    """
    return _Drawing(wildcards, random.Random(str(seed))).text(template, ())


def all_prompts(template: Template, wildcards: Wildcards, limit: int) -> list[str]:
    """The first `limit` of all prompts that a template can become, in order; the last choice changes fastest. The
    order of several out of a choice is that of its options. Raises as `random_prompt`."""
    return list(islice(_Listing(wildcards, limit).texts(template, ()), limit))


class _Reader:
    """Recursive descent over a text; positions are indices."""

    def __init__(self, text: str) -> None:
        self._text = text

    def parts(self, start: int, depth: int, ends: str = "") -> tuple[Template, int]:
        """The parts from `start` to one of the characters `ends`, or to the end of the text."""
        text = self._text
        found: list[Part] = []
        plain: list[str] = []
        at, angle = start, 0

        def close() -> None:
            if plain:
                found.append("".join(plain))
                plain.clear()

        while at < len(text) and text[at] not in ends:
            sign = text[at]
            if sign == "\\" and text[at + 1 : at + 2] in ("{", "}", "|"):
                plain.append(text[at + 1])
                at += 2
                continue
            if text.startswith("\\__", at):
                plain.append("__")
                at += 3
                continue
            angle = angle + (1 if sign == "<" else 0) if sign != ">" else max(angle - 1, 0)
            part: tuple[Part, int] | None = None
            if sign == "{" and depth < MAX_NESTING:
                part = self._choice(at, depth + 1)
            elif sign == "_":
                part = self._wildcard(at, angle > 0)
            if part is None:
                plain.append(sign)
                at += 1
                continue
            close()
            found.append(part[0])
            at = part[1]
        close()
        return tuple(found), at

    def _wildcard(self, start: int, is_in_tag: bool) -> tuple[Wildcard, int] | None:
        """The wildcard whose underscores open at `start`, and where it ends; None where there is none."""
        match = _WILDCARD.match(self._text, start)
        if match is None or match[1][-1] in "_ ":
            return None
        around = self._text[start - 1 : start], self._text[match.end() : match.end() + 1]
        touching = [sign for sign in around if sign.isalnum()]
        if len(touching) == 2 and max(touching) < FIRST_WITHOUT_BLANKS:
            return None
        return Wildcard(match[1], is_in_tag or bool(touching)), match.end()

    def _choice(self, start: int, depth: int) -> tuple[Choice, int] | None:
        """The choice in the braces that open at `start`, and where it ends; None where they hold none."""
        text = self._text
        at = start + 1
        least = most = 1
        separator = SEPARATOR
        count = _COUNT.match(text, at)
        if count:
            at = count.end()
            if count[1] is not None:
                least = most = int(count[1])
            else:
                least, most = int(count[2] or 0), int(count[3] or MAX_CHARACTERS)
                least, most = min(least, most), max(least, most)
            custom = re.compile(r"([^{}|$]*)\$\$").match(text, at)
            if custom:
                separator, at = custom[1], custom.end()
        options: list[Option] = []
        while True:
            weight = _WEIGHT.match(text, at)
            body, end = self.parts(weight.end() if weight else at, depth, "|}")
            if end >= len(text):
                return None  # never closed
            options.append(Option(_stripped(body), float(weight[1]) if weight else 1.0))
            at = end + 1
            if text[end] == "}":
                break
        holds_choice = len(options) > 1 or count is not None
        if not holds_choice and not any(not isinstance(part, str) for part in options[0].body):
            return None
        return Choice(tuple(options), least, most, separator), at


def _stripped(body: Template) -> Template:
    """Without blanks at both ends, as the options of a list are written."""
    parts = list(body)
    if parts and isinstance(parts[0], str):
        parts[0] = parts[0].lstrip()
    if parts and isinstance(parts[-1], str):
        parts[-1] = parts[-1].rstrip()
    return tuple(part for part in parts if part != "")


def _within(wildcard: Wildcard, wildcards: Wildcards, inside: tuple[str, ...]) -> tuple[str, ...]:
    """`inside`, the wildcards that a text stands in, with this one; raises where it is among them. One that means
    several lists cannot be said to refer to itself, so that only the depth ends it."""
    names = wildcards.matching(wildcard.name)
    name = (names[0] if len(names) == 1 else wildcard.name).lower()
    if len(names) == 1 and name in inside:
        way = " → ".join(f"__{one}__" for one in (*inside[inside.index(name) :], name))
        raise InvalidValueError(f"The wildcard __{wildcard.name}__ refers to itself: {way}. Change one of the files.")
    if len(inside) >= MAX_NESTING:
        raise InvalidValueError(
            f"Wildcards in wildcards go deeper than {MAX_NESTING}, last __{wildcard.name}__; one of them leads back to "
            "itself. Change one of the files."
        )
    return (*inside, name)


def _options(
    choice: Choice, wildcards: Wildcards, inside: tuple[str, ...]
) -> tuple[tuple[Option, tuple[str, ...]], ...]:
    """The options of a choice, each with the wildcards that it comes from. Where several are to be taken of a single
    wildcard, `{2$$__colors__}`, these are its texts."""
    only = choice.options[0].body
    if len(choice.options) == 1 and len(only) == 1 and isinstance(only[0], Wildcard):
        inner = _within(only[0], wildcards, inside)
        return tuple((option, inner) for option in _texts(only[0], wildcards))
    return tuple((option, inside) for option in choice.options)


def _texts(wildcard: Wildcard, wildcards: Wildcards) -> tuple[Option, ...]:
    """The texts of a wildcard, which may begin with weights."""
    options = []
    for text in wildcards.texts(wildcard.name):
        weight = _WEIGHT.match(text) if "::" in text else None
        options.append(Option(text[weight.end() :] if weight else text, float(weight[1]) if weight else 1.0))
    return tuple(options)


def _is_text(wildcard: Wildcard, wildcards: Wildcards) -> bool:
    return wildcard.may_be_text and not wildcards.matching(wildcard.name)


class _Drawing:
    """One prompt, drawn by a source of chance."""

    def __init__(self, wildcards: Wildcards, chance: random.Random) -> None:
        self._wildcards = wildcards
        self._chance = chance
        self._characters = 0

    def text(self, parts: Template, inside: tuple[str, ...]) -> str:
        return "".join(self._part(part, inside) for part in parts)

    def _part(self, part: Part, inside: tuple[str, ...]) -> str:
        if isinstance(part, str):
            self._characters += len(part)
            if self._characters > MAX_CHARACTERS:
                raise InvalidValueError(TOO_LONG)
            return part
        if isinstance(part, Wildcard):
            if _is_text(part, self._wildcards):
                return f"__{part.name}__"
            inner = _within(part, self._wildcards, inside)
            (option,) = self._drawn(_texts(part, self._wildcards), 1)
            return self.text(option.body, inner)
        options = _options(part, self._wildcards, inside)
        count = self._chance.randint(min(part.least, len(options)), min(part.most, len(options)))
        places = {id(option): inner for option, inner in options}
        chosen = self._drawn(tuple(option for option, _ in options), count)
        return part.separator.join(self.text(option.body, places[id(option)]) for option in chosen)

    def _drawn(self, options: Sequence[Option], count: int) -> list[Option]:
        """Different options by their weights; of those without weight only where all have none."""
        left = list(options)
        chosen = []
        for _ in range(count):
            weights = [option.weight for option in left]
            (place,) = self._chance.choices(range(len(left)), weights if sum(weights) > 0 else None)
            chosen.append(left.pop(place))
        return chosen


@dataclass(frozen=True)
class _Listing:
    """The first `limit` prompts. Of a product only the first `limit` texts of each factor can be among its first
    `limit`, so no more are ever made."""

    wildcards: Wildcards
    limit: int

    def texts(self, parts: Template, inside: tuple[str, ...]) -> Iterator[str]:
        factors = [list(islice(self._part(part, inside), self.limit)) for part in parts]
        for chosen in product(*factors):
            text = "".join(chosen)
            if len(text) > MAX_CHARACTERS:
                raise InvalidValueError(TOO_LONG)
            yield text

    def _part(self, part: Part, inside: tuple[str, ...]) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Wildcard):
            if _is_text(part, self.wildcards):
                yield f"__{part.name}__"
                return
            inner = _within(part, self.wildcards, inside)
            for option in _texts(part, self.wildcards):
                yield from self.texts(option.body, inner)
        else:
            options = _options(part, self.wildcards, inside)
            for count in range(min(part.least, len(options)), min(part.most, len(options)) + 1):
                for chosen in combinations(options, count):
                    yield from self._joined(chosen, part.separator)

    def _joined(self, chosen: Sequence[tuple[Option, tuple[str, ...]]], separator: str) -> Iterator[str]:
        factors = [list(islice(self.texts(option.body, inside), self.limit)) for option, inside in chosen]
        for texts in product(*factors):
            yield separator.join(texts)
