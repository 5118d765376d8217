"""Text as CLIP's vocabulary expects it: one spelling for each character.

CLIP's tokenizer (Radford et al. 2021, arXiv:2103.00020) was used with the repairs of the `ftfy` package in front of
it, and so was the reference UI. These are the ones that matter to a prompt: HTML entities, typographic ligatures, full-
and half-width forms, curly quotes, control characters, lone surrogates, and NFC. Guessing at text that was decoded
with the wrong character set ("mojibake") is left out: a prompt is typed, and what is typed is meant.
"""

import html
import re
import unicodedata

_PLAIN = re.compile(r"[\t\n\r -%'-~]*")  # printable ASCII without "&": nothing to do
_ENTITY = re.compile(r"&#?[0-9A-Za-z]{1,24};")
_TERMINAL_ESCAPE = re.compile("\x1b\\[[0-9;]*[a-zA-Z]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_LIGATURES = "ĲĳŉǄǅǆǇǈǉǊǋǌǱǲǳﬀﬁﬂﬃﬄﬅﬆ"
_SINGLE_QUOTES = "ʼ‘’‚‛"
_DOUBLE_QUOTES = "“”„‟"
_CONTROLS = (
    *range(0x00, 0x09),
    0x0B,
    *range(0x0E, 0x20),
    0x7F,
    *range(0x206A, 0x2070),
    0xFEFF,
    *range(0xFFF9, 0xFFFD),
)


def _spelled_out(char: str) -> str:
    """One level of Unicode's compatibility decomposition: "ﬁ" is "<compat> 0066 0069"."""
    codes = unicodedata.decomposition(char).split()[1:]
    return "".join(chr(int(code, 16)) for code in codes)


def _table() -> dict[int, str]:
    table = {ord(char): _spelled_out(char) for char in _LIGATURES}
    table |= {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFF01, 0xFFF0)}
    table[0x3000] = " "
    table |= dict.fromkeys(map(ord, _SINGLE_QUOTES), "'")
    table |= dict.fromkeys(map(ord, _DOUBLE_QUOTES), '"')
    table |= dict.fromkeys(_CONTROLS, "")
    table[ord("ŉ")] = "'n"  # its decomposition begins with a quote that is straightened in turn
    return table


_CHARACTERS = _table()


def clean_text(text: str) -> str:
    """`text` with the repairs of the module docstring; lower case is the tokenizer's business. Never fails."""
    if _PLAIN.fullmatch(text):
        return text
    if "&" in text and "<" not in text:  # with a "<" it looks like markup, where an entity is meant as it stands
        text = _ENTITY.sub(lambda match: html.unescape(match.group()), text)
    text = _TERMINAL_ESCAPE.sub("", text)
    text = _SURROGATE_PAIR.sub(lambda match: match.group().encode("utf-16", "surrogatepass").decode("utf-16"), text)
    text = _LONE_SURROGATE.sub("\ufffd", text)
    return unicodedata.normalize("NFC", text.translate(_CHARACTERS))
