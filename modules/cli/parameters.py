"""Options of the command line for the parameters of an image, made from the table of parameters."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from modules.processing.parameters import UNSET, Parameter, Section, Tab, number
from modules.processing.request import HIRES_ROWS, PARAMETERS, REQUEST_ROWS, HiresRequest

GROUPS = {
    Section.HIRES: ("hires fix", "a second pass at a larger size; on with --hires-scale"),
    Section.REFINER: ("refiner", "another checkpoint that takes over on the way"),
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
            type=number if row.type is float else row.type,
            default=row.default if row.option.default is UNSET else row.option.default,
            required=row.key in required,
            metavar=row.option.metavar or row.option.name.lstrip("-").replace("-", "_").upper(),
            help=row.option.help,
        )


def request_values(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `GenerationRequest` that the options say. Raises `InvalidValueError` for numbers out of range."""
    values = _given(arguments, REQUEST_ROWS)
    if arguments.hires_scale is not None:
        values["hires"] = HiresRequest(**_given(arguments, HIRES_ROWS))
    return values


def _given(arguments: argparse.Namespace, rows: Iterable[Parameter]) -> dict[str, Any]:
    """Without the options that are not given and have no default."""
    found = {row.name: getattr(arguments, row.key) for row in rows if row.option is not None}
    return {name: value for name, value in found.items() if value is not None}
