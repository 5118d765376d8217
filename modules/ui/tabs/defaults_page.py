"""Settings > Defaults: what the forms begin with, taken from what they hold now; ranges and visibility of a control."""

import json
from collections.abc import Callable
from html import escape
from typing import Any

import gradio as gr

from modules.errors import FeatherweightError
from modules.system.texts import page_text
from modules.ui.common.messages import error_box, note_box
from modules.ui.form.ui_config import UiConfig

RELOAD = page_text("Reload UI shows it.")
HIDDEN: dict[str, Any] = {"queue": False, "api_visibility": "private", "show_progress": "hidden"}


def build_defaults_page() -> Callable[[UiConfig], None]:
    """Build into the layout that is open now. Call what is returned when the whole page is built, inside of it: only
    then it is known which controls there are."""
    gr.HTML(
        "<p>The values of the forms when the page opens. Set them as you want, press View changes, and apply what you "
        "want to keep. The file is ui-config.json, as in A1111.</p>"
    )
    with gr.Row():
        view = gr.Button("View changes", elem_id="ui_defaults_view")
        apply = gr.Button("Apply", elem_id="ui_defaults_apply", variant="primary")
    chosen = gr.CheckboxGroup([], label="Changes", elem_id="ui_defaults_changes")
    message = gr.HTML(elem_id="ui_defaults_review")
    with gr.Accordion("Range and visibility of a control", open=False, elem_id="ui_defaults_control") as of_control:
        name = gr.Dropdown([], value=None, label="Control", elem_id="ui_defaults_name")
        shown = gr.Checkbox(True, label="Visible", elem_id="ui_defaults_visible")
        with gr.Row():
            low = gr.Number(label="Minimum", elem_id="ui_defaults_minimum")
            high = gr.Number(label="Maximum", elem_id="ui_defaults_maximum")
            step = gr.Number(label="Step", elem_id="ui_defaults_step")
        with gr.Row():
            keep = gr.Button("Save this control", elem_id="ui_defaults_save")
            reset = gr.Button("Back to the page's own", elem_id="ui_defaults_reset")

    def wire(config: UiConfig) -> None:
        controls = [config.controls[one] for one in config.names]

        def offer() -> Any:
            """All controls: a list too long to come with the page, which few ever open."""
            return gr.update(choices=list(config.controls))

        def changed(values: tuple[Any, ...]) -> dict[str, tuple[Any, Any]]:
            return config.changes(dict(zip(config.names, values, strict=True)))

        def look(*values: Any) -> tuple[Any, str]:
            found = changed(values)
            choices = [
                (f"{key.removesuffix('/value')}: {_short(old)} → {_short(new)}", key)
                for key, (old, new) in found.items()
            ]
            return gr.update(choices=choices, value=list(found)), "" if found else note_box("Nothing was changed.")

        def store(keys: list[str], *values: Any) -> str:
            found = changed(values)
            entries = {key: found[key][1] for key in keys if key in found}
            problems = [
                f"{key}: {problem}." for key, value in entries.items() if (problem := config.problem(key, value))
            ]
            if problems or not entries:
                return error_box(" ".join(problems) or page_text("Press View changes, and choose what to keep."))
            return _saved(config, entries, f"Defaults saved: {len(entries)}. {RELOAD}")

        def about(one: str | None) -> list[Any]:
            get = config.defaults.get
            ranged = f"{one}/minimum" in config.own
            numbers = [
                gr.update(value=get(f"{one}/{key}"), interactive=ranged) for key in ("minimum", "maximum", "step")
            ]
            return [bool(get(f"{one}/visible", True)), *numbers]

        def change(one: str | None, visible: bool, *numbers: float | None) -> str:
            if not one:
                return error_box("Choose a control first.")
            entries: dict[str, Any] = {f"{one}/visible": visible}
            pairs = zip(("minimum", "maximum", "step"), numbers, strict=True)
            entries |= {f"{one}/{key}": value for key, value in pairs if f"{one}/{key}" in config.own}
            problems = [problem for key, value in entries.items() if (problem := config.problem(key, value))]
            if problems:
                return error_box(f"{one}: {'; '.join(problems)}.")
            return _saved(config, entries, f"{one} is saved. {RELOAD}")

        def forget(one: str | None) -> str:
            if not one:
                return error_box("Choose a control first.")
            entries = {key: None for key in config.own if key.rpartition("/")[0] == one}
            return _saved(config, entries, f"{one} is as the page has it. {RELOAD}")

        of_control.expand(offer, outputs=[name], **HIDDEN)
        view.click(look, controls, [chosen, message], **HIDDEN)
        apply.click(store, [chosen, *controls], [message], **HIDDEN)
        name.change(about, [name], [shown, low, high, step], **HIDDEN)
        keep.click(change, [name, shown, low, high, step], [message], **HIDDEN)
        reset.click(forget, [name], [message], **HIDDEN)

    return wire


def _saved(config: UiConfig, entries: dict[str, Any], done: str) -> str:
    try:
        config.save(entries)
    except FeatherweightError as error:
        return error_box(str(error))
    return note_box(done)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return escape(text if len(text) <= 60 else f"{text[:57]}...", quote=False)
