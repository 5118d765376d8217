"""The History tab: a frame that the page's script fills from the routes of the history."""

import json
from html import escape

import gradio as gr

from modules.memory.formats.catalog import FORMAT_SPECS
from modules.system.texts import page_text

EXAMPLES = (
    *("steps:>20", "model:foo", "lora:bar", "fp8:on", "date:2026-11", "size:512x512", "is:starred", "tag:x"),
    "board:x",
)


def build_history_tab() -> None:
    """Build the tab's contents inside of the tab that is open now."""
    examples = " ".join(f"<code>{text}</code>" for text in EXAMPLES).replace(">20", "&gt;20")
    offered = escape(json.dumps([(name, spec.label) for name, spec in FORMAT_SPECS.items() if spec.is_chosen]))
    gr.HTML(
        '<div id="fw_history" data-precisions="'
        + offered
        + page_text(
            '"><div class="fw-history-bar">'
            '<input type="search" id="fw_history_search" aria-label="Search the history" '
            'placeholder="Search: words, &quot;phrases&quot;, steps:&gt;20 model:foo">'
            '<button type="button" data-do="starred" aria-pressed="false">★ Starred</button>'
            '<button type="button" data-do="trashed" aria-pressed="false">Trash</button>'
            '<select id="fw_history_user" aria-label="Whose images" hidden></select>'
            '<button type="button" data-do="import">Import a folder</button></div>'
            f'<p class="fw-history-help">{examples}; a minus sign in front excludes: <code>-lora:bar</code></p>'
            '<div class="fw-boards" role="group" aria-label="Boards"></div>'
            '<p class="fw-history-status" role="status"></p><div class="fw-history-imports"></div>'
            '<div class="fw-history-chosen" role="group" aria-label="Chosen images" hidden></div>'
            '<div class="fw-history-days"></div>'
            '<div class="fw-tools"><button type="button" data-do="more" hidden>Older images</button></div></div>'
        ),
        elem_id="fw_history_box",
    )
