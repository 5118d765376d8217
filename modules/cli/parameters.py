"""Options of the command line for the parameters of an image, made from the table of parameters."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from modules.processing.request.parameters import UNSET, Parameter, Section, Tab, number
from modules.processing.request.request import HIRES_ROWS, PARAMETERS, REQUEST_ROWS, HiresRequest
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS
from modules.sampling.names import split_names

GROUPS = {
    Section.HIRES: ("hires fix", "a second pass at a larger size; on with --hires-scale"),
    Section.REFINER: ("refiner", "another checkpoint that takes over on the way"),
    Section.MASK: ("inpainting", "what changes only where a mask says so; on with --mask"),
    Section.OUTPAINT: ("outpainting", "a larger canvas around the image, in multiples of 8 pixels"),
}
ROWS = tuple(row for row in PARAMETERS if Tab.TXT2IMG in row.tabs)


def add_parameter_options(
    parser: argparse.ArgumentParser, rows: Sequence[Parameter] = ROWS, required: Iterable[str] = ()
) -> None:
    """An option for each parameter that has one; those of hires fix and of the refiner in groups of their own."""
    groups: dict[Section | None, argparse.ArgumentParser | argparse._ArgumentGroup] = {}
    for row in rows:
        if row.option is None:
            continue
        section = row.control.section if row.control else None
        if section is not None and section in GROUPS and section not in groups:
            groups[section] = parser.add_argument_group(*GROUPS[section])
        groups.get(section, parser).add_argument(
            row.option.name,
            dest=row.key,
            default=row.default if row.option.default is UNSET else row.option.default,
            required=row.key in required,
            **{"help": row.option.help, **_reading(row)},
        )


def _reading(row: Parameter) -> dict[str, Any]:
    """How argparse reads a row's option: a flag is on where its word stands, an enum is given by one of its words."""
    assert row.option is not None
    if row.words and row.type is bool:
        return {"action": "store_true"}
    words = {} if not row.words else {"help": f"one of: {', '.join(row.words)}"}
    metavar = row.option.metavar or row.option.name.lstrip("-").replace("-", "_").upper()
    return {"type": number if row.type is float else str if row.words else row.type, "metavar": metavar, **words}


def request_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `GenerationRequest` that the options say. Raises `InvalidValueError` for numbers out of range."""
    values = split_names(_given(arguments, REQUEST_ROWS))
    if getattr(arguments, "hires_scale", None) is not None:
        values["hires"] = HiresRequest(**_given(arguments, HIRES_ROWS))
    return values


def start_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `FromImage` that the options say, without its images and mask."""
    return _given(arguments, IMAGE_ROWS)


def mask_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `Mask` that the options say, without its image."""
    return _given(arguments, MASK_ROWS)


def _given(arguments: argparse.Namespace, rows: Iterable[Parameter]) -> dict[str, Any]:
    """Without the options that are not given and have no default."""
    found = {row: getattr(arguments, row.key) for row in rows if row.option is not None and hasattr(arguments, row.key)}
    return {row.name: row.from_form(value) if row.words else value for row, value in found.items() if value is not None}
