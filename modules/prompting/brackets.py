"""Find the square brackets of a prompt that edit or alternate it, and hand them out as tokens.

This is the lexer of the schedule grammar (`schedule_grammar.py`). It decides which brackets are structure and which
are text in one pass, so the grammar behind it is unambiguous and never meets an error.

What counts as structure follows the recordings of the reference UI:

- A group is `(...)`, `(a:b)`, `[...]`, `[to:when]`, `[from:to:when]` or `[a|b|...]`, nested at will. Of these only the
  last three change with the step; the others are printed as they stand.
- A group that fits none of these forms (`[a:b]`, `[a:b:c:0.5]`, an unclosed bracket) is text, and so is every group
  around it; groups inside it still work.
- A bar outside an alternation, and a backslash with nothing to escape, make the whole prompt text.
- A backslash escapes the next character (and stays in the text: the attention parser removes it).
"""

import re
from collections.abc import Iterator
from typing import Any

from lark import Token
from lark.lexer import Lexer

# The parts of a prompt that can be structure: an escaped character is swallowed whole, a lone backslash matches last.
_SPECIAL = re.compile(r"\\.|[\[\]():|\\]")
# What follows the last colon of an edit: a number in the usual notations, with spaces around it.
_WHEN = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*")


class _Frame:
    """An open bracket, with the separators seen directly inside it so far."""

    __slots__ = ("bars", "colons", "opener", "start")

    def __init__(self, opener: str, start: int) -> None:
        self.opener = opener
        self.start = start
        self.colons: list[int] = []
        self.bars: list[int] = []


# A piece of structure: where it starts and ends in the prompt, its terminal and its value.
Mark = tuple[int, int, str, str]


def find_structure(prompt: str) -> list[Mark] | None:
    """The structural pieces of `prompt` in order of position; None if the prompt as a whole has to stay text.

    Linear in the length of the prompt (plus a sort of the marks), without recursion.
    """
    marks: list[Mark] = []
    stack: list[_Frame] = []

    def give_up_on_open_brackets() -> bool:
        """Take what is open, and cannot be closed any more, as text: its brackets and colons. False if a bar was among
        them."""
        parsable = not any(frame.bars for frame in stack)
        stack.clear()
        return parsable

    for match in _SPECIAL.finditer(prompt):
        char, at = match.group(), match.start()
        if len(char) == 2:
            continue
        if char == "\\":
            return None
        if char in "([":
            stack.append(_Frame(char, at))
        elif char == ":":
            if stack:
                stack[-1].colons.append(at)
        elif char == "|":
            if not stack:
                return None
            stack[-1].bars.append(at)
        else:
            fits = bool(stack) and (stack[-1].opener == "(") == (char == ")")
            group_marks = _classify(prompt, stack[-1], at) if fits else None
            if group_marks is None:
                if not give_up_on_open_brackets():
                    return None
            else:
                marks += group_marks
                stack.pop()
    if not give_up_on_open_brackets():
        return None
    marks.sort()
    return marks


def _classify(prompt: str, frame: _Frame, end: int) -> list[Mark] | None:
    """The marks of the group from `frame` to its closing bracket at `end`; None if the group has no valid form."""
    colons, bars = frame.colons, frame.bars
    start = frame.start
    if frame.opener == "(":
        return [] if not bars and len(colons) <= 1 else None
    if not colons and not bars:
        return []
    if not colons:
        return [
            (start, start + 1, "ALTERNATE_OPEN", "["),
            *((bar, bar + 1, "BAR", "|") for bar in bars),
            (end, end + 1, "CLOSE", "]"),
        ]
    when = _WHEN.fullmatch(prompt, colons[-1] + 1, end)
    if bars or len(colons) > 2 or when is None:
        return None
    tail = (colons[-1], end + 1, "WHEN", when.group(1))
    if len(colons) == 1:
        return [(start, start + 1, "ADD_OPEN", "["), tail]
    return [(start, start + 1, "EDIT_OPEN", "["), (colons[0], colons[0] + 1, "COLON", ":"), tail]


def tokenize(prompt: str) -> Iterator[Token]:
    """Structure tokens with `TEXT` between them; a prompt that has to stay text is one `TEXT`."""
    position = 0
    for start, end, terminal, value in find_structure(prompt) or ():
        if start > position:
            yield Token("TEXT", prompt[position:start])
        yield Token(terminal, value)
        position = end
    if position < len(prompt):
        yield Token("TEXT", prompt[position:])


class BracketLexer(Lexer):
    """`tokenize` in the form lark asks for."""

    def __init__(self, lexer_conf: Any) -> None:
        del lexer_conf  # lark passes its terminals; ours are declared in the grammar and need no patterns

    def lex(self, data: str) -> Iterator[Token]:  # type: ignore[override]
        """Tokens of the prompt `data` (lark's interface for custom lexers)."""
        return tokenize(data)
