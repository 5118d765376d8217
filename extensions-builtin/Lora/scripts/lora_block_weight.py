"""The script "LoRA Block Weight" of programs that call the API: presets of block weights that come with a request.

Its first two arguments are those of the extension of this name: lines `NAME:1,0,0,...`, and whether it is on. A tag
that names one of them, `<lora:a:1:NAME>` or `<lora:a:1:lbw=NAME>`, gets its numbers, which the infotext records. The
others make its grids, for which the program has axes of X/Y/Z plots.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from modules import scripts
from modules.adapters.block_weights import PRESETS
from modules.adapters.preset_file import presets_of
from modules.errors import InvalidValueError

TITLE = "LoRA Block Weight"
GRID = 2
"""The place of the argument that asks for a grid: 0, or "Disable", for none."""
_TAG = re.compile(r"<(lora|lyco):([^<>]+)>", re.IGNORECASE)


class BlockWeights(scripts.Script):
    """The script; it shows nothing on the page, where presets are a user's file."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        return [
            gr.Textbox(_presets(), visible="hidden", elem_id="lbw_ratiospreset"),  # other extensions read it
            gr.Checkbox(False, visible="hidden"),
        ]

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        presets: Any = args[0] if args else ""
        active: Any = args[1] if len(args) > 1 else True
        if not isinstance(presets, str) or not isinstance(active, bool):
            raise InvalidValueError(f"{title}: the first arguments are lines NAME:1,0,... and true or false.")
        if active and args[GRID : GRID + 1] and args[GRID] not in (0, "0", "Disable", "", None):
            raise InvalidValueError(f"{title}: its grids are not made here; use the script X/Y/Z plot.")
        return [presets, active]

    def process(self, p: Any, presets: str = "", active: bool = False) -> None:
        named = presets_of(presets.splitlines()) if active else {}
        if not named:
            return
        for name in ("all_prompts", "all_hr_prompts"):
            texts = getattr(p, name, None)
            if texts:
                setattr(p, name, [with_numbers(text, named) for text in texts])


def _presets() -> str:
    return "\n".join(f"{name}:{','.join(f'{each:g}' for each in numbers)}" for name, numbers in PRESETS.items())


def with_numbers(prompt: str, named: Mapping[str, str]) -> str:
    """The prompt with the numbers of presets in place of their names; `named` are these, by names in upper case."""

    def replaced(found: re.Match[str]) -> str:
        kind, (name, *parts) = found[1], found[2].split(":")
        return f"<{':'.join([kind, name, *(_numbers(part, named) for part in parts)])}>"

    return _TAG.sub(replaced, prompt)


def _numbers(part: str, named: Mapping[str, str]) -> str:
    name = part.strip().upper().removeprefix("LBW=")
    return f"lbw={named[name]}" if name in named else part
