"""The Extensions tab: a frame that the page's script fills with what there is, what failed and what can be had."""

import gradio as gr


def build_extensions_tab() -> None:
    """Build the tab's contents inside of the tab that is open now."""
    gr.HTML(
        '<div id="fw_extensions"><p class="fw-extensions-status" role="status"></p>'
        '<form class="fw-extensions-install"><label>Install from an address, a folder or an archive '
        '<input type="text" name="source" autocomplete="off" spellcheck="false" '
        'placeholder="https://example.org/sd-webui-mine"></label><button type="submit">Install</button></form>'
        '<details class="fw-extensions-index"><summary>Find extensions in an index file</summary>'
        '<form><label>Index file (address or path) <input type="text" name="index" autocomplete="off" '
        'spellcheck="false"></label><label>Search <input type="search" name="search"></label>'
        '<button type="submit">Search</button></form><div class="fw-extensions-offers"></div></details>'
        '<div class="fw-extensions-closed" hidden></div>'
        '<div class="fw-extensions-packages"></div><div class="fw-extensions-list"></div></div>',
        elem_id="fw_extensions_box",
    )
