"""The Settings tab: a list of sections, one shown at a time, a search over all; Apply stores what changed. Behind them
pages that are no settings: defaults of the forms, actions, the system, licences.

The page's scripts (settings.js, settings_fields.js) make the fields of what `internal/settings` says of the settings
(`modules.ui.routes.settings_routes`). As components of Gradio, hundreds of them would slow down every page start and
every event."""

from collections.abc import Callable
from html import escape

import gradio as gr

from modules.scripts.callbacks import Moment
from modules.services import Services
from modules.settings.definitions import visible_sections
from modules.ui.form.ui_config import UiConfig
from modules.ui.tabs.defaults_page import build_defaults_page

BAR = """
<div class="fw-settings-tools">
<div class="fw-search">
  <input id="settings_search" type="search" placeholder="Search settings" aria-label="Search settings">
  <span id="settings_unsaved" role="status"></span>
</div>
<button type="button" id="settings_reload" data-act="reload"
  title="Build the page again with changed defaults, themes and tabs">Reload UI</button>
<button type="button" id="settings_submit" data-act="save">Apply settings</button>
</div>
<div id="settings_result"></div>
"""
ACTIONS = """
<div class="fw-tools">
  <button type="button" data-act="reload" title="Build the page again with changed defaults, themes and tabs"
    >Reload UI</button>
  <button type="button" data-act="unload" title="Free the memory of the model; the next image loads it again"
    >Unload the model</button>
  <button type="button" data-act="load" title="Read the model from its file again">Load the model again</button>
  <button type="button" data-act="measure"
    title="Measure what the device computes fast, and choose by it: up to 20 s, after the running image"
    >Measure the device again</button>
  <button type="button" data-act="notify" title="The browser tells you when images are done while the page is hidden"
    >Allow browser notifications</button>
</div>
<p id="settings_action_result" role="status"></p>
"""
SYSTEM = """
<p>The machine and the settings of this program, without passwords and keys.</p>
<div class="fw-tools"><a href="internal/sysinfo" target="_blank" rel="noopener">Show</a>
<a href="internal/sysinfo-download">Save as a file</a></div>
"""
LICENCES = """
<p>The packages that this program uses, and their licenses.</p>
<div id="settings_licences" translate="no"></div>
"""


def build_settings_tab(services: Services) -> Callable[[UiConfig], None]:
    """Build the tab's contents inside of the tab that is open now. Call what is returned when the whole page stands."""
    gr.HTML(BAR, elem_classes=["fw-settings-bar"])
    with gr.Row(elem_id="settings_body", equal_height=False):
        gr.HTML(_sections_list(), elem_id="settings_list")
        with gr.Column(elem_id="settings_pages"):
            gr.HTML(_sections())
            with _page("Defaults"):
                wire_defaults = build_defaults_page()
            with _page("Actions"):
                gr.HTML(ACTIONS)
                services.scripts.callbacks.call(Moment.SETTINGS_ACTIONS, services)
            with _page("Sysinfo"):
                gr.HTML(SYSTEM)
            with _page("Licenses"):
                gr.HTML(LICENCES)
            gr.HTML('<p id="settings_nothing" role="status" hidden>No setting matches.</p>')
    return wire_defaults


def _sections() -> str:
    """A part of the page for each section; settings.js puts the fields of its settings in when the tab is opened."""
    parts = (
        f'<section class="fw-section" id="settings_{section.id}"><h2>{escape(section.title)}</h2></section>'
        for section in visible_sections()
    )
    return "".join(parts)


def _page(title: str) -> gr.Column:
    """A page of the tab that holds no settings; close its `with` when it is built."""
    column = gr.Column(elem_classes=["fw-section", "fw-no-settings"], elem_id=f"settings_page_{title.lower()}")
    with column:
        gr.HTML(f"<h2>{title}</h2>")
    return column


def _sections_list() -> str:
    """Buttons for all pages under the headings of their categories; settings.js shows the page of the same place."""
    groups: dict[str, list[str]] = {}
    place = 0
    for section in visible_sections():
        button = f'<button type="button" data-place="{place}">{escape(section.title)}</button>'
        groups.setdefault(section.category or "Uncategorized", []).append(button)
        place += 1
    for title in ("Defaults", "Actions", "Sysinfo", "Licenses"):
        groups.setdefault("Other", []).append(f'<button type="button" data-place="{place}">{title}</button>')
        place += 1
    groups["Other"].append('<button type="button" data-place="all">Show all pages</button>')
    parts = (f"<h3>{escape(title)}</h3>{''.join(buttons)}" for title, buttons in groups.items())
    return f'<nav aria-label="Pages of the settings">{"".join(parts)}</nav>'
