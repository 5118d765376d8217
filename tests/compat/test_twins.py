"""Extensions whose work the program does itself."""

import sys
from pathlib import Path
from typing import Any

import pytest

from compat.loading.twins import TWINS, twin_of
from modules.errors import InvalidValueError
from modules.scripts.fields import FieldScript
from tests.cases import for_each
from tests.extensions import built_in

BUILT_IN = Path(__file__).parents[2] / "extensions-builtin"


def test_each_twin_is_there_and_steps_in_where_it_is_loaded() -> None:
    assert {name for name in TWINS.values() if not (BUILT_IN / name).is_dir()} == set()
    assert twin_of("SD-WebUI-ControlNet", {"controlnet"}) == "controlnet"
    assert twin_of("sd-webui-controlnet", set()) == "" == twin_of("another", {"controlnet"})


REGIONS = (True, False, "Matrix", "Columns", "Mask", "Prompt", "1,1", "", False, False, False, "Attention", [False])
STAGE = {"stage_infos": [{"backbone_factor": "1.2"}], "start_ratio": "0.1"}


@for_each(
    ("title", "args", "expected"),
    [
        ("Regional Prompter", (*REGIONS, "0", "0"), {"enabled": True, "base_ratios": "0.2", "options": ""}),
        ("Regional Prompter", (True, False, "Prompt", "Columns", "Mask", "Prompt-EX"), {"words": "Prompt-Ex"}),
        ("Forge Couple", (True, True, "Basic", "", "Vertical", "Last Line", 0.3), {"matrix": "Rows", "base": True}),
        ("Tiled Diffusion", ("True", "MultiDiffusion", "False", "True"), {"enabled": True, "overwrite_size": False}),
        ("Tiled VAE", ("True", "256", "64"), {"enabled": True}),
        ("FreeU", (True, STAGE), {"enabled": True, "start": 0.1}),
        ("FreeU", ("True", "1.2", "1.4", "0.9", "0.2"), {"enabled": True, "b1": 1.2, "s2": 0.2}),
        ("Incantations", (*[False] * 12, True, 5.0, 0, 150), {"enabled": True, "scale": 5.0}),
    ],
)
def test_twins_take_what_the_originals_take(title: str, args: tuple[Any, ...], expected: dict[str, Any]) -> None:
    twin = built_in().find_alwayson(title)
    assert isinstance(twin, FieldScript)
    values = dict(zip((row.name for row in twin.rows), twin.read_args(args, title), strict=True))
    assert {name: values[name] for name in expected} == expected


@for_each(
    ("title", "args", "reason"),
    [
        ("Forge Couple", (True, True, "Advanced"), "mode 'Advanced'"),
        ("Forge Couple", (True, True, "Basic", ";"), "each line is a region"),
        ("Forge Couple", (True, True, "Basic", "", "Diagonal"), "allowed is Horizontal, Vertical"),
        ("Forge Couple", (True, True, "Basic", "", "Vertical", "Both"), "global effect"),
        ("Incantations", (True,), "of its parts Perturbed Attention Guidance alone"),
        ("Incantations", (*[False] * 12, True, 5.0, 3, 150), "portions of the run"),
        ("Tiled VAE", ("Yes",), "true or false"),
    ],
)
def test_twins_say_what_they_do_not_take(title: str, args: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        built_in().find_alwayson(title).read_args(args, title)


def test_lines_of_a_prompt_are_regions_by_forge_couples_arguments() -> None:
    twin = built_in().find_alwayson("Forge Couple")
    assert isinstance(twin, FieldScript)
    regions = sys.modules["featherweight_scripts.regional_prompter.regional_prompter"]
    args = twin.read_args((True, True, "Basic", "", "Horizontal", "First Line", 0.5), "Forge Couple")
    values = dict(zip((row.name for row in twin.rows), args, strict=True))
    found = regions.Regions.of("a park\na dog\na cat", "", values, None)
    assert found.base == "a park" and found.texts == ("a dog", "a cat") and found.shares == (0.5, 0.5)
    assert [(box.left, box.right) for box in found.boxes] == [(0.0, 0.5), (0.5, 1.0)]
