"""Components that extensions of the reference UI look for where this page draws by itself: the gallery of a tab, the
images that img2img starts from. Built hidden and only where extensions listen; the page's script (extensions_page.js)
gives their functions what is shown there (`page_value`), and shows what their functions put there."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio_client.utils import is_file_obj_with_meta  # type: ignore[import-untyped]

from modules.ui.common.gradio_scripts import write_no_interface_files

write_no_interface_files()  # of the classes below

SOURCES = {
    "img2img_image": "img2img",
    "img2img_sketch": "sketch",
    "img2maskimg": "inpaint",
    "inpaint_sketch": "inpaint_sketch",
    "img_inpaint_base": "inpaint_upload",
    "img_inpaint_mask": "mask_upload",
}
"""Ids of the reference UI's image components, and the sub tab of img2img that has the image here."""
BUTTONS: tuple[str, ...] = (
    "send_to_img2img",
    "send_to_inpaint",
    "send_to_extras",
    "open_folder",
    "save",
    "save_zip",
    "upscale",
)
BUTTONS += ("interrupting", "style_apply", "style_create", "token_button", "negative_token_button", "extra_networks")
"""Buttons above and below the images of a tab, which the page draws by itself."""
TOOLS = ("interrogate", "deepbooru", "copy_to_img2img", "copy_to_sketch", "copy_to_inpaint")
COUNTERS = ("token_counter", "negative_token_counter")


def _renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The id on the page is the one of what is drawn there; this component has another one."""
    return {**config, "elem_id": f"fw_stand_in_{config['elem_id']}"}


class ResultGallery(gr.Gallery):
    """The images of a tab: a list of {"name": path, "data": address, "is_file": True} for functions, as Gradio 3 had
    it; what functions give is shown as the tab's images."""

    data_model = None  # type: ignore[assignment] # functions of the page's scripts may leave one image of the list

    def __init__(self, tab: str) -> None:
        super().__init__(visible="hidden", elem_id=f"{tab}_gallery", label="Output", show_label=False)
        self.page_value = f"images:{tab}"

    def get_block_name(self) -> str:
        return "gallery"

    def get_config(self, cls: Any = None) -> dict[str, Any]:
        return _renamed(super().get_config(gr.Gallery))

    def api_info(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "object"}}

    def preprocess(self, payload: Any) -> Any:
        """Only files that Gradio has checked to be uploads are passed on."""
        if isinstance(payload, list):
            return [one for one in payload if is_file_obj_with_meta(one)]
        return payload if is_file_obj_with_meta(payload) else None


class ResultInfo(gr.Textbox):
    """JSON of how the images of a tab were made: `infotexts`, `all_seeds`, `index_of_first_image`."""

    def __init__(self, tab: str) -> None:
        super().__init__(visible="hidden", elem_id=f"generation_info_{tab}")
        self.page_value = f"info:{tab}"

    def get_block_name(self) -> str:
        return "textbox"

    def get_config(self, cls: Any = None) -> dict[str, Any]:
        return _renamed(super().get_config(gr.Textbox))


class SourceImage(gr.Image):
    """The image of one of img2img's sub tabs."""

    def __init__(self, elem_id: str, mode: str) -> None:
        super().__init__(visible="hidden", elem_id=elem_id, type="pil", image_mode="RGBA", show_label=False)
        self.page_value = f"source:{mode}"

    def get_block_name(self) -> str:
        return "image"

    def get_config(self, cls: Any = None) -> dict[str, Any]:
        return _renamed(super().get_config(gr.Image))


def build_result_stand_ins(tab: str) -> None:
    """The gallery of a tab and the buttons below it, into the layout that is open now."""
    ResultGallery(tab)
    for name in BUTTONS:
        gr.Button(name.replace("_", " ").capitalize(), visible=False, elem_id=f"{tab}_{name}")
    for name in COUNTERS:
        gr.HTML("", visible=False, elem_id=f"{tab}_{name}")
    ResultInfo(tab)
    for name in ("html_info", "html_log"):
        gr.HTML("", visible="hidden", elem_id=f"{name}_{tab}")


def build_source_stand_ins() -> None:
    """The images that img2img starts from."""
    for elem_id, mode in SOURCES.items():
        SourceImage(elem_id, mode)
    for name in TOOLS:
        gr.Button(name.replace("_", " ").capitalize(), visible=False, elem_id=f"img2img_{name}")
