"""Scripts of extensions: a class with the names that authors of scripts for the reference UI know.

`p` is the job, `args` are the values
of the components that `ui` returned, in their order; facts of a batch come as keywords.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, ClassVar

from modules.scripts.acting import Acting
from modules.scripts.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from PIL import Image
    from torch import Tensor

    from modules.processing.request.model_use import ModelUse
    from modules.scripts.job import Job, Processed
    from modules.scripts.pasting import InfotextFields, PastedFields

log = logging.getLogger(__name__)

AlwaysVisible = object()
"""What `Script.show` returns for a script that takes part in every job."""


class ScriptHooks:
    """Methods that the program calls at the moments of a job, in the order in which they stand here."""

    def setup(self, p: Job, *args: Any) -> None:
        """First of all; `p` may be changed."""

    def before_process(self, p: Job, *args: Any) -> None:
        """Before anything of a job is computed; `p` may be changed."""

    def process(self, p: Job, *args: Any) -> None:
        """After `before_process` of all scripts; `p` may be changed, and `p.all_prompts`, `p.all_negative_prompts`,
        `p.all_seeds`, `p.all_subseeds` hold an entry for each image of the job, which may be changed too."""

    def before_process_batch(self, p: Job, *args: Any, **facts: Any) -> None:
        """Before a batch: `batch_number`, `prompts`, `seeds`, `subseeds`. The lists may be changed."""

    def after_extra_networks_activate(self, p: Job, *args: Any, **facts: Any) -> None:
        """The networks of the prompts are on the model; facts as above and `extra_network_data`, by type."""

    def process_batch(self, p: Job, *args: Any, **facts: Any) -> None:
        """Before the prompts of a batch are encoded; facts as above."""

    def process_before_every_sampling(self, p: Job, *args: Any, **facts: Any) -> None:
        """Before each pass: `x` and `noise` [B,C,h,w], which may be changed in place, `c` and `uc`, the prompts."""

    def on_model(self, p: Job, use: ModelUse, *args: Any) -> None:
        """A pass is about to compute with `use.model`; called again for a refiner. What is registered through `use` is
        taken off after the pass. An error of the program's own (`modules.errors`) ends the job."""

    def on_mask_blend(self, p: Job, mba: MaskBlendArgs, *args: Any) -> None:
        """Inpainting: at each model call and once at the end; `mba.blended_latent` may be replaced."""

    def before_hr(self, p: Job, *args: Any) -> None:
        """The first pass of hires fix is over, the second comes."""

    def post_sample(self, p: Job, ps: PostSampleArgs, *args: Any) -> None:
        """After sampling; `ps.samples` (latents [B,C,h,w]) may be replaced."""

    def postprocess_batch(self, p: Job, *args: Any, **facts: Any) -> None:
        """After decoding: `images` [B,3,H,W] in 0 to 1, which may be changed in place; and the facts of a batch."""

    def postprocess_batch_list(self, p: Job, pp: PostprocessBatchListArgs, *args: Any, **facts: Any) -> None:
        """Change, as above, `pp.images`, a list of [3,H,W]; images may be added and taken away."""

    def postprocess_image(self, p: Job, pp: PostprocessImageArgs, *args: Any) -> None:
        """For each finished image, before it is saved; `pp.image` may be replaced."""

    def postprocess_maskoverlay(self, p: Job, ppmo: PostProcessMaskOverlayArgs, *args: Any) -> None:
        """Before what a mask keeps is put over an image; `ppmo.overlay_image` may be replaced."""

    def postprocess_image_after_composite(self, p: Job, pp: PostprocessImageArgs, *args: Any) -> None:
        """Change an image with what a mask keeps over it; `pp.image` may be replaced."""

    def postprocess(self, p: Job, processed: Processed, *args: Any) -> None:
        """After the job; images may be added to `processed`."""


class Script(ScriptHooks):
    """Subclass it in a file below `scripts/` of an extension's folder.

    A selectable script overrides `run`; one that `show` declares `AlwaysVisible` overrides the hooks it needs.
    """

    filename: str = ""  # set by the program
    built: list[Any] | None = None  # its components, for their defaults; set by the program
    program: Program = Program()  # which names there are; set by the program
    ui_error: str = ""  # why they could not be built; set by the program
    pasted: PastedFields | None = None  # what fills `built`; set by the program
    infotext_fields: InfotextFields | None = None
    """Set in `ui`: what a pasted infotext gives to which component, by the name of a field or by a function of all
    fields (None: leave it)."""
    paste_field_names: list[str] | None = None
    """Names of the script's infotext fields, for scripts that keep them here. All fields are pasted, named or not."""

    acting: Acting | None = None
    """Whose code it is; set by the program."""
    shown: dict[bool, object] | None = None
    """What `show` said of each tab when it was asked once; None: it is asked each time."""
    fold_id: ClassVar[str] = ""
    """The id of its fold on the page, by which other extensions know it."""
    own_tab: bool | None = None
    """For user extensions: whether this object is the one of img2img; None: one object serves both tabs."""
    name: str | None = None  # the title in lower case; this and those below are set by the program
    is_txt2img: bool = False  # for which tab `ui` is called
    is_img2img: bool = False
    tabname: str | None = None
    alwayson: bool = False
    args_from: int | None = None  # where its arguments stand in `p.script_args` of the running job
    args_to: int | None = None
    section: str | None = None  # accepted; scripts stand in their own place of the form
    group: Any = None
    create_group: bool = True
    controls: list[Any] | None = None
    api_info: Any = None

    takes_part_inside: bool = True
    """Whether an always-on script takes part in jobs that other scripts make in their hooks, such as `redrawing`."""

    other_titles: tuple[str, ...] = ()
    """More names by which calling programs may name an always-on script."""

    def stand_on(self, is_img2img: bool) -> None:
        """Say for which tab `ui` is called next."""
        self.is_img2img, self.is_txt2img = is_img2img, not is_img2img
        self.tabname = "img2img" if is_img2img else "txt2img"

    def title(self) -> str:
        """The name on the page and in the API."""
        raise NotImplementedError(f"{type(self).__name__} has no title()")

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """Arguments that a calling program gives under `title`, as values of the components, in their order; those left
        out at the end get their defaults. Raises `InvalidValueError` for what they cannot be."""
        return args

    def auxiliary_files(self, args: Sequence[Any]) -> Sequence[Path]:
        """The files that `use.auxiliary` will be asked for in a job with these arguments, so that the memory estimate
        counts them."""
        return ()

    def show(self, is_img2img: bool) -> object:
        """True, False, or `AlwaysVisible`."""
        return True

    def ui(self, is_img2img: bool) -> list[Any]:
        """Build and return Gradio components."""
        return []

    def before_component(self, component: Any, **kwargs: Any) -> None:
        """A control of a form is about to be built where the layout is open now: what is built here stands before it.
        `component` is None, `elem_id` and `label` are given."""

    def after_component(self, component: Any, **kwargs: Any) -> None:
        """A control of a form was built; `elem_id` and `label` are given."""

    def on_before_component(self, callback: Callable[[OnComponent], None], *, elem_id: str) -> None:
        """Have `callback` called before the control with this id is built. To be called in `__init__` or `show`."""
        self._on_components("_before_by_id", elem_id, callback)

    def on_after_component(self, callback: Callable[[OnComponent], None], *, elem_id: str) -> None:
        """Call back as above, after it was built."""
        self._on_components("_after_by_id", elem_id, callback)

    def _on_components(self, name: str, elem_id: str, callback: Callable[[OnComponent], None]) -> None:
        """`show` may be called again and again; the same function is registered once."""
        found = self.__dict__.setdefault(name, {}).setdefault(elem_id, [])
        if callback not in found:
            found.append(callback)

    def component_callbacks(self, elem_id: str, after: bool) -> Sequence[Callable[[OnComponent], None]]:
        """List what was registered for a control."""
        found: dict[str, list[Callable[[OnComponent], None]]] = self.__dict__.get(
            "_after_by_id" if after else "_before_by_id", {}
        )
        listed = self.__dict__.get(f"on_{'after' if after else 'before'}_component_elem_id") or ()
        own = [callback for one, callback in listed if one == elem_id]  # a list that extensions fill themselves
        return (*found.get(elem_id, ()), *own)

    def run(self, p: Job, *args: Any) -> Processed | None:
        """Make the images of a job instead of the program; None: the program makes them with `p` as it is now."""
        return None

    def elem_id(self, item_id: str) -> str:
        """The id of a component of `ui` on the page, made of the title and, where the script is on both tabs, the
        tab."""
        is_on_both = self.shown is not None and self.shown[True] == self.shown[False]
        tab = ("img2img_" if self.is_img2img else "txt2img_") if is_on_both else ""
        title = re.sub(r"[^a-z_0-9]", "", re.sub(r"\s", "_", self.title().lower()))
        return f"script_{tab}{title}_{item_id}"

    def describe(self) -> str:
        """Unused, as in the reference UI."""
        return ""

    @property
    def is_foreign(self) -> bool:
        """Whether it is of a user extension."""
        return self.acting is not None and self.acting.is_foreign

    def failed(self, where: str, error: BaseException) -> None:
        """Say in the log, and among the faults of its extension, that it failed."""
        reason = f"{type(error).__name__}: {error}"
        if self.acting is not None:
            reason = self.acting.owner.note(where, error).reason
        if where == "ui":
            self.ui_error = reason
        log.error("The script %s (%s) failed in %s: %s", self.title(), self.filename, where, reason, exc_info=error)

    @property
    def is_alwayson(self) -> bool:
        """Whether it takes part in every job of a tab that it is on."""
        return any(self.takes_part(is_img2img) for is_img2img in (False, True))

    def takes_part(self, is_img2img: bool) -> bool:
        """Whether it takes part in every job of img2img, or of txt2img."""
        return self._visibility(is_img2img) is AlwaysVisible

    def is_on(self, is_img2img: bool) -> bool:
        """Whether it is on the tab img2img, or txt2img."""
        return bool(self._visibility(is_img2img))

    def _visibility(self, is_img2img: bool) -> object:
        if self.own_tab is not None and self.own_tab != is_img2img:
            return False
        return self.show(is_img2img) if self.shown is None else self.shown[is_img2img]


class OnComponent:
    """A control of a form; None before it is built."""

    def __init__(self, component: Any) -> None:
        self.component = component


class PostSampleArgs:
    """Latents on their way to the decoder, [B,C,h,w]."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples


class MaskBlendArgs:
    """The kept part of an image is about to be put back into `current_latent` [B,C,h,w]: `blended_latent` may be
    replaced. `nmask` [C,h,w] is 1 where the image is repainted and `mask` where it is kept, `init_latent` is clean;
    `sigma` [B] is None at the last blend, where `is_final_blend` is True."""

    def __init__(
        self,
        current_latent: Tensor,
        nmask: Tensor,
        init_latent: Tensor,
        mask: Tensor,
        blended_latent: Tensor,
        denoiser: Any = None,
        sigma: Tensor | None = None,
    ) -> None:
        self.current_latent = current_latent
        self.nmask = nmask
        self.init_latent = init_latent
        self.mask = mask
        self.blended_latent = blended_latent
        self.denoiser = denoiser
        self.is_final_blend = denoiser is None
        self.sigma = sigma


class PostProcessMaskOverlayArgs:
    """Overlay that a mask keeps of an image (RGBA, None where nothing is put back); `index` counts within its batch."""

    def __init__(self, index: int, mask_for_overlay: Image.Image | None, overlay_image: Image.Image | None) -> None:
        self.index = index
        self.mask_for_overlay = mask_for_overlay
        self.overlay_image = overlay_image


class PostprocessBatchListArgs:
    """The decoded images of a batch, each [3,H,W] in 0 to 1."""

    def __init__(self, images: list[Tensor]) -> None:
        self.images = images


class PostprocessImageArgs:
    """A decoded image on its way; `index` counts within its batch. `is_finished` is False for one whose sampling was
    stopped."""

    def __init__(self, image: Image.Image, index: int = 0, is_finished: bool = True) -> None:
        self.image = image
        self.index = index
        self.is_finished = is_finished
