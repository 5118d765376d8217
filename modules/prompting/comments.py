"""Comments in prompts: from `#` to the end of the line."""

import re

_WHOLE_LINE = re.compile(r"(?:\A|\n)#[^\n]*(?:\n|\Z)")
_REST_OF_LINE = re.compile(r"#[^\n]*(?:\n|\Z)")


def strip_comments(text: str) -> str:
    """The text without comments. A line that is only a comment goes with its line break, after text the break stays."""
    if "#" not in text:
        return text
    return _REST_OF_LINE.sub("\n", _WHOLE_LINE.sub("\n", text))
