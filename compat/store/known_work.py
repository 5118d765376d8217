"""Main work of known extensions, as far as it can be tried without a person."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Work:
    """A tab's title, a component's `elem_id`, a route, and a script with arguments under which the image is another
    one."""

    tab: str = ""
    element: str = ""
    route: str = ""
    script: str = ""
    args: tuple[Any, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # of both images


WORK: Mapping[str, Work] = {
    name: Work(**{**row, "args": tuple(row.get("args", ()))})
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
