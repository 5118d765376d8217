"""The Get models tab: a frame that the page's script fills from the routes of downloads and of model files."""

import gradio as gr

SHOWN = (
    ("all", "All models"),
    ("unused", "Not used for 90 days"),
    ("doubles", "Duplicates"),
    ("missing", "Missing parts"),
)


def build_models_tab() -> None:
    """Build the tab's contents inside of the tab that is open now."""
    shown = "".join(f'<option value="{value}">{word}</option>' for value, word in SHOWN)
    gr.HTML(
        '<div id="fw_models"><form class="fw-models-bar">'
        '<input type="text" id="fw_models_source" autocomplete="off" spellcheck="false" aria-label="What to get" '
        'placeholder="A name from the list below, owner/repository/file.safetensors, or an address">'
        '<button type="submit" data-do="look">Inspect</button>'
        '<button type="button" data-do="get" class="fw-primary">Download</button>'
        '<label><input type="checkbox" id="fw_models_pickle"> Allow a pickle file (.ckpt, .pt) once</label></form>'
        '<p class="fw-models-status" role="status"></p><div class="fw-models-found"></div>'
        '<div class="fw-models-downloads"></div>'
        '<h3>Models for this machine</h3><div class="fw-models-fitting"></div>'
        '<details class="fw-models-list"><summary>All known models</summary>'
        '<div class="fw-models-known"></div></details>'
        '<h3>On this disk</h3><div class="fw-models-bar">'
        f'<label>Show <select id="fw_models_shown">{shown}</select></label>'
        '<button type="button" data-do="doubles">Find duplicates</button></div>'
        '<div class="fw-models-disk"></div></div>',
        elem_id="fw_models_box",
    )
