"""Choices and wildcards in prompts: `{a|b}`, `{2$$a|b|c}`, `__colors__` (grammar: `modules.prompting.templates`).

Each image draws its own prompt with its own seed, so that the seed in its infotext makes it again. The infotext names
the template next to the prompt that came of it, under the keys that the dynamic prompts extension of the reference UI
writes.
"""

from typing import Any

import modules.scripts as scripts
from modules.errors import InvalidValueError
from modules.prompting.templates import all_prompts, has_choices, parse_template, random_prompt
from modules.prompting.wildcards import WildcardBook
from modules.scripts import program_now, script_callbacks
from modules.scripts.job import Job
from modules.settings.group import SettingsGroup, choice
from modules.settings.setting import Section

PROGRAM = program_now()
TEMPLATE, NEGATIVE_TEMPLATE, HIRES_TEMPLATE = "Template", "Negative Template", "Hires Template"
SYNTAX = "{a|b}, {2$$a|b|c}, {0.5::a|b}, __wildcard__"
MAX_IMAGES = 1000
RESULT, FROM_TEMPLATE = "The final prompt", "The template"


class DynamicPromptSettings(SettingsGroup):
    """Settings of pasting."""

    section = Section(id="dynamic_prompts", title="Dynamic prompts", category="Extensions")

    dynamic_prompts_paste = choice(
        "Pasting the parameters of an image with a template fills in",
        RESULT,
        (RESULT, FROM_TEMPLATE),
        hint="With the image's seed both make the same image, the template only while its wildcards stay as they are.",
    )


class DynamicPrompts(scripts.Script):
    """Takes part in every job; does nothing where the prompts hold no choice."""

    def title(self) -> str:
        return "Dynamic prompts"

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        gr.HTML(f"<p><code>{SYNTAX}</code></p>")  # an `info` would show underscores as bold text
        return [
            gr.Checkbox(True, label="Choices and wildcards"),
            gr.Checkbox(False, label="All combinations", info="One image for each; sets the batch count."),
            gr.Slider(0, MAX_IMAGES, value=0, step=1, label="At most", info="Maximum number of combinations; 0: all."),
            gr.Checkbox(False, label="One seed for all images"),
        ]

    def before_process(
        self,
        p: Job,
        is_on: bool = True,
        is_combinatorial: bool = False,
        most: float = 0,
        has_fixed_seed: bool = False,
        *_: Any,
    ) -> None:
        if not (is_on and is_combinatorial and self._is_template(p)):
            return
        count = len(self._combinations(p, int(most)))
        p.n_iter = -(-count // p.batch_size)

    def process(
        self,
        p: Job,
        is_on: bool = True,
        is_combinatorial: bool = False,
        most: float = 0,
        has_fixed_seed: bool = False,
        *_: Any,
    ) -> None:
        if not is_on or not self._is_template(p):
            return
        if has_fixed_seed:
            p.all_seeds[:] = [p.seed] * len(p.all_seeds)
        book = WildcardBook(PROGRAM.folders("wildcards"))
        keys = self._keys(p)
        templates = {TEMPLATE: p.prompt, NEGATIVE_TEMPLATE: p.negative_prompt, HIRES_TEMPLATE: p.hr_prompt}
        for name, text in templates.items():
            if text and has_choices(text):
                p.extra_generation_params[name] = text
        if is_combinatorial:
            pairs = self._combinations(p, int(most))
            p.all_prompts[:] = [pairs[number % len(pairs)][0] for number in range(len(p.all_prompts))]
            p.all_negative_prompts[:] = [pairs[number % len(pairs)][1] for number in range(len(p.all_prompts))]
        else:
            prompt, negative = parse_template(p.prompt), parse_template(p.negative_prompt)
            p.all_prompts[:] = [random_prompt(prompt, book, key) for key in keys]
            p.all_negative_prompts[:] = [random_prompt(negative, book, f"{key} negative") for key in keys]
        if p.enable_hr and p.hr_prompt:
            p.hr_prompt = random_prompt(parse_template(p.hr_prompt), book, keys[0])
        if p.enable_hr and p.hr_negative_prompt:
            p.hr_negative_prompt = random_prompt(parse_template(p.hr_negative_prompt), book, f"{keys[0]} negative")

    @staticmethod
    def _is_template(p: Job) -> bool:
        texts = [p.prompt, p.negative_prompt]
        texts += [p.hr_prompt or "", p.hr_negative_prompt or ""] if p.enable_hr else []
        return any(has_choices(text) for text in texts)

    @staticmethod
    def _keys(p: Job) -> list[str]:
        """Return what each image draws with: what its infotext says of its seed."""
        if p.subseed_strength > 0:
            pairs = zip(p.all_seeds, p.all_subseeds, strict=True)
            return [f"{seed} {subseed}" for seed, subseed in pairs]
        return [str(seed) for seed in p.all_seeds]

    @staticmethod
    def _combinations(p: Job, most: int) -> list[tuple[str, str]]:
        """Prompts with their negative prompts; for each prompt all negative prompts."""
        book = WildcardBook(PROGRAM.folders("wildcards"))
        limit = most if most > 0 else MAX_IMAGES + 1
        prompts = all_prompts(parse_template(p.prompt), book, limit)
        negatives = all_prompts(parse_template(p.negative_prompt), book, limit)
        pairs = [(prompt, negative) for prompt in prompts for negative in negatives][:limit]
        if len(pairs) > MAX_IMAGES:
            raise InvalidValueError(
                f"The prompts have more than {MAX_IMAGES} combinations; say with 'At most' how many of them to make, "
                "or switch 'All combinations' off to draw some by chance."
            )
        return pairs


def paste_template(infotext: str, fields: dict[str, Any]) -> None:
    """The template instead of the prompt, where the settings say so."""
    if DynamicPromptSettings(PROGRAM.settings()).dynamic_prompts_paste != FROM_TEMPLATE:
        return
    for name, field in ((TEMPLATE, "Prompt"), (NEGATIVE_TEMPLATE, "Negative prompt"), (HIRES_TEMPLATE, "Hires prompt")):
        if isinstance(fields.get(name), str):
            fields[field] = fields[name]
    if isinstance(fields.get("Wildcard prompt"), str) and TEMPLATE not in fields:
        fields["Prompt"] = fields["Wildcard prompt"]  # of another extension for the reference UI


script_callbacks.on_ui_settings(lambda settings: settings.add(DynamicPromptSettings))
script_callbacks.on_infotext_pasted(paste_template)
