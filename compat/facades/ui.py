"""Names that extensions import from `modules.ui`: symbols and small parts of pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from compat.facades.call_queue import wrap_gradio_call, wrap_gradio_gpu_call, wrap_queued_call
from compat.facades.infotext_utils import PasteField, image_from_url_text, parse_generation_parameters
from compat.facades.refusal import lazy
from compat.facades.sd_samplers import samplers, samplers_for_img2img
from compat.facades.style_book import prompt_styles
from compat.facades.ui_common import (
    create_output_panel,
    create_refresh_button,
    folder_symbol,
    plaintext_to_html,
    refresh_symbol,
)
from compat.facades.ui_components import (
    DropdownMulti,
    FormColumn,
    FormGroup,
    FormHTML,
    FormRow,
    InputAccordion,
    ResizeHandleRow,
    ToolButton,
)
from compat.facades.ui_gradio_extensions import webpath
from compat.host import host_now
from modules.processing.request.request import PARAMETERS as _PARAMETERS
from modules.system.bounded import read_json
from modules.ui.form.seed_field import SeedField

__all__ = [
    "DropdownMulti",
    "FormColumn",
    "FormGroup",
    "FormHTML",
    "FormRow",
    "InputAccordion",
    "ResizeHandleRow",
    "ToolButton",
    "apply_styles",
    "create_output_panel",
    "create_refresh_button",
    "create_seed_inputs",
    "folder_symbol",
    "gr_show",
    "image_from_url_text",
    "parse_generation_parameters",
    "plaintext_to_html",
    "refresh_symbol",
    "samplers",
    "samplers_for_img2img",
    "setup_progressbar",
    "versions_html",
    "webpath",
    "wrap_gradio_call",
    "wrap_gradio_gpu_call",
    "wrap_queued_call",
]

random_symbol = "\U0001f3b2\ufe0f"
reuse_symbol = "\u267b\ufe0f"
paste_symbol = "\u2199\ufe0f"
save_style_symbol = "\U0001f4be"
apply_style_symbol = "\U0001f4cb"
clear_prompt_symbol = "\U0001f5d1\ufe0f"
extra_networks_symbol = "\U0001f3b4"
switch_values_symbol = "\u21c5"
art_symbol = "\U0001f3a8"
trash_prompt_symbol = clear_prompt_symbol
restore_progress_symbol = "\U0001f300"
detect_image_size_symbol = "\U0001f4d0"
up_down_symbol = "\u2195\ufe0f"


def gr_show(visible: bool = True) -> Any:
    """An update that shows or hides a component."""
    return gr.update(visible=visible)


def versions_html() -> str:
    """Versions for the foot of a page."""
    import platform

    from modules.version import PROGRAM_VERSION

    return f"version: {PROGRAM_VERSION} • python: {platform.python_version()} • gradio: {gr.__version__}"


def setup_progressbar(*args: Any, **keywords: Any) -> None:
    """The page shows the progress of its jobs by itself."""


def apply_styles(prompt: str, prompt_neg: str, styles: list[str]) -> list[Any]:
    """Both prompts inside these styles, as updates of two fields and the list of styles."""
    prompt = prompt_styles.apply_styles_to_prompt(prompt, styles)
    prompt_neg = prompt_styles.apply_negative_styles_to_prompt(prompt_neg, styles)
    return [gr.update(value=prompt), gr.update(value=prompt_neg), gr.update(value=[])]


def create_seed_inputs(target_interface: str) -> tuple[Any, ...]:
    """Controls of a seed for a tab of the extension's own: seed, its button, variation seed, strength, size."""
    with FormRow(elem_id=f"{target_interface}_seed_row"):
        seed = SeedField(label="Seed", elem_id=f"{target_interface}_seed")
        random_seed = ToolButton(random_symbol, elem_id=f"{target_interface}_random_seed")
        reuse_seed = ToolButton(reuse_symbol, elem_id=f"{target_interface}_reuse_seed")
        checkbox = gr.Checkbox(label="Extra", elem_id=f"{target_interface}_subseed_show", value=False)
    with FormRow(visible=False) as row:
        subseed = SeedField(label="Variation seed", elem_id=f"{target_interface}_subseed")
        strength = gr.Slider(0.0, 1.0, value=0.0, step=0.01, label="Variation strength")
        width = gr.Slider(0, 2048, step=8, value=0, label="Resize seed from width")
        height = gr.Slider(0, 2048, step=8, value=0, label="Resize seed from height")
    random_seed.click(fn=lambda: -1, inputs=[], outputs=[seed])
    checkbox.change(fn=lambda shown: gr.update(visible=shown), inputs=[checkbox], outputs=[row])
    return seed, reuse_seed, subseed, reuse_seed, strength, height, width, checkbox


def connect_reuse_seed(
    seed: Any, reuse_seed: Any, generation_info: Any, is_subseed: bool, *more: Any, **unused: Any
) -> None:
    """Have a button take the seed of the chosen image from the JSON in `generation_info`."""

    def taken(text: str) -> Any:
        try:
            found = read_json(text or "{}")
        except ValueError:
            return gr.update()
        seeds = found.get("all_subseeds" if is_subseed else "all_seeds") or [found.get("seed", -1)]
        return seeds[0]

    reuse_seed.click(fn=taken, inputs=[generation_info], outputs=[seed])


def create_override_settings_dropdown(tabname: str, row: Any) -> Any:
    """A list of settings for one job, as "name: value"."""
    return gr.Dropdown(
        [],
        label="Override settings",
        visible=False,
        elem_id=f"{tabname}_override_settings",
        multiselect=True,
        allow_custom_value=True,
    )


def calc_resolution_hires(
    enable: bool, width: int, height: int, hr_scale: float, hr_resize_x: int, hr_resize_y: int
) -> str:
    """In words, from which size to which the second pass goes."""
    if not enable:
        return ""
    wide = hr_resize_x or (width * hr_resize_y // height if hr_resize_y else int(width * hr_scale))
    high = hr_resize_y or (height * hr_resize_x // width if hr_resize_x else int(height * hr_scale))
    return f"from {width}x{height} to {wide}x{high}"


def interrogate(image: Any) -> Any:
    """A caption of an image, as an update."""
    from compat.facades.interrogate import InterrogateModels

    return gr.update(value=InterrogateModels().interrogate(image))


def interrogate_deepbooru(image: Any) -> Any:
    """Tags of an image, as an update."""
    from compat.facades.deepbooru import model

    return gr.update(value=model.tag(image))


def ordered_ui_categories() -> list[str]:
    """The parts of the form in their order."""
    return ["sampler", "dimensions", "cfg", "seed", "scripts"]


def create_sampler_and_steps_selection(choices: list[Any], tabname: str) -> tuple[Any, Any]:
    """Controls of steps and sampler for a tab of the extension's own."""
    names = [one.name for one in choices]
    with FormRow(elem_id=f"sampler_selection_{tabname}"):
        sampler = gr.Dropdown(label="Sampling method", choices=names, value=names[0], elem_id=f"{tabname}_sampling")
        steps = gr.Slider(1, 150, step=1, value=20, label="Sampling steps", elem_id=f"{tabname}_steps")
    return steps, sampler


def _tab(name: str) -> Callable[[], Any]:
    """The controls of a form of the program's, each with the infotext's field that fills it; none before it is
    built."""

    def pairs() -> list[Any]:
        controls = host_now().scripts.controls
        found = {f"{name}_prompt": "Prompt", f"{name}_neg_prompt": "Negative prompt"}
        found |= {row.elem_id(name): row.infotext.key for row in _PARAMETERS if row.control and row.infotext}
        return [PasteField(controls[elem_id], key) for elem_id, key in found.items() if elem_id in controls]

    return pairs


_FORM = "script_callbacks.on_after_component gives each control of the form, by its elem_id."
_REASONS = dict.fromkeys(("create_ui", "create_toprow", "txt2img_interface", "img2img_interface", "Toprow"), _FORM)
_REASONS["setup_ui_api"] = "script_callbacks.on_app_started has the FastAPI app."
_REASONS |= dict.fromkeys(
    ("javascript_html", "css_html", "reload_javascript"), "javascript/ and style.css of an extension are on the page."
)
_REASONS["settings_components"] = "on_ui_settings and shared.opts.add_option add settings."
_REASONS |= dict.fromkeys(("add_style", "process_interrogate", "paste_function", "get_value_for_setting"), _FORM)
_REASONS["update_negative_prompt_token_counter"] = "POST /internal/token-count counts tokens."
_REASONS["update_token_counter"] = "POST /internal/token-count counts tokens."
_LAZY: dict[str, Callable[[], Any]] = {"txt2img_paste_fields": _tab("txt2img"), "img2img_paste_fields": _tab("img2img")}
__getattr__ = lazy("ui", _LAZY, _REASONS)
