"""What an extension may ask the running program: which files and names there are, looked up when it asks."""

from collections.abc import Callable
from dataclasses import dataclass

from modules.prompting.styles import StyleBook

Names = Callable[[], list[str]]


def _none() -> list[str]:
    return []


@dataclass(frozen=True)
class Program:
    """The names that a user can choose from; empty for a library that was loaded without a program."""

    checkpoints: Names = _none  # titles
    vaes: Names = _none  # as the setting sd_vae takes them: Automatic, None, file names
    upscalers: Names = _none  # for hires fix, latent modes included
    loras: Names = _none
    styles: Callable[[], StyleBook] = lambda: StyleBook(())
