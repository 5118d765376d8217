"""What an extension's script is: a class with the names that authors of scripts for the reference UI know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.processing.results import Picture
    from modules.scripts.processing import Processed, StableDiffusionProcessing

AlwaysVisible = object()
"""What `Script.show` returns for a script that takes part in every job."""


class Script:
    """Subclass it in a file below `scripts/` of an extension's folder.

    A selectable script overrides `run`; one that `show` declares `AlwaysVisible` overrides the hooks it needs. `args`
    are the values of the components that `ui` returned, in their order.
    """

    filename: str = ""  # set by the program
    built: list[Any] | None = None  # its components, for their defaults; set by the program

    def title(self) -> str:
        """The name on the page and in the API."""
        raise NotImplementedError(f"{type(self).__name__} has no title()")

    def show(self, is_img2img: bool) -> object:
        """True, False, or `AlwaysVisible`."""
        return True

    def ui(self, is_img2img: bool) -> list[Any]:
        """Build and return Gradio components."""
        return []

    def run(self, p: StableDiffusionProcessing, *args: Any) -> Processed | None:
        """Make the pictures of a job in place of the program; None: the program makes them with `p` as it is now."""
        return None

    def before_process(self, p: StableDiffusionProcessing, *args: Any) -> None:
        """Before anything of a job is computed; `p` may be changed."""

    def process(self, p: StableDiffusionProcessing, *args: Any) -> None:
        """After `before_process` of all scripts; `p` may be changed."""

    def postprocess_image(self, p: StableDiffusionProcessing, pp: PostprocessImageArgs, *args: Any) -> None:
        """For each finished picture; `pp.image` may be replaced."""

    def postprocess(self, p: StableDiffusionProcessing, processed: Processed, *args: Any) -> None:
        """After the job; pictures may be added to `processed`."""

    @property
    def is_alwayson(self) -> bool:
        """Whether it takes part in every txt2img job."""
        return self.show(False) is AlwaysVisible


class PostprocessImageArgs:
    """A finished picture on its way."""

    def __init__(self, picture: Picture, index: int = 0) -> None:
        self.image = picture.image
        self.index = index
