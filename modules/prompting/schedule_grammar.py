"""The grammar of prompt editing and alternation, and the tree it gives.

    [from:to:when]  [to:when]  [from::when]  [a|b|c]

LALR(1) over the tokens of `brackets.py`; every token sequence that lexer makes is in the language.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer

from modules.prompting.brackets import BracketLexer

_GRAMMAR = """
start: sequence
sequence: (TEXT | edit | alternate)*
edit: EDIT_OPEN sequence COLON sequence WHEN
    | ADD_OPEN sequence WHEN
alternate: ALTERNATE_OPEN sequence (BAR sequence)+ CLOSE
%declare TEXT EDIT_OPEN ADD_OPEN COLON WHEN ALTERNATE_OPEN BAR CLOSE
"""


@dataclass(frozen=True, eq=False)
class Edit:
    """`before` up to and including the step that `when` stands for, `after` from the next step on."""

    before: Sequence
    after: Sequence
    when: str


@dataclass(frozen=True, eq=False)
class Alternate:
    """Option (step - 1) modulo the number of options."""

    options: tuple[Sequence, ...]


Part: TypeAlias = str | Edit | Alternate
Sequence: TypeAlias = tuple[Part, ...]


class _Build(Transformer[Token, Sequence]):
    """Turns each reduced rule into its node while the parser runs, so no syntax tree is kept."""

    def start(self, children: list[Any]) -> Sequence:
        sequence: Sequence = children[0]
        return sequence

    def sequence(self, children: list[Any]) -> Sequence:
        return tuple(str(child) if isinstance(child, Token) else child for child in children)

    def edit(self, children: list[Any]) -> Edit:
        if len(children) == 5:
            return Edit(before=children[1], after=children[3], when=str(children[4]))
        return Edit(before=(), after=children[1], when=str(children[2]))

    def alternate(self, children: list[Any]) -> Alternate:
        return Alternate(tuple(child for child in children if not isinstance(child, Token)))


@cache
def _parser() -> Lark:
    """The parser, built at first use (some 10 ms) and without state of its own afterwards."""
    return Lark(_GRAMMAR, parser="lalr", lexer=BracketLexer, transformer=_Build())


def parse_structure(prompt: str) -> Sequence:
    """The prompt as text, edits and alternations. Any text parses; one without structure gives itself."""
    if "[" not in prompt:
        return (prompt,) if prompt else ()
    sequence: Any = _parser().parse(prompt)
    return tuple(sequence)


def walk(sequence: Sequence) -> Iterator[Edit | Alternate]:
    """Every edit and alternation in the tree, in no particular order; keeps its own stack, so depth is no limit."""
    pending: list[Sequence] = [sequence]
    while pending:
        for part in pending.pop():
            if isinstance(part, Edit):
                yield part
                pending += (part.before, part.after)
            elif isinstance(part, Alternate):
                yield part
                pending += part.options
