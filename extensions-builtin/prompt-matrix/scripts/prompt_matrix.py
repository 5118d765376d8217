"""Prompt matrix: an image for every combination of the parts of a prompt, `a cat|red|on a chair`: the first part is
always there, each of the others once with and once without."""

from __future__ import annotations

from typing import Any

from modules.errors import InvalidValueError
from modules.images.legend import LegendLine, LegendStyle, checked_margin, grid_with_legend
from modules.scripts.job import Job, Processed
from modules.scripts.script import Script

MAX_OPTIONS = 10
DELIMITERS = {"comma": ", ", "space": " "}
TYPES = ("positive", "negative")


class PromptMatrix(Script):
    """The script."""

    def title(self) -> str:
        return "Prompt matrix"

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = f"script_{'img2img' if is_img2img else 'txt2img'}_prompt_matrix"
        with gr.Row():
            at_start = gr.Checkbox(
                False, label="Put variable parts at start of prompt", elem_id=f"{prefix}_put_at_start"
            )
            seeds = gr.Checkbox(False, label="Use different seed for each picture", elem_id=f"{prefix}_different_seeds")
        with gr.Row():
            kind = gr.Radio(list(TYPES), value="positive", label="Select prompt", elem_id=f"{prefix}_prompt_type")
            delimiter = gr.Radio(
                list(DELIMITERS), value="comma", label="Select joining char", elem_id=f"{prefix}_variations_delimiter"
            )
        margin = gr.Slider(0, 500, value=0, step=2, label="Grid margins (px)", elem_id=f"{prefix}_margin_size")
        return [at_start, seeds, kind, delimiter, margin]

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many images are coming, for the progress bar."""
        return len(combinations(_text_of(p, str(args[2])), bool(args[0]), _delimiter(args[3])))

    def run(
        self,
        p: Job,
        put_at_start: bool = False,
        different_seeds: bool = False,
        prompt_type: str = "positive",
        variations_delimiter: str = "comma",
        margin_size: int = 0,
    ) -> Processed:
        delimiter = _delimiter(variations_delimiter)
        prompts = combinations(_text_of(p, prompt_type), put_at_start, delimiter)
        margin_px, style = checked_margin(margin_size), LegendStyle.of(p.settings)
        if style.notice:
            p.comment(style.notice)
        runs: list[Processed] = []
        for number, prompt in enumerate(prompts):
            job = p.replace()
            setattr(job, "prompt" if prompt_type == "positive" else "negative_prompt", prompt)
            job.seed = p.seed + (number if different_seeds else 0)
            job.n_iter = job.batch_size = 1
            job.do_not_save_grid = True
            runs.append(job.make())
            if runs[-1].interrupted:
                break
        whole = Processed.joined(runs)
        if len(whole.generated) == len(prompts):
            whole.put_grid(_grid(whole, _parts(_text_of(p, prompt_type))[1:], margin_px, style))
            p.save_grids(whole)
        return whole


def _text_of(p: Job, prompt_type: str) -> str:
    if prompt_type not in TYPES:
        raise InvalidValueError(f"Prompt matrix: the prompt {prompt_type!r} is none of: {', '.join(TYPES)}.")
    return p.prompt if prompt_type == "positive" else p.negative_prompt


def _delimiter(name: object) -> str:
    if name not in DELIMITERS:
        raise InvalidValueError(f"Prompt matrix: the joining char {name!r} is none of: {', '.join(DELIMITERS)}.")
    return DELIMITERS[str(name)]


def _parts(text: str) -> list[str]:
    parts = text.split("|")
    if len(parts) - 1 > MAX_OPTIONS:
        raise InvalidValueError(
            f"Prompt matrix: {len(parts) - 1} parts behind a | make {2 ** (len(parts) - 1)} images; at most "
            f"{MAX_OPTIONS} parts are allowed."
        )
    return parts


def combinations(text: str, at_start: bool, delimiter: str) -> list[str]:
    """The prompts in their order: bit n of a prompt's number says whether part n + 1 is in it."""
    first, *options = _parts(text)
    prompts = []
    for number in range(2 ** len(options)):
        chosen = [part.strip().strip(",") for place, part in enumerate(options) if number >> place & 1]
        prompts.append(delimiter.join([*chosen, first] if at_start else [first, *chosen]))
    return prompts


def _grid(whole: Processed, options: list[str], margin_px: int, style: LegendStyle) -> Any:
    """The images, the first half of the options across and the others down."""
    across = (len(options) + 1) // 2
    columns, rows = 2**across, 2 ** (len(options) - across)
    cells = [whole.images[row * columns : (row + 1) * columns] for row in range(rows)]
    return grid_with_legend(
        cells,
        [_label(options[:across], number) for number in range(columns)],
        [_label(options[across:], number) for number in range(rows)],
        margin_px,
        style=style,
    )


def _label(options: list[str], number: int) -> list[LegendLine]:
    """All options, those that are not in these prompts struck through."""
    return [LegendLine(option.strip(), bool(number >> place & 1)) for place, option in enumerate(options)]
