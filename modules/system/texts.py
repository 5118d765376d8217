"""The mark of a text that the page shows, for code that does not know the page.

The page translates what it shows by a table of texts; `modules/ui/page/texts.py` collects the marked ones for it.
"""


def page_text(text: str) -> str:
    """Mark `text` as shown on the page, and return it unchanged. The argument is written where it is marked: a string,
    an f-string, whose parts are `{0}`, `{1}` ... for a translation, or a piece of HTML with either."""
    return text
