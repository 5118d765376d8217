"""How the project writes: docstrings, words, length of sentences, links that lead somewhere, commands that work."""

import argparse
import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from modules.cli.commands import command_names, load_command
from modules.flags.flags import parse_flags

ROOT = Path(__file__).parents[1]
CODE = ("modules", "compat", "extensions-builtin")
GUIDE = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*DOCS, *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "compat/README.md"))]
DOCUMENTS += [ROOT / "benchmarks" / "README.md", ROOT / "tests" / "fake_gpu" / "README.md"]
MAX_WORDS = 25_000
MAX_README_WORDS = 900
MAX_SENTENCE_WORDS = 40
ELLIPTICAL = re.compile(r'(?:\A|:\n|: *#[^\n]*\n)\s*"""((?:It|Of|What|Those|The same|By|With|As)\b[^\n]*)')
"""How docstrings began that send the reader elsewhere: a function's begins with a verb, a class's with a noun."""
WORDS = {
    "anew": "again",
    r"(is|are|was|were|been|be) told": "receives, is passed",
    "told by (its|their) tensors": "identified by its tensors",
    "(to|down to) the same bits": "bit-identical",
    r"(extensions?|scripts?|files?|images?|one|command) of the user's": "user extension",
    "alongside": "next to",
    "evaluations?": "model calls",
    "put around": "register",
    "rehears": "dry run",
    "foretell|foretold": "predict",
    "resting place": "offload storage",
    "hollow": "empty",
    "trained to pieces": "diverged",
    "in one row": "contiguous",
    "look for doubles": "find duplicates",
    "hires this": "upscale this",
    "ask its source": "look it up",
    "shall": "should, will",
}
"""Words of a dialect, with what to say instead."""
DIALECT = re.compile("|".join(rf"\b(?:{words})\b" for words in WORDS), re.IGNORECASE)
FOLDERS = ("modules", "compat", "tests", "extensions-builtin", "recipes", "benchmarks", "configs")
OTHER_PROGRAMS = ("docker", "ray", "git", "pip", "pipx", "cd")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def code_files() -> Iterator[Path]:
    for top in CODE:
        yield from sorted((ROOT / top).rglob("*.py"))


def prose(path: Path) -> str:
    """Return a document without code, tables, headings and images; a list's items and a block of code end sentences."""
    text = FENCE.sub("\n\n", path.read_text(encoding="utf-8"))
    lines = []
    for line in text.splitlines():
        if line.startswith(("|", "#", "    ", "!", "<!--")):
            lines.append("")
        elif re.match(r" *(-|\d+\.) ", line):
            lines += ["", line]
        else:
            lines.append(line)
    return "\n".join(lines)


def sentences(text: str) -> Iterator[str]:
    text = re.sub(r"`[^`]*`", "code", text)
    for part in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?:;])\s", " ".join(part.split()))


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def found(pattern: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    """Return where a pattern matches in files."""
    matches = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start(match.lastindex or 0)) + 1
            matches.append(f"{path.relative_to(ROOT).as_posix()}:{line}: {match[match.lastindex or 0]}")
    return matches


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    assert found(ELLIPTICAL, code_files()) == []


def test_the_words_are_those_of_the_field() -> None:
    assert found(DIALECT, [*code_files(), *DOCUMENTS]) == [], "say it as WORDS does"


def test_sentences_are_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in GUIDE
        for sentence in sentences(prose(path))
        if len(sentence.split()) > MAX_SENTENCE_WORDS
    ]
    assert long == []


def test_documents_stay_short() -> None:
    words = (word for path in DOCS for word in path.read_text(encoding="utf-8").split())
    assert sum(any(map(str.isalnum, word)) for word in words) <= MAX_WORDS, "marks of tables are not counted"
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MAX_README_WORDS


def test_every_document_is_in_the_contents() -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)#]+\.md)", contents)
    assert sorted(linked) == sorted(set(linked)), "a document is there twice"
    ours = {path.relative_to(ROOT / "docs").as_posix() for path in DOCS} - {"README.md"}
    assert ours == {link for link in linked if not link.startswith("..")}


def test_links_lead_somewhere() -> None:
    broken = []
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text(encoding="utf-8"))):
            file, _, anchor = link.partition("#")
            target = path.parent / file if file else path
            if link.startswith(("http:", "https:")):
                continue
            if not target.exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
            elif anchor and target.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", FENCE.sub("", target.read_text(encoding="utf-8")), re.MULTILINE)
                if anchor not in map(slug, headings):
                    broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []


def test_paths_in_documents_exist() -> None:
    """Paths and modules between backticks, but for names that extensions of A1111 import."""
    missing = []
    for path in DOCUMENTS:
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for name in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", text):
            if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of the documents' indented blocks, with the document's name."""
    for path in DOCUMENTS:
        for line in FENCE.sub("", path.read_text(encoding="utf-8")).splitlines():
            if re.match(r" {4,}(?:\S*python3? |py -|pip |pipx |docker |ray |git )", line):
                for command in re.split(r" && ", line.strip()):
                    yield (
                        path.relative_to(ROOT).as_posix(),
                        shlex.split(command.replace("<this repository>", "URL"), True),
                    )


class ParsedError(Exception):
    """The end of a command that was only parsed."""


def run(command: Callable[[], object]) -> None:
    """Run a command until its words are parsed; one that only prints something returns 0."""
    with contextlib.suppress(ParsedError):
        assert command() == 0


def parse(words: list[str]) -> None:
    """Have the program parse a command, and nothing more; what it refuses raises."""
    match words:
        case ["launch.py", "--test", *_]:
            pass
        case ["launch.py", name, *rest] if name in command_names():
            run(lambda: load_command(name)(rest))
        case ["launch.py", *flags]:
            parse_flags(flags, {})
        case ["-m", "pytest", *rest]:
            assert all((ROOT / word).exists() for word in rest if word.startswith("tests/"))
        case ["-m", module, *_]:
            assert find_spec(module) or find_spec(f"{module}.__main__")
        case _:
            raise AssertionError(f"unknown command {words}")


def test_commands_are_understood(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = argparse.ArgumentParser.parse_args

    def parse_only(self: argparse.ArgumentParser, *args: object) -> object:
        known(self, *args)  # type: ignore[call-overload]
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    failed = []
    for document, words in commands():
        if words[0] in OTHER_PROGRAMS:
            continue
        try:
            parse(words[1:])
        except (Exception, SystemExit) as error:
            failed.append(f"{document}: {shlex.join(words)}: {error!r} {capsys.readouterr().err[-300:]}")
    assert failed == []
