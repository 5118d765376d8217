"""The tables of docs/models.md and docs/guide/coming-over.md about other programs are those of the code."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from modules.models.detection.formats import FORMATS
from modules.models.detection.kinds import ASKED_ONLY, FOLDERS, rows
from modules.sampling.names import AUTOMATIC, ELSEWHERE, SCHEDULES_ELSEWHERE
from tests.extensions import built_in

DOCS = Path(__file__).parents[2] / "docs"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- |", "|---|").replace(" --- |", "---|")


def programs() -> str:
    return table(
        ("program", "where its record stands", "what is read"), import_module("lib_foreign_infotexts.reading").PROGRAMS
    )


def samplers() -> str:
    here: dict[str, list[str]] = {}
    for theirs, ours in ELSEWHERE.items():
        here.setdefault(ours, []).append(f"`{theirs}`")
    return table(
        ("sampler here", "what other programs call it"), ((ours, ", ".join(all_)) for ours, all_ in here.items())
    )


def schedules() -> str:
    rows = ((f"`{theirs}`", ours) for theirs, ours in SCHEDULES_ELSEWHERE.items())
    return table(("schedule type elsewhere", "here"), rows)


def models() -> str:
    types = {"encoder": "text encoder"}
    refused = (row for row in rows() if not row.is_read and row.group not in ASKED_ONLY)
    lines = ((row.name, row.group, types.get(row.type, row.type.partition(",")[0])) for row in refused)
    return table(("model", "file", "what it is"), lines)


def kinds() -> str:
    named: dict[str, list[str]] = {}
    for row in rows():
        if row.is_read and row.group not in ASKED_ONLY and row.name != row.kind.words:
            named.setdefault(row.group, []).append(row.name)
    lines = ((kind, f"`{folder}`", "; ".join(named.get(kind, []))) for kind, folder in FOLDERS.items())
    return table(("kind", "folder", "told apart"), lines)


def formats() -> str:
    read = dict.fromkeys(one.label for one in FORMATS if one.is_read)
    return f"Formats that are named: {'; '.join(read)}; the types of GGUF, and what ComfyUI declares.\n"


def test_tables_of_the_documents_are_those_of_the_code() -> None:
    built_in()
    guide = (DOCS / "guide" / "coming-over.md").read_text(encoding="utf-8")
    for made in (programs(), samplers(), schedules()):
        assert made in guide
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    for made in (models(), kinds(), formats()):
        assert made in page
    assert AUTOMATIC in schedules()
