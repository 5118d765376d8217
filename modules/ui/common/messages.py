"""Short messages on the page, escaped."""

from html import escape


def error_box(text: str) -> str:
    """Something went wrong; the text says what to do."""
    return f'<div class="fw-message fw-error" role="alert">{escape(text)}</div>'


def note_box(text: str) -> str:
    """Something worth knowing."""
    return f'<div class="fw-message fw-note" role="status">{escape(text)}</div>'
