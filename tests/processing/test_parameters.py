"""The table of parameters: each row is reachable everywhere that it says, and so is a row that is added."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any

import pytest
from pydantic import create_model

from modules.api.schema.schemas import GenerationBody, Txt2ImgBody, parameter_fields
from modules.cli.parameters import add_parameter_options, request_values
from modules.images.infotext import parse_infotext
from modules.processing.record.describe import Facts, extra_fields, infotext, main_fields
from modules.processing.request.parameters import (
    Choices,
    Control,
    Infotext,
    Option,
    Parameter,
    ParameterAxis,
    Section,
    Slider,
    pasted_fields,
    rows_of,
)
from modules.processing.request.pass_settings import Used
from modules.processing.request.request import (
    HIRES_ROWS,
    PARAMETERS,
    REQUEST_ROWS,
    GenerationRequest,
    HiresRequest,
    request_from_json,
    request_to_json,
)
from modules.scripts.axes import AXES, parameter_axis
from modules.scripts.job import Job
from modules.ui.form.form import FIELDS, ROWS
from tests.cases import for_each
from tests.fakes import CHECKPOINT


@dataclass(frozen=True, kw_only=True)
class WarmRequest(GenerationRequest):
    """A request with one parameter more."""

    warmth: Annotated[
        float,
        Parameter(
            low=0.0,
            high=2.0,
            control=Control(
                elem_id="{tab}_warmth",
                label="Warmth",
                section=Section.SAMPLING,
                slider=Slider(lowest=0, highest=2, step=0.1),
            ),
            api="warmth",
            infotext=Infotext(key="Warmth", written=lambda request: request.warmth != 1.0),
            option=Option(name="--warmth"),
            axis=ParameterAxis(label="Warmth"),
        ),
    ] = 1.0


WARM_ROWS = rows_of(WarmRequest)
(WARMTH,) = (row for row in WARM_ROWS if row.name == "warmth")


def other_value(row: Parameter) -> Any:
    """An allowed value that is not the default."""
    if row.type is bool:
        return not row.default
    if row.type in (int, float):
        assert row.low is not None and row.high is not None
        low, high = max(row.low, 0), min(row.high, 64)
        halves = (row.type((low + high) / 2), row.type((low + 3 * high) / 4))
        return next(value for value in halves if value != row.default)
    names = {Choices.SAMPLERS: ("DDIM", "Euler"), Choices.SCHEDULES: ("Karras", "Exponential")}
    first, second = names.get(row.choices, ("first", "second")) if row.choices else ("first", "second")
    word = second if row.prefix else first
    return (word,) if row.type is tuple else word


def of_request(rows: Sequence[Parameter]) -> GenerationRequest:
    """A request whose parameters all differ from their defaults."""
    hires = HiresRequest(**{row.name: other_value(row) for row in HIRES_ROWS if row.name != "scale"}, scale=2.5)
    values = {row.name: other_value(row) for row in rows}
    return (WarmRequest if WARMTH in rows else GenerationRequest)(**values, hires=hires)


def job_of(request: GenerationRequest) -> Job:
    def make(p: Job) -> Any:
        raise AssertionError("no image is made")

    return Job(request, make)


def recorded(request: GenerationRequest) -> str:
    """The infotext of an image of this request."""
    used = Used.DISTILLED_GUIDANCE
    main = main_fields(request, CHECKPOINT, request.size_px, request.seed, request.subseed, used=used)
    extra = extra_fields(request, request.prompt, request.negative_prompt, Facts(used))
    return infotext(request.prompt, request.negative_prompt, main, extra)


def test_every_row_has_the_type_and_default_of_its_field() -> None:
    assert len({row.key for row in PARAMETERS}) == len(PARAMETERS)
    for row in PARAMETERS:
        owner = HiresRequest if row.prefix else GenerationRequest
        (field,) = (found for found in fields(owner) if found.name == row.name)
        assert field.default is not MISSING and row.default == field.default, row.key
        row.check(row.default)


def test_a_request_checks_what_its_rows_allow() -> None:
    with pytest.raises(Exception, match=r"warmth is 3\.0; allowed is 0\.0 to 2\.0"):
        WarmRequest(warmth=3.0)


@for_each("row", [row for row in PARAMETERS if row.control], ids=lambda row: row.key)
def test_every_control_is_a_field_of_the_form_and_gives_the_value_back(row: Parameter) -> None:
    assert row.key in FIELDS and ROWS[row.key] is row
    assert row.from_form(row.nothing if row.is_optional else row.default) == row.default
    shown = other_value(row)
    assert row.from_form(list(shown) if row.type is tuple else shown) == shown
    assert row.elem_id("img2img") and "{" not in row.elem_id("img2img")


def test_the_form_has_no_other_fields_than_rows_and_its_own_two() -> None:
    assert set(FIELDS) - set(ROWS) == {"hires_enabled", "overrides"}


@for_each("row", [row for row in PARAMETERS if row.api], ids=lambda row: row.key)
def test_every_name_of_the_api_is_in_its_schema_and_at_the_script_object(row: Parameter) -> None:
    assert Txt2ImgBody.model_json_schema()["properties"][row.api]["default"] == row.api_default
    job = job_of(of_request(REQUEST_ROWS))
    assert getattr(job, row.api) == (2.5 if row.name == "scale" else other_value(row))


def test_the_script_object_gives_every_value_back() -> None:
    for rows in (REQUEST_ROWS, WARM_ROWS):
        request = of_request(rows)
        assert job_of(request).to_request() == request


def test_every_option_is_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_parameter_options(parser, (*WARM_ROWS, *HIRES_ROWS))
    words: list[str] = []
    for row in (*WARM_ROWS, *HIRES_ROWS):
        if row.option is not None:
            words += [row.option.name, str(2.5 if row.name == "scale" else other_value(row))]
    arguments = parser.parse_args(words)
    values = request_values(arguments)
    hires = values.pop("hires")
    for row in PARAMETERS:
        if row.option is not None:
            given = getattr(hires, row.name) if row.prefix else values[row.name]
            assert given == (2.5 if row.name == "scale" else other_value(row)), row.key
    assert arguments.warmth == other_value(WARMTH)


def test_every_recorded_value_is_read_back_from_the_infotext() -> None:
    request = of_request(WARM_ROWS)
    parsed = parse_infotext(recorded(request))
    pasted = pasted_fields(parsed, WARM_ROWS)
    for row in WARM_ROWS:
        if row.infotext is not None and row.infotext.is_pasted and row.choices is None and row.name != "width":
            expected = {"height": request.size_px[1]}.get(row.name, other_value(row))
            assert row.name.startswith("refiner") or pasted[row.name] == expected, row.key
    hires = pasted_fields(parsed, HIRES_ROWS)
    for row in HIRES_ROWS:
        if row.name not in ("scale", "checkpoint"):  # in place of the scale its size; the file's title
            assert hires[row.name] == other_value(row), row.key


def test_every_axis_sets_its_attribute() -> None:
    for row in (*PARAMETERS, WARMTH):
        if row.axis is None:
            continue
        axis = AXES.get(row.axis.label) if row is not WARMTH else parameter_axis(row)
        value = other_value(row)
        job = job_of(of_request(WARM_ROWS))
        axis.apply(job, axis.read(str(value)), [value])
        assert getattr(job, row.api) == value, row.key


def test_a_row_alone_makes_a_control_and_an_api_field() -> None:
    assert WARMTH.elem_id("txt2img") == "txt2img_warmth"
    assert (WARMTH.from_form(None), WARMTH.from_form(2)) == (1.0, 2)
    fields = parameter_fields(WARM_ROWS)
    body = create_model("WarmBody", __base__=GenerationBody, **fields).model_validate({"warmth": 0.5})
    assert WARMTH.from_api(body.value("warmth")) == 0.5
    assert WARMTH.from_api(None) == 1.0


def test_numbers_are_recorded_as_they_were_given() -> None:
    for given in (7, 7.0, 6.5):
        assert f"CFG scale: {given}," in recorded(GenerationRequest(cfg_scale=given))
    settings = GenerationRequest().settings
    request = GenerationRequest(scheduler="Karras", settings=settings.changed(sigma_max=10, rho=5.0))
    fields = extra_fields(request, "", "", Facts())
    text = infotext("", "", {}, fields)
    assert "Schedule max sigma: 10," in text and text.endswith("Schedule rho: 5.0")


def test_a_request_with_everything_survives_its_record() -> None:
    request = of_request(REQUEST_ROWS)
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request
