"""Comments in prompts."""

import pytest

from modules.prompting.comments import strip_comments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", "a cat"),
        ("a red cat # this is a comment\non a chair", "a red cat \non a chair"),
        ("# only\na cat", "\na cat"),
        ("a\n# line\nb", "a\nb"),
        ("a #end", "a \n"),
    ],
)
def test_comments_go(text: str, expected: str) -> None:
    assert strip_comments(text) == expected
