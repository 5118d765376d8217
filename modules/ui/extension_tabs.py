"""Tabs of extensions: what their `on_ui_tabs` callbacks return, one broken tab less where one is broken."""

import gradio as gr

from modules.scripts.callbacks import Callbacks, Moment

ExtensionTab = tuple[gr.Blocks, str, str]
"""Contents, title, element id."""


def make_extension_tabs(callbacks: Callbacks) -> list[ExtensionTab]:
    """Have them made, each as Blocks of its own; call it while no page is being built."""
    tabs: list[ExtensionTab] = []
    for entry in callbacks.at(Moment.UI_TABS):
        try:
            for block, title, name in callbacks.run(entry) or ():
                if not isinstance(block, gr.Blocks):
                    raise TypeError(f"{title}: a tab must be gr.Blocks, not {type(block).__name__}")
                tabs.append((block, str(title), str(name)))
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
            entry.failed(error)
    return tabs


def place_extension_tabs(tabs: list[ExtensionTab]) -> None:
    """Put them into the tabs that are open now."""
    for block, title, name in tabs:
        with gr.Tab(title, id=name, elem_id=f"tab_{name}"):
            block.render()  # type: ignore[no-untyped-call]
