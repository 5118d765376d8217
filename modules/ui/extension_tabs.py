"""Tabs of extensions: what their `on_ui_tabs` callbacks return, one broken tab less where one is broken."""

import gradio as gr

from modules.scripts.callbacks import Callbacks, Moment

ExtensionTab = tuple[gr.Blocks, str, str, bool]
"""Contents, title, element id, whether its extension has scripts for the page."""
SCRIPTED = "fw-scripted-tab"
"""The class of such tabs: the page opens each once, before their scripts look for what is in it."""


def make_extension_tabs(callbacks: Callbacks) -> list[ExtensionTab]:
    """Have them made, each as Blocks of its own; call it while no page is being built."""
    tabs: list[ExtensionTab] = []
    for entry in callbacks.at(Moment.UI_TABS):
        try:
            for block, title, name in callbacks.run(entry) or ():
                if not isinstance(block, gr.Blocks):
                    raise TypeError(f"{title}: a tab must be gr.Blocks, not {type(block).__name__}")
                owner = entry.acting.owner if entry.acting is not None else None
                has_scripts = owner is not None and (owner.folder / "javascript").is_dir() and not owner.is_built_in
                tabs.append((block, str(title), str(name), has_scripts))
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
            entry.failed(error)
    return tabs


def place_extension_tabs(tabs: list[ExtensionTab]) -> None:
    """Put them into the tabs that are open now."""
    for block, title, name, has_scripts in tabs:
        with gr.Tab(title, id=name, elem_id=f"tab_{name}", elem_classes=[SCRIPTED] if has_scripts else None):
            block.render()  # type: ignore[no-untyped-call]
