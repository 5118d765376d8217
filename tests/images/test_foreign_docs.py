"""The tables of docs/models.md and docs/guide/coming-over.md about other programs are those of the code."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from modules.models.detection.others import others
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
    groups = {"adapter": "Adapters", "denoiser": "Denoisers", "vae": "VAEs", "encoder": "Text encoders"}
    named: dict[tuple[str, str], list[str]] = {}
    for row in others():
        named.setdefault((groups[row.group], row.type.partition(",")[0]), []).append(row.name)
    rows = ((group, "-" if type_ == "encoder" else type_, ", ".join(names)) for (group, type_), names in named.items())
    return table(("files", "for", "models"), rows)


def test_tables_of_the_documents_are_those_of_the_code() -> None:
    built_in()
    guide = (DOCS / "guide" / "coming-over.md").read_text(encoding="utf-8")
    for made in (programs(), samplers(), schedules()):
        assert made in guide
    assert models() in (DOCS / "models.md").read_text(encoding="utf-8")
    assert AUTOMATIC in schedules()
