"""Operations on finished images, and the image on its way through several of them.

The names are those that authors of postprocessing scripts for the reference UI know. The built-in operations, one per
file of this package, are subclasses of the same class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from modules.errors import InvalidValueError
from modules.settings.values import Settings

UPSCALERS = "upscalers"  # a provider of choices: names of pixel upscalers
OnProgress = Callable[[float, str], None]
"""Told how far an operation is with an image, 0 to 1, and in words; raises `Interrupted` when the user stopped it."""


def _ignore(fraction: float, phase: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One value that an operation takes: its name as an argument of `process`, its range, and its control.

    The type is that of `default`. `low` and `high` are allowed values, `slider_low` and `slider_high` what the slider
    shows of them. `is_switch`: the checkbox in the head of the operation, without which nothing is done. `infotext`:
    the name under which it is recorded, by which it is pasted into a form that has the operation. `choices` of names
    that come and go are a function, which the page asks; the operation checks them itself.
    """

    name: str
    label: str
    default: bool | int | float | str
    elem_id: str
    low: float | None = None
    high: float | None = None
    slider_low: float | None = None
    slider_high: float | None = None
    step: float | None = None
    choices: tuple[str, ...] | str | Callable[[], Sequence[str]] | None = None
    hint: str = ""
    is_switch: bool = False
    infotext: str = ""

    def check(self, value: object) -> bool | int | float | str:
        """The value in the field's type; raises `InvalidValueError`."""
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise self._bad(value, "true or false")
            return value
        if isinstance(self.default, str):
            if not isinstance(value, str):
                raise self._bad(value, "a text")
            if isinstance(self.choices, tuple) and value not in self.choices:
                raise self._bad(value, ", ".join(self.choices))
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(value, "a number")
        if isinstance(self.default, int) and value != int(value):
            raise self._bad(value, "a whole number")
        low, high = self.low, self.high
        if not ((low is None or value >= low) and (high is None or value <= high)):
            raise self._bad(
                value,
                f"{'' if low is None else f'at least {low:g}'}"
                f"{'' if high is None else f', at most {high:g}'}".removeprefix(", "),
            )
        return int(value) if isinstance(self.default, int) else float(value)

    def _bad(self, value: object, allowed: str) -> InvalidValueError:
        return InvalidValueError(f"{self.label} is {value!r}; allowed is {allowed}.")


@dataclass
class SharedInfo:
    """Facts that operations tell each other about one image before any of them works: the size it will get, in
    pixels."""

    target_width: int | None = None
    target_height: int | None = None


@dataclass
class PostprocessedImage:
    """An image on its way. Operations replace `image`, write into `info` (for the infotext), and add `extra_images`.

    `source`: what the images is called in messages. `settings` are those the job began with.
    """

    image: Image.Image
    settings: Settings = field(default_factory=Settings)
    info: dict[str, Any] = field(default_factory=dict)
    shared: SharedInfo = field(default_factory=SharedInfo)
    extra_images: list[PostprocessedImage | Image.Image] = field(default_factory=list)
    nametags: list[str] = field(default_factory=list)
    disable_processing: bool = False
    caption: str | None = None
    on_progress: OnProgress = _ignore

    def create_copy(
        self, new_image: Image.Image, *, nametags: Sequence[str] | None = None, disable_processing: bool = False
    ) -> PostprocessedImage:
        """A further image that has come this way; later operations work on it too, unless that is disabled. `nametags`
        are added to its file name."""
        return PostprocessedImage(
            new_image,
            self.settings,
            dict(self.info),
            self.shared,
            nametags=[*self.nametags, *(nametags or ())],
            disable_processing=disable_processing,
            caption=self.caption,
            on_progress=self.on_progress,
        )

    def get_suffix(self, used_suffixes: dict[str, int] | None = None) -> str:
        """Return what the file name ends with; a number keeps those of one source apart."""
        used = {} if used_suffixes is None else used_suffixes
        suffix = "-".join(self.nametags)
        if suffix:
            suffix = f"-{suffix}"
        count = used[suffix] = used.get(suffix, 0) + 1
        return suffix if count == 1 else f"{suffix}-{count}"


class ScriptPostprocessing:
    """An operation of the Extras tab. A subclass sets `name` and `order`, and overrides `process`.

    Its values are either `fields`, from which the page makes the controls and the API checks, or the Gradio components
    that `ui` builds; `process` gets them as keywords.
    """

    name: str = ""
    order: int = 1000
    """Operations run from low to high, unless the setting `postprocessing_operation_order` says otherwise."""
    fields: tuple[Field, ...] = ()
    filename: str = ""  # set by the program
    program: Any = None  # `modules.scripts.Program`: names and tools; set by the program for those of extensions

    def ui(self) -> dict[str, Any]:
        """Build Gradio components, and return them by the names of arguments; for operations without `fields`."""
        return {}

    def process_firstpass(self, pp: PostprocessedImage, **args: Any) -> None:
        """Before any operation works on the image: `pp.shared` may be filled."""

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        """Work on `pp.image`."""

    def image_changed(self) -> None:
        """Another image was put into the tab."""

    def checked(self, args: dict[str, Any]) -> dict[str, Any]:
        """Arguments as `process` gets them: `fields` that are not given have their defaults. Raises
        `InvalidValueError` for values that are not allowed."""
        if not self.fields:
            return dict(args)
        return {row.name: row.check(args[row.name]) if row.name in args else row.default for row in self.fields}
