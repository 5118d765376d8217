"""Prompts from file or textbox: a job for every line. A line is a prompt, or words like those of a command line:
`--prompt "a cat" --steps 20 --sampler_name "Euler a"`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from modules.errors import InvalidValueError
from modules.processing.request.checking import check_names_of
from modules.scripts.job import Job, Processed
from modules.scripts.script import Script
from modules.scripts.script_callbacks import open_to
from modules.system.decoding import decode_text

MAX_LINES = 10_000
TEXTS = ("prompt", "negative_prompt")
NOT_HERE = ("outpath_samples", "outpath_grids", "sampler_index", "restore_faces")


def _flag(text: str) -> bool:
    return text.lower() == "true"


READERS: dict[str, Callable[[str], Any]] = {
    "sd_model": str,
    "prompt_for_display": str,
    "styles": str,
    "seed": int,
    "subseed_strength": float,
    "subseed": int,
    "seed_resize_from_h": int,
    "seed_resize_from_w": int,
    "sampler_name": str,
    "scheduler": str,
    "batch_size": int,
    "n_iter": int,
    "steps": int,
    "cfg_scale": float,
    "width": int,
    "height": int,
    "tiling": _flag,
    "do_not_save_samples": _flag,
    "do_not_save_grid": _flag,
}


class PromptsFromFile(Script):
    """The script."""

    def title(self) -> str:
        return "Prompts from file or textbox"

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = f"script_{'img2img' if is_img2img else 'txt2img'}_prompts_from_file_or_textbox"
        iterate = gr.Checkbox(False, label="Iterate seed every line", elem_id=f"{prefix}_checkbox_iterate")
        same = gr.Checkbox(
            False, label="Use same random seed for all lines", elem_id=f"{prefix}_checkbox_iterate_batch"
        )
        position = gr.Radio(
            ["start", "end"], value="start", label="Insert prompts at the", elem_id=f"{prefix}_prompt_position"
        )
        text = gr.Textbox(label="List of prompt inputs", lines=3, elem_id=f"{prefix}_prompt_txt")
        file = gr.File(label="Upload prompt inputs", type="binary", elem_id=f"{prefix}_file")
        file.change(_loaded, inputs=[file], outputs=[text], queue=False, api_visibility="private")
        return [iterate, same, position, text]

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        return len(lines_of(str(args[3])))

    def run(
        self,
        p: Job,
        iterate: bool = False,
        same_seed: bool = False,
        position: str = "start",
        text: str = "",
    ) -> Processed:
        if position not in ("start", "end"):
            raise InvalidValueError(f"Insert prompts at the: {position!r} is none of: start, end.")
        jobs = []
        for number, values in enumerate(lines_of(text)):
            start = p.replace()
            if iterate:
                start.seed += number * p.batch_size * p.n_iter
            elif number and not same_seed:
                start.seed, start.subseed = p.requested_seed, p.requested_subseed
            job = _job(start, values, position)
            check_names_of(job.to_request())  # everything wrong is said before the first image
            jobs.append(job)
        runs: list[Processed] = []
        for job in jobs:
            runs.append(job.make())
            if runs[-1].interrupted:
                break
        return Processed.joined(runs)


@open_to("user")
def _loaded(data: bytes | None) -> str:
    return decode_text(data or b"").strip()


def lines_of(text: str) -> list[dict[str, Any]]:
    """The values of each line; empty ones and those that begin with # are left out. Raises `InvalidValueError` for
    words that are not known, and where there is no line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        found.append(_words(line.strip(), number) if "--" in line else {"prompt": line.strip()})
    if not found:
        raise InvalidValueError("There are no prompts: write one a line, or load a file.")
    if len(found) > MAX_LINES:
        raise InvalidValueError(f"{len(found)} prompts; at most {MAX_LINES} are allowed.")
    return found


def _words(line: str, number: int) -> dict[str, Any]:
    """A line of `--name value`; texts go on up to the next name, with or without quotes."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidValueError(f"Line {number}: {error}. Close every quote: {line}") from error
    values: dict[str, Any] = {}
    place = 0
    while place < len(words):
        word = words[place]
        name = word.removeprefix("--")
        if not word.startswith("--"):
            raise InvalidValueError(f"Line {number}: {word!r} has no name; write --prompt before it.")
        if name in NOT_HERE:
            raise InvalidValueError(f"Line {number}: --{name} is not supported here; take it out of the line.")
        if name not in TEXTS and name not in READERS:
            raise InvalidValueError(f"Line {number}: unknown --{name}. Known: {', '.join((*TEXTS, *READERS))}.")
        place += 1
        if name in TEXTS:
            end = next((at for at in range(place, len(words)) if words[at].startswith("--")), len(words))
            values[name] = " ".join(words[place:end])
            place = end
            continue
        if place >= len(words):
            raise InvalidValueError(f"Line {number}: --{name} has no value.")
        try:
            values[name] = READERS[name](words[place])
        except ValueError as error:
            raise InvalidValueError(f"Line {number}: --{name} {words[place]!r} is no number.") from error
        place += 1
    return values


def _job(p: Job, values: dict[str, Any], position: str) -> Job:
    job = p.replace()
    job.do_not_save_grid = True
    for name, value in values.items():
        if name == "sd_model":
            job.override_settings["sd_model_checkpoint"] = value
        elif name == "styles":
            job.apply_styles([value])
        elif name not in (*TEXTS, "prompt_for_display"):
            setattr(job, name, value)
    for name in TEXTS:
        own, common = str(values.get(name, "")), str(getattr(p, name))
        if own:
            both = (own, common) if position == "start" else (common, own)
            setattr(job, name, " ".join(part for part in both if part))
    return job
