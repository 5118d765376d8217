"""Tabs of extensions: what their `on_ui_tabs` callbacks return, one broken tab less where one is broken."""

import gradio as gr

from modules.scripts.callbacks import Callbacks, Moment
from modules.scripts.library import outside_of_the_page

ExtensionTab = tuple[gr.Blocks, str, str]
"""Contents, title, element id."""


def make_extension_tabs(callbacks: Callbacks) -> list[ExtensionTab]:
    """Have them made, each as Blocks of its own, which may use controls of the page that were built before."""
    tabs: list[ExtensionTab] = []
    for entry in callbacks.at(Moment.UI_TABS):
        try:
            with outside_of_the_page():
                made = callbacks.run(entry) or ()
            for block, title, name in made:
                if not isinstance(block, gr.Blocks):
                    raise TypeError(f"{title}: a tab must be gr.Blocks, not {type(block).__name__}")
                tabs.append((block, str(title), str(name)))
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
            entry.failed(error)
    return tabs


def place_extension_tabs(tabs: list[ExtensionTab]) -> None:
    """Put them into the tabs that are open now."""
    for block, title, name in tabs:
        with gr.Tab(title, id=name, elem_id=f"tab_{name}", elem_classes=["fw-foreign"]):
            block.render()  # type: ignore[no-untyped-call]
