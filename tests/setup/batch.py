"""Runs the batch files of this repository as cmd.exe would, as far as they need it: no cmd.exe is here to try them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MAX_LINES = 200

Start = Callable[[list[str], dict[str, str]], int]
"""(words of a program's command line, environment) -> its exit code."""


@dataclass
class Batch:
    """A run: variables, the folder, the exit code of what ran last, and whether it waited for a key."""

    start: Start
    environ: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    code: int = 0
    has_paused: bool = False

    def run(self, script: Path, arguments: str = "") -> int:
        """The exit code of a script. Raises AssertionError for a command that this does not know."""
        lines = script.read_bytes().decode("ascii").split("\r\n")
        at = 0
        for _ in range(MAX_LINES):
            if at >= len(lines):
                return self.code
            line, at = self._expanded(lines[at].strip(), script, arguments), at + 1
            target = self._line(line)
            if target == ":eof":
                return self.code
            if target:
                at = lines.index(f":{target}") + 1
        raise AssertionError(f"{script.name} does not end")

    def _expanded(self, line: str, script: Path, arguments: str) -> str:
        """With its variables put in, in which cmd.exe does not tell upper from lower case."""
        line = line.replace("%~dp0", f"{script.parent}/").replace("%*", arguments)
        values = {"ERRORLEVEL": str(self.code), **self.environ}

        def value(found: re.Match[str]) -> str:
            text = values.get(found[1].upper(), "")
            return text.replace(found[2], found[3]) if found[2] else text

        return re.sub(r"%(\w+)(?::([^=%]+)=([^%]*))?%", value, line).strip()

    def _line(self, line: str) -> str:
        """Run one line; the label where it goes on, or "" for the next line."""
        word, _, rest = line.partition(" ")
        match word.lower():
            case "" | "rem" | "@echo":
                return ""
            case "if":
                return self._if(rest)
            case "goto":
                return rest
            case "set":
                name, _, value = rest.strip('"').partition("=")
                self.environ = {key: known for key, known in self.environ.items() if key != name.upper()}
                self.environ |= {name.upper(): value} if value else {}
            case "cd":
                self.folder = rest.removeprefix("/d ").strip('"')
            case "call":
                words = shlex.split(rest)
                self.code = self.run(Path(words[0]), " ".join(map(_quoted, words[1:])))
            case "pause":
                self.has_paused = True
            case "exit":
                self.code = int(rest.removeprefix("/b "))
                return ":eof"
            case _ if word.startswith(":"):
                return ""
            case _:
                self.code = self.start([one for one in shlex.split(line) if ">nul" not in one], self.environ)
        return ""

    def _if(self, rest: str) -> str:
        if found := re.fullmatch(r"defined (\w+) (.*)", rest):
            return self._line(found[2]) if found[1].upper() in self.environ else ""
        if found := re.fullmatch(r"errorlevel (\d+) (.*)", rest):
            return self._line(found[2]) if self.code >= int(found[1]) else ""
        found = re.fullmatch(r'not "(.*?)"=="(.*?)" (.*)', rest)
        assert found is not None, f"this condition is not known here: {rest}"
        return self._line(found[3]) if found[1] != found[2] else ""


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word
