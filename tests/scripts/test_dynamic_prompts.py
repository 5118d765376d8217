"""The built-in extension for choices and wildcards in prompts: what jobs, infotexts and pasting see of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.assembly import ROOT
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.infotext import format_infotext, parse_infotext
from modules.processing.engine.engine import Engine
from modules.processing.request.request import HiresRequest
from modules.scripts.callbacks import Moment
from modules.scripts.hooks import ScriptRunner
from modules.scripts.job import Job, Processed
from modules.scripts.library import ScriptLibrary, filled_args, script_info
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.scripts.toys import run, small_request

TITLE = "Dynamic prompts"
OTHERS = [folder.name for folder in (ROOT / "extensions-builtin").iterdir() if folder.name != "dynamic-prompts"]


class Shown:
    """A program with wildcards, and settings that a test may change."""

    def __init__(self, folder: Path) -> None:
        (folder / "colors.txt").write_text("red\ngreen\nblue\n")
        (folder / "loop.txt").write_text("a __loop__\n")
        self.settings = Settings()
        program = Program(folders=lambda kind: (folder,), settings=lambda: self.settings)
        self.library = ScriptLibrary.load([ROOT / "extensions-builtin"], OTHERS, program)
        assert self.library.faults == []

    def job(self, *args: Any, **values: Any) -> Job:
        """A job after the hooks that come before anything is computed."""
        request = small_request(**values)
        script = self.library.find_alwayson(TITLE)
        told = replace(request, alwayson_args={TITLE: filled_args(script, args)})
        runner = ScriptRunner(self.library.alwayson, self.library.callbacks, told)
        p = Job(request, _nothing)
        runner.call("before_process", p)
        p.list_images()
        runner.call("process", p)
        return p

    def pasted(self, text: str) -> dict[str, Any]:
        fields = dict(parse_infotext(text))
        self.library.callbacks.call(Moment.INFOTEXT_PASTED, text, fields)
        return fields


def _nothing(p: Job) -> Processed:
    raise AssertionError("nothing is made here")


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    built_in()
    yield Shown(tmp_path)


def test_each_image_draws_its_prompt_with_its_own_seed(shown: Shown) -> None:
    prompt, negative = "a __colors__ {cat|dog|cow|hen}", "{x|y} z"
    p = shown.job(prompt=prompt, negative_prompt=negative, batch_size=2, batch_count=4, seed=100)
    assert len(set(p.all_prompts)) > 3
    for place in (1, 6):
        alone = shown.job(prompt=prompt, negative_prompt=negative, seed=100 + place)
        assert (alone.all_prompts, alone.all_negative_prompts) == (
            [p.all_prompts[place]],
            [p.all_negative_prompts[place]],
        )
    assert p.extra_generation_params == {"Template": prompt, "Negative Template": negative}


def test_variations_of_one_seed_draw_their_own(shown: Shown) -> None:
    p = shown.job(prompt="{a|b|c|d|e|f}", batch_count=12, subseed_strength=0.5, subseed=7)
    assert len(set(p.all_seeds)) == 1 and len(set(p.all_prompts)) > 2


def test_prompts_without_choices_are_left_alone(shown: Shown) -> None:
    p = shown.job(prompt="a {masterpiece} cat [a|b]", batch_count=2)
    assert p.all_prompts == ["a {masterpiece} cat [a|b]"] * 2 and p.extra_generation_params == {}
    off = shown.job(False, prompt="{a|b}")
    assert off.all_prompts == ["{a|b}"] and off.extra_generation_params == {}


def test_all_combinations_make_an_image_each(shown: Shown) -> None:
    p = shown.job(True, True, 0, True, prompt="__colors__ {cat|dog}", negative_prompt="{x|y}", batch_size=4, seed=9)
    assert p.n_iter == 3
    pairs = list(zip(p.all_prompts, p.all_negative_prompts, strict=True))
    assert len(pairs) == 12 == len(set(pairs)) and pairs[:2] == [("red cat", "x"), ("red cat", "y")]
    assert p.all_seeds == [9] * 12
    assert shown.job(True, True, 5, prompt="__colors__ {cat|dog}").n_iter == 5


def test_too_many_combinations_are_a_sentence(shown: Shown) -> None:
    with pytest.raises(InvalidValueError, match="more than 1000 combinations; say with 'At most'"):
        shown.job(True, True, prompt=" ".join(["{a|b|c|d}"] * 6))


def test_the_prompt_of_hires_fix_is_drawn_too(shown: Shown) -> None:
    p = shown.job(prompt="a cat", hires=HiresRequest(prompt="{big|large|huge} cat"), seed=3)
    assert p.hr_prompt in ("big cat", "large cat", "huge cat")
    assert p.extra_generation_params == {"Hires Template": "{big|large|huge} cat"}


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("__colours__", UnknownNameError, "There is no wildcard __colours__. The nearest here: __colors__"),
        ("__loop__", InvalidValueError, "refers to itself: __loop__ → __loop__"),
    ],
)
def test_a_wildcard_that_cannot_be_used_ends_the_job_with_a_sentence(
    shown: Shown, prompt: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        shown.job(prompt=prompt)


def test_pasting_fills_in_the_prompt_or_the_template_as_the_settings_say(shown: Shown) -> None:
    template = 'a "__colors__", {cat|dog}'
    fields = {"Steps": 2, "Seed": 1, "Size": "64x64", "Template": template, "Negative Template": "{x|y}"}
    text = format_infotext('a "red", cat', "x", fields)
    assert shown.pasted(text)["Prompt"] == 'a "red", cat'
    shown.settings = Settings().with_changes({"dynamic_prompts_paste": "The template"})
    pasted = shown.pasted(text)
    assert (pasted["Prompt"], pasted["Negative prompt"]) == (template, "{x|y}")
    other = format_infotext(
        "a red cat", "", {"Steps": 2, "Seed": 1, "Size": "64x64", "Wildcard prompt": "a __colors__"}
    )
    assert shown.pasted(other)["Prompt"] == "a __colors__"


def test_its_arguments_are_described_for_clients(shown: Shown) -> None:
    info = script_info(shown.library.find_alwayson(TITLE))
    assert info is not None
    assert [(arg["label"], arg["value"]) for arg in info["args"]] == [
        ("Choices and wildcards", True),
        ("All combinations", False),
        ("At most", 0),
        ("One seed for all images", False),
    ]


def test_images_record_template_and_result(shown: Shown, engine: Engine, tmp_path: Path) -> None:
    made = run(small_request(prompt="a {red|blue} cat", batch_size=2, seed=40), engine, tmp_path, shown.library)
    for image in made.samples:
        fields = parse_infotext(image.infotext)
        assert fields["Prompt"] in ("a red cat", "a blue cat")
        assert fields["Template"] == "a {red|blue} cat"
