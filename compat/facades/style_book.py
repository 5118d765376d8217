"""`shared.prompt_styles`: the styles as the reference UI's database shows them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from compat.host import host_now
from modules.errors import FeatherweightError
from modules.prompting.styles import Style, StyleBook


class PromptStyle(NamedTuple):
    """One style."""

    name: str
    prompt: str | None = ""
    negative_prompt: str | None = ""
    path: str | None = None


class StyleDatabase:
    """The styles of the files that the program reads, looked up each time; or of the given ones."""

    def __init__(self, paths: Iterable[str] | None = None) -> None:
        self._paths = None if paths is None else [paths] if isinstance(paths, str) else list(paths)

    def _book(self) -> StyleBook:
        given = [Path(path) for path in self._paths] if self._paths is not None else host_now().paths.styles_files
        return StyleBook.read(given)

    @property
    def styles(self) -> dict[str, PromptStyle]:
        """All styles by name."""
        found = self._book().styles
        return {name: PromptStyle(name, style.prompt, style.negative_prompt) for name, style in found.items()}

    @property
    def no_style(self) -> PromptStyle:
        """The style that changes nothing."""
        return PromptStyle("None", "", "", None)

    def reload(self) -> None:
        """The files are read each time."""

    def get_style_prompts(self, styles: Iterable[str]) -> list[str]:
        """The prompts of these styles; "" for those that there are not."""
        known = self.styles
        return [known.get(name, self.no_style).prompt or "" for name in styles]

    def get_negative_style_prompts(self, styles: Iterable[str]) -> list[str]:
        """Return the same of negative prompts."""
        known = self.styles
        return [known.get(name, self.no_style).negative_prompt or "" for name in styles]

    def _there(self, styles: Iterable[str]) -> list[str]:
        known = self.styles
        return [name for name in styles if name in known]

    def apply_styles_to_prompt(self, prompt: str, styles: Iterable[str]) -> str:
        """The prompt inside these styles; those that there are not are left out."""
        return self._book().apply_to_prompt(prompt, self._there(styles))

    def apply_negative_styles_to_prompt(self, prompt: str, styles: Iterable[str]) -> str:
        """Return the same of a negative prompt."""
        return self._book().apply_to_negative(prompt, self._there(styles))

    def extract_styles_from_prompt(self, prompt: str, negative_prompt: str) -> tuple[list[str], str, str]:
        """The styles that both prompts show, and the prompts without them."""
        found = self._book().extract(prompt, negative_prompt)
        return list(found.names), found.prompt, found.negative_prompt

    def add(self, name: str, prompt: str = "", negative_prompt: str = "") -> None:
        """Save a style in the first file."""
        self._book().with_style(Style(name, prompt, negative_prompt)).save()

    def save_styles(self, path: str | None = None) -> None:
        """Styles are saved when they are changed, on the page or by `add`."""


def merge_prompts(style_prompt: str, prompt: str) -> str:
    """A prompt inside the text of one style."""
    try:
        return StyleBook([(_NOWHERE, [Style("one", style_prompt)])]).apply_to_prompt(prompt, ["one"])
    except FeatherweightError:
        return prompt


def apply_styles_to_prompt(prompt: str, styles: Iterable[str]) -> str:
    """A prompt inside the texts of several styles."""
    for text in styles:
        prompt = merge_prompts(text, prompt)
    return prompt


_NOWHERE = Path("styles.csv")
prompt_styles = StyleDatabase()
