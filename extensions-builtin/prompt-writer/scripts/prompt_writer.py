"""Write: a longer prompt from a few words, by the language model that the chosen checkpoint reads prompts with. It runs
where it is asked to, and images say what their prompt was written from."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from modules import scripts  # noqa: E402
from modules.jobs.computing import Computing  # noqa: E402
from modules.jobs.tasks import Starter  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402
from modules.system.bounded import read_json  # noqa: E402

FROM, BY = "Written from", "Written by"


class Write(scripts.Script):
    """Takes the record of what was written, and puts it into the infotext of images that are made from it."""

    def __init__(self) -> None:
        super().__init__()
        for tab in ("txt2img", "img2img"):
            self.on_after_component(partial(self.build_button, tab), elem_id=f"{tab}_prompt")
        self.records: dict[str, Any] = {}

    def title(self) -> str:
        return "Write"

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        """Take the place of the record that is next to the button; without a page, one by itself."""
        tab = "img2img" if is_img2img else "txt2img"
        record = self.records.get(tab) or build_record(tab)
        self.infotext_fields = [(record, pasted)]
        return [record]

    def build_button(self, tab: str, on_component: object) -> None:
        """Build the button below the prompt, and the place of the record, which the page's script fills: here it is on
        the page from the beginning, as the folds of scripts are not."""
        import gradio as gr

        gr.Button("Write", elem_id=f"{tab}_write", elem_classes=["fw-write"], size="sm")
        self.records[tab] = build_record(tab)

    def process(self, p: Any, record: str = "", *args: Any) -> None:
        """Say what the prompt was written from, as long as it is in there as it was written."""
        try:
            found = read_json(record) if record else {}
        except ValueError:
            found = {}
        if isinstance(found, dict) and found.get("text") and str(found["text"]) in p.prompt:
            p.extra_generation_params |= {FROM: str(found.get("from", "")), BY: str(found.get("by", ""))}


def build_record(tab: str) -> Any:
    """Build the hidden text that says what was written, see `Write.process`."""
    import gradio as gr

    return gr.Textbox("", label="Record", visible="hidden", elem_id=f"{tab}_write_record")


def pasted(fields: Mapping[str, Any]) -> str:
    """Return the record of an image whose infotext has these fields; "" where nothing was written."""
    if not fields.get(FROM):
        return ""
    return json.dumps({"text": fields.get("Prompt", ""), "from": fields[FROM], "by": fields.get(BY, "")})


def starters(computing: Computing) -> Mapping[str, Starter]:
    """Return how writing begins."""
    from lib_prompt_writer.work import write_starters

    return write_starters(computing)


def add_routes(app: Any, services: Any) -> None:
    """Add the route to the API; only in a server, which has FastAPI."""
    from lib_prompt_writer.routes import write_routes

    app.include_router(write_routes(services))


script_callbacks.on_tasks(starters)
script_callbacks.on_api(add_routes)
