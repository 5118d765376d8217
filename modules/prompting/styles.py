"""Styles: named pieces of prompt from styles.csv, registered what the user types and taken off again."""

import csv
import io
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.errors import InvalidValueError, OutputError, UnknownNameError
from modules.system.atomic_files import keep_aside, write_atomic
from modules.system.decoding import marked_encoding

PLACEHOLDER = "{prompt}"
_COLUMNS = ("name", "prompt", "negative_prompt")


@dataclass(frozen=True)
class Style:
    """A style as it stands in its file; either text may be empty and may hold `{prompt}`."""

    name: str
    prompt: str = ""
    negative_prompt: str = ""


@dataclass(frozen=True)
class ExtractedStyles:
    """Rest of a prompt pair once the styles in it are taken off, in the order they would be applied."""

    names: tuple[str, ...]
    prompt: str
    negative_prompt: str


class StyleBook:
    """The styles of one or more CSV files; a name in several files belongs to the last. Changed by returning a copy.

    The first path is where new styles go; the others need not exist either. `damaged` says of files that could not be
    read why; they count as empty, and are kept aside before they are written.
    """

    def __init__(
        self, files: Iterable[tuple[Path, Sequence[Style]]], damaged: Mapping[Path, str] | None = None
    ) -> None:
        self.damaged = dict(damaged or {})
        self._files: dict[Path, dict[str, Style]] = {
            path: {style.name: style for style in styles} for path, styles in files
        }

    @classmethod
    def read(cls, paths: Iterable[Path]) -> "StyleBook":
        """Read the files, skipping those that don't exist. One that cannot be read stops nothing, see `notices`."""
        files: list[tuple[Path, Sequence[Style]]] = []
        damaged = {}
        for path in paths:
            try:
                files.append((path, _read_file(path)))
            except (OSError, UnicodeDecodeError) as error:
                damaged[path] = f"{error}. Save it as UTF-8, or remove it"
            except csv.Error as error:
                damaged[path] = f"it is no valid CSV file: {error}. Correct the line, or remove it"
            if path in damaged:
                files.append((path, ()))
        return cls(files, damaged)

    @property
    def notices(self) -> tuple[str, ...]:
        """A sentence for each file that could not be read."""
        return tuple(
            f"{path.name} could not be read ({reason}). No styles are used from it; it is kept aside when styles are "
            "saved."
            for path, reason in self.damaged.items()
        )

    @property
    def styles(self) -> dict[str, Style]:
        """All styles by name, in order of files and lines."""
        return {name: style for styles in self._files.values() for name, style in styles.items()}

    def get(self, name: str) -> Style:
        """The style of this name; raises `UnknownNameError` with the known ones."""
        styles = self.styles
        if name not in styles:
            raise UnknownNameError.of("style", name, styles)
        return styles[name]

    def apply_to_prompt(self, prompt: str, names: Sequence[str]) -> str:
        """The prompt inside the named styles, the first one innermost."""
        for name in names:
            prompt = _wrap(self.get(name).prompt, prompt)
        return prompt

    def apply_to_negative(self, negative_prompt: str, names: Sequence[str]) -> str:
        """The negative prompt inside the named styles' negative prompts."""
        for name in names:
            negative_prompt = _wrap(self.get(name).negative_prompt, negative_prompt)
        return negative_prompt

    def extract(self, prompt: str, negative_prompt: str) -> ExtractedStyles:
        """Find the styles that both prompts show and take them off, the outermost first."""
        names: list[str] = []
        candidates = [style for style in self.styles.values() if style.prompt or style.negative_prompt]
        while True:
            for style in candidates:
                inner = _unwrap(style.prompt, prompt)
                inner_negative = _unwrap(style.negative_prompt, negative_prompt)
                if inner is not None and inner_negative is not None:
                    break
            else:
                return ExtractedStyles(tuple(reversed(names)), prompt, negative_prompt)
            candidates.remove(style)
            names.append(style.name)
            prompt, negative_prompt = inner, inner_negative

    def with_style(self, style: Style) -> "StyleBook":
        """A book with this style added, or changed in the file it stands in. Raises `InvalidValueError` for its name.

        A name can't be empty, and can't begin with `#`, which makes its line a comment.
        """
        if not style.name.strip() or style.name.startswith("#"):
            raise InvalidValueError(
                f"{style.name!r} is no name for a style: it must not be empty and must not begin with '#'."
            )
        home = next(
            (path for path in reversed(self._files) if style.name in self._files[path]), next(iter(self._files))
        )
        changed = (
            (path, [*{**styles, style.name: style}.values()] if path == home else [*styles.values()])
            for path, styles in self._files.items()
        )
        return StyleBook(changed, self.damaged)

    def without_style(self, name: str) -> "StyleBook":
        """A book without this style in any file; raises `UnknownNameError` if there is none."""
        self.get(name)
        kept = (
            (path, [style for style in styles.values() if style.name != name]) for path, styles in self._files.items()
        )
        return StyleBook(kept, self.damaged)

    def save(self) -> None:
        """Write every file that has styles or exists: complete or not at all, the old one kept as `.bak`.

        Comment lines of a file that is written again are lost. Raises `OutputError` if a file can't be written.
        """
        for path, styles in self._files.items():
            if path in self.damaged and not styles:
                continue  # as it is: somebody may yet correct it
            if styles or path.exists():
                _write_file(path, list(styles.values()), is_damaged=path in self.damaged)


def _wrap(style_text: str, prompt: str) -> str:
    if PLACEHOLDER in style_text:
        return style_text.replace(PLACEHOLDER, prompt)
    return ", ".join(text for text in (prompt.strip(), style_text.strip()) if text)


def _unwrap(style_text: str, prompt: str) -> str | None:
    """The prompt without the style's text around it, None if it isn't there. An empty style is around everything."""
    if not style_text.strip():
        return prompt
    if PLACEHOLDER not in style_text:
        end = style_text.strip()
        return prompt[: len(prompt) - len(end)].removesuffix(", ") if prompt.endswith(end) else None
    for text in (style_text, style_text.strip()):  # infotext keeps no space at the ends of a prompt
        before, _, after = text.partition(PLACEHOLDER)
        if prompt.startswith(before) and prompt.endswith(after) and len(prompt) >= len(before) + len(after):
            return prompt[len(before) : len(prompt) - len(after)] if PLACEHOLDER not in after else None
    return None


def _read_file(path: Path) -> list[Style]:
    """Read the styles of one file; a missing or empty one has none. Old files call the prompt `text`. Raises OSError,
    `csv.Error` (also for a first line that names other columns) and UnicodeDecodeError."""
    try:
        with path.open(encoding=marked_encoding(path), newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            rows = list(reader)
    except FileNotFoundError:
        return []
    columns = reader.fieldnames or ()
    if columns and not ("name" in columns and {"prompt", "text", "negative_prompt"} & set(columns)):
        raise csv.Error(f"its first line is not {','.join(_COLUMNS)}, but {','.join(columns)[:80]!r}")
    styles = []
    for row in rows:
        name = row.get("name") or ""
        if name and not name.startswith("#"):
            prompt = row["prompt"] if "prompt" in row else row.get("text")
            styles.append(Style(name, prompt or "", row.get("negative_prompt") or ""))
    return styles


def _write_file(path: Path, styles: Sequence[Style], is_damaged: bool) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_COLUMNS)
    writer.writerows((style.name, style.prompt, style.negative_prompt) for style in styles)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_damaged and path.exists():
            keep_aside(path)
        elif path.exists():
            shutil.copy2(path, path.with_name(path.name + ".bak"))
        write_atomic(path, text.getvalue().encode("utf-8-sig", "replace"))
    except OSError as error:
        raise OutputError(
            f"{path.name} could not be written ({error}). The old file is unchanged; free some space or allow writing "
            "to its folder, then save again."
        ) from error
