"""`modules.infotext_utils`: infotexts as fields, and buttons that send images to the tabs."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from compat.facades.refusal import refusing
from compat.host import has_host, host_now
from modules.images.infotext import parse_infotext, quote, unquote
from modules.images.infotext_settings import override_settings_from
from modules.system.file_names import lies_in

__all__ = [
    "ParamBinding",
    "PasteField",
    "add_paste_fields",
    "bind_buttons",
    "connect_paste",
    "create_buttons",
    "create_override_settings_dict",
    "image_from_url_text",
    "parse_generation_parameters",
    "quote",
    "register_paste_params_button",
    "registered_param_bindings",
    "send_image_and_dimensions",
    "unquote",
]

re_imagesize = re.compile(r"^(\d+)x(\d+)$")
re_hypernet_hash = re.compile(r"\(([0-9a-f]+)\)$")
re_param_code = r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)'
re_param = re.compile(re_param_code)
type_of_gr_update = dict
infotext_to_setting_name_mapping: list[tuple[str, str]] = []
"""Accepted; a setting with `infotext=` is read from infotexts by that name."""
TABS = {"txt2img": "txt2img", "img2img": "img2img", "inpaint": "img2img", "extras": "extras"}


class PasteField(tuple[Any, ...]):
    """A component and what fills it: the name of an infotext's field, or a function of all fields."""

    def __new__(cls, component: Any, target: Any, *, api: str | None = None) -> PasteField:
        """Behaves as the pair of both."""
        return super().__new__(cls, (component, target))

    def __init__(self, component: Any, target: Any, *, api: str | None = None) -> None:
        self.component = component
        self.label = None if callable(target) else target
        self.function: Callable[[Mapping[str, Any]], Any] | None = target if callable(target) else None
        self.api = api


class ParamBinding:
    """A button that sends an image, or how it was made, to a tab."""

    def __init__(
        self,
        paste_button: Any,
        tabname: str,
        source_text_component: Any = None,
        source_image_component: Any = None,
        source_tabname: str | None = None,
        override_settings_component: Any = None,
        paste_field_names: list[str] | None = None,
    ) -> None:
        self.paste_button = paste_button
        self.tabname = tabname
        self.source_text_component = source_text_component
        self.source_image_component = source_image_component
        self.source_tabname = source_tabname
        self.override_settings_component = override_settings_component
        self.paste_field_names = paste_field_names or []


registered_param_bindings: list[ParamBinding] = []
paste_fields: dict[str, dict[str, Any]] = {}


def parse_generation_parameters(x: str, skip_fields: list[str] | None = None) -> dict[str, Any]:
    """The fields of an infotext, with "Prompt" and "Negative prompt"."""
    if has_host():
        settings = host_now().settings.current
        skipped = settings.infotext.infotext_skip_pasting if skip_fields is None else skip_fields
        backward = settings.compatibility.auto_backcompat
        return dict(parse_infotext(x, skip_fields=tuple(skipped), backward_compatible=backward))
    return dict(parse_infotext(x, skip_fields=tuple(skip_fields or ())))


def create_override_settings_dict(text_pairs: list[str]) -> dict[str, Any]:
    """Settings from lines "name: value", by the names that infotexts have."""
    pairs = (line.partition(":") for line in text_pairs)
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    return dict(override_settings_from(fields, host_now().settings.current))


def get_override_settings(params: Mapping[str, Any], *, skip_fields: list[str] | None = None) -> list[Any]:
    """The settings that an infotext's fields would change: (name, key, value)."""
    found = override_settings_from(params, host_now().settings.current)
    return [(key, key, value) for key, value in found.items() if key not in (skip_fields or ())]


def create_buttons(tabs_list: list[str]) -> dict[str, Any]:
    """A button for each tab, in the layout that is open now."""
    import gradio as gr

    return {tab: gr.Button(f"Send to {tab}", elem_id=f"{tab}_tab") for tab in tabs_list}


def bind_buttons(buttons: Mapping[str, Any], send_image: Any, send_generate_info: Any) -> None:
    """Have buttons of `create_buttons` send an image and, as text or as a component that holds it, how it was made."""
    for tab, button in buttons.items():
        text = None if isinstance(send_generate_info, str) else send_generate_info
        register_paste_params_button(ParamBinding(button, tab, text, send_image))


def register_paste_params_button(params: ParamBinding) -> None:
    """Have a button send what it is bound to; called while the page is built."""
    registered_param_bindings.append(params)
    tab = TABS.get(params.tabname, params.tabname)
    image, text = params.source_image_component, params.source_text_component
    inputs = [one for one in (image, text) if one is not None]
    order = (
        f"{'image' if image is not None else ''}{',' if len(inputs) == 2 else ''}{'text' if text is not None else ''}"
    )
    both = f"{'image' if image is not None else 'null'}, {'text' if text is not None else 'null'}"
    js = f"({order}) => {{ sendToTab({tab!r}, {both}); return []; }}"
    params.paste_button.click(fn=None, inputs=inputs, outputs=[], js=js)


def connect_paste_params_buttons() -> None:
    """Buttons are connected when they are registered."""


def add_paste_fields(tabname: str, init_img: Any, fields: Any, override_settings_component: Any = None) -> None:
    """Fields of a tab of the extension's own; those of the program's tabs are filled by `Script.infotext_fields`."""
    paste_fields[tabname] = {"init_img": init_img, "fields": fields}


def connect_paste(
    button: Any, paste_fields: Any, input_comp: Any, override_settings_component: Any = None, tabname: str = ""
) -> None:
    """Have a button fill these fields from the infotext in `input_comp`."""
    import gradio as gr

    def paste(prompt: str) -> list[Any]:
        params = parse_generation_parameters(prompt or "")
        updates: list[Any] = []
        for _, source in paste_fields:
            value = source(params) if callable(source) else params.get(source)
            updates.append(gr.update() if value is None else value)
        return updates

    button.click(
        fn=paste, inputs=[input_comp], outputs=[component for component, _ in paste_fields], show_progress="hidden"
    )


def send_image_and_dimensions(x: Any) -> tuple[Any, Any, Any]:
    """An image with its width and height."""
    image = x if isinstance(x, Image.Image) else image_from_url_text(x)
    return (image, image.width, image.height) if image is not None else (None, None, None)


def image_from_url_text(filedata: Any) -> Image.Image | None:
    """The image that a gallery or an image component gives: a data URI, an image, or a file of the program's or
    Gradio's own folders. Raises ValueError for a file elsewhere."""
    if not filedata:
        return None
    if isinstance(filedata, Image.Image):
        return filedata
    if isinstance(filedata, list | tuple):
        return image_from_url_text(filedata[0])
    if isinstance(filedata, dict):
        return image_from_url_text(filedata.get("path") or filedata.get("name") or filedata.get("image"))
    text = str(filedata)
    if text.startswith("data:image/"):
        return Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2])))
    from pathlib import Path

    from gradio.utils import get_upload_folder

    path = Path(text.partition("?")[0])
    paths = host_now().paths
    own = (paths.outputs_dir, paths.cache_dir, paths.extensions_dir, Path(get_upload_folder()))
    if not lies_in(path, own):
        raise ValueError(f"{path} is no image of this program: it lies outside of its folders.")
    with Image.open(path) as image:
        image.load()
        return image


def reset() -> None:
    """The page is built again: what buttons were bound to is forgotten."""
    registered_param_bindings.clear()
    paste_fields.clear()


def integrate_settings_paste_fields(component_dict: Any) -> None:
    """Accepted; fields of settings are filled by the program."""


def restore_old_hires_fix_params(res: dict[str, Any]) -> None:
    """Done while parsing."""


__getattr__ = refusing("infotext_utils", {"find_hypernetwork_key": "the tag <hypernet:name> names one."})
