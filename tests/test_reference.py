"""docs/reference.md is made from the tables of the code: settings, flags, routes and infotext keys.

`python -m tests.test_reference` writes it.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from modules.api.access.permissions import NOT_THERE, ROUTES
from modules.flags.flags import GROUPS, Flags, flag_name
from modules.flags.options import option_of
from modules.processing.request.request import HIRES_ROWS, REQUEST_ROWS
from modules.processing.request.source_images import IMAGE_ROWS, MASK_ROWS
from modules.settings.definitions import SETTINGS, visible_sections

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference.md"
PUBLIC = ("/sdapi/", "/featherweight/")


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def settings() -> Iterator[str]:
    for section, rows in visible_sections().items():
        yield f"- **{section.title}**: {listed(row.key for row in rows)}"


def flags() -> Iterator[str]:
    for group in GROUPS:
        names = (flag_name(field.name) for field in fields(Flags) if option_of(field).group == group)
        yield f"- **{group}**: {listed(names)}"


def routes() -> Iterator[str]:
    for role, names in ROUTES.items():
        public = [name for name in names if name.split()[1].startswith(PUBLIC) and name not in NOT_THERE]
        for prefix in PUBLIC:
            found = sorted(name for name in public if name.split()[1].startswith(prefix))
            shown = (name.replace("/featherweight/v1/", "").replace("/sdapi/v1/", "") for name in found)
            yield f"- **{role.value}**, below `{prefix}v1/`: {listed(shown)}"


def infotext() -> Iterator[str]:
    rows = [row.infotext.key for row in (*REQUEST_ROWS, *HIRES_ROWS, *IMAGE_ROWS, *MASK_ROWS) if row.infotext]
    sizes = dict.fromkeys(key[:-2] if key.endswith(("-1", "-2")) else key for key in rows)
    yield f"- **parameters**: {listed(sizes)}"
    recorded = {setting.infotext for _, setting in SETTINGS.items() if setting.infotext} - set(sizes)
    yield f"- **settings**: {listed(sorted(recorded))}"


def document() -> str:
    lines = [
        "# Reference",
        "",
        "Made from the tables of the code by `python -m tests.test_reference`. See also",
        "[formats](precision.md#formats) and [families](models.md#families).",
        "",
        "## Settings",
        "",
        "By section of the tab *Settings*, with the keys that `config.json`, `override_settings`, `--set` and",
        "`/sdapi/v1/options` use. The page shows label, range and explanation of each; its search finds keys too.",
        "",
        *settings(),
        "",
        "## Flags",
        "",
        "`python3 launch.py --help` explains each, with its values.",
        "",
        *flags(),
        "",
        "## Routes",
        "",
        "By the least role that may call them ([roles](security.md#users)). `/docs` on a running server",
        "describes every route, with examples and a form to try it. Built-in extensions add routes of their own.",
        "",
        *routes(),
        "",
        "## Infotext keys",
        "",
        "What images record, and what pasting and the API's `infotext` read. A setting is recorded when it differs",
        "from its default. Scripts add keys of their own.",
        "",
        *infotext(),
    ]
    return "\n".join(lines) + "\n"


def test_the_reference_is_that_of_the_code() -> None:
    """In a process of its own: other tests register settings of extensions."""
    command = [sys.executable, "-c", "from tests.test_reference import document; print(document(), end='')"]
    made = subprocess.run(
        command, cwd=DOCUMENT.parents[1], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert DOCUMENT.read_text(encoding="utf-8") == made.stdout, "run python -m tests.test_reference"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
