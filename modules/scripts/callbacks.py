"""Callbacks: functions that an extension's file registers while it is loaded, called at moments of the program.

The names of the moments are those that authors of extensions for the reference UI know; `modules.script_callbacks` has
the `on_...` functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

log = logging.getLogger(__name__)


class Moment(StrEnum):
    """When callbacks are called, and with what."""

    APP_STARTED = "app_started"  # (the Gradio page or None, the FastAPI app)
    MODEL_LOADED = "model_loaded"  # (LoadedModel)
    BEFORE_UI = "before_ui"  # ()
    BEFORE_COMPONENT = "before_component"  # (None, elem_id=, label=); a control of a form is about to be built
    AFTER_COMPONENT = "after_component"  # (the component, elem_id=, label=)
    UI_TABS = "ui_tabs"  # () -> [(Blocks, title, id)]
    UI_SETTINGS = "ui_settings"  # (SettingsGroup); while the program starts
    INFOTEXT_PASTED = "infotext_pasted"  # (infotext, its fields, which may be changed)
    CFG_DENOISER = "cfg_denoiser"  # (CFGDenoiserParams)
    CFG_DENOISED = "cfg_denoised"  # (CFGDenoisedParams)
    CFG_AFTER_CFG = "cfg_after_cfg"  # (AfterCFGCallbackParams)
    EXTRA_NOISE = "extra_noise"  # (ExtraNoiseParams)
    BEFORE_IMAGE_SAVED = "before_image_saved"  # (ImageSaveParams)
    IMAGE_SAVED = "image_saved"  # (ImageSaveParams)
    IMAGE_GRID = "image_grid"  # (ImageGridLoopParams)
    SCRIPT_UNLOADED = "script_unloaded"  # (); while the program ends


@dataclass
class CFGDenoiserParams:
    """Before an evaluation of the model; tensors may be replaced by others of their shapes.

    `image_cond` is what an inpainting model sees alongside the latents, `vector` what is added to the time embedding;
    None for other models.
    """

    x: Tensor
    image_cond: Tensor | None
    sigma: Tensor
    sampling_step: int
    total_sampling_steps: int
    text_cond: Tensor
    text_uncond: Tensor
    denoiser: Any = None
    vector: Tensor | None = None


@dataclass
class CFGDenoisedParams:
    """After an evaluation, before guidance; `x` may be replaced."""

    x: Tensor
    sampling_step: int
    total_sampling_steps: int
    inner_model: Any = None


@dataclass
class AfterCFGCallbackParams:
    """After guidance; `x` may be replaced."""

    x: Tensor
    sampling_step: int
    total_sampling_steps: int


@dataclass
class ExtraNoiseParams:
    """Extra noise of a second pass; `noise` may be replaced. `x` is noised, `xi` clean."""

    noise: Tensor
    x: Tensor
    xi: Tensor


@dataclass
class ImageSaveParams:
    """An image that is written: `image` and `pnginfo` may be replaced before. `filename` is empty until it is there,
    because the number in the name is found while writing."""

    image: Image.Image
    p: Any
    filename: str
    pnginfo: dict[str, str]


@dataclass
class ImageGridLoopParams:
    """A grid about to be put together."""

    imgs: list[Image.Image]
    cols: int
    rows: int


@dataclass(frozen=True)
class Registered:
    """A callback with whose it is."""

    moment: Moment
    function: Callable[..., Any]
    extension: str
    name: str | None = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"{self.extension} ({self.name or getattr(self.function, '__name__', 'callback')})"


class Callbacks:
    """The callbacks of all extensions, in the order in which they were registered."""

    def __init__(self) -> None:
        self._registered: list[Registered] = []

    def add(self, entry: Registered) -> None:
        """Register one."""
        self._registered.append(entry)

    def at(self, moment: Moment) -> tuple[Registered, ...]:
        """Those of a moment."""
        return tuple(entry for entry in self._registered if entry.moment is moment)

    def forget(self, extension: str) -> None:
        """Take away all that a file registered (it could not be loaded to its end)."""
        self._registered = [entry for entry in self._registered if entry.extension != extension]

    def call(self, moment: Moment, *args: Any, **facts: Any) -> list[Any]:
        """Call those of a moment; what they return. One that fails is logged by name, the others are called."""
        results = []
        for entry in self.at(moment):
            try:
                results.append(entry.function(*args, **facts))
            except Exception:  # somebody else's code must not cost the program
                log.exception("The callback %s of %s failed.", moment.value, entry.label)
        return results
