"""The changes that participants of a job make to its model for one pass, and what they receive of each call of it.

A `ModelUse` is made for every pass and every model of it (a refiner gets its own), given to `Hooks.on_model`, and
closed with the pass: all that was put on the model is then taken off. Nothing here knows who takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.errors import InvalidValueError
from modules.memory.hook_chain import HookOrder, ModuleHook, register_hook, replace_attribute

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor, nn

    from modules.models.families.denoiser_context import DenoiserContext, Extra
    from modules.models.loading.auxiliary import Auxiliary

ConditionedDenoise = Callable[["Tensor", "Tensor", "DenoiserContext"], "Tensor"]
"""(x [N,C,h,w], sigma [N], context of N rows) -> denoised [N,C,h,w]."""
AroundDenoiser = Callable[[ConditionedDenoise], ConditionedDenoise]

INSIDE, USUAL, OUTSIDE = 0, 10, 20
"""Where in the chain around the denoiser something belongs: tiles are outside of what computes for each tile."""


class Window(NamedTuple):
    """A part of the latents, in their cells."""

    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class ModelCall:
    """The call of the denoiser that is being made, with an entry for each of its rows: `images` says which image of the
    batch it is for, `is_negative` whether it is a negative prompt's, `windows` which part of the latents it shows,
    where that is not all. `step` of `total_steps` counts the sampler's model calls before this one."""

    images: tuple[int, ...]
    is_negative: tuple[bool, ...]
    step: int
    total_steps: int
    windows: tuple[Window, ...] | None = None

    def rows(self, chosen: Sequence[int]) -> ModelCall:
        """Return the call with these of its rows, which may come several times."""
        windows = None if self.windows is None else tuple(self.windows[row] for row in chosen)
        return ModelCall(
            tuple(self.images[row] for row in chosen),
            tuple(self.is_negative[row] for row in chosen),
            self.step,
            self.total_steps,
            windows,
        )

    @property
    def progress(self) -> float:
        """How much of the pass is over, 0 to 1."""
        return min(self.step / max(self.total_steps, 1), 1.0)


@dataclass
class DenoiserInputs:
    """The inputs of the model at one call; each field may be replaced by another of its shape.

    `x` [N+B,C,h,w] and `sigma` [N+B] are for the N parts of the prompts, then for the B negative prompts; where an
    editing model is guided by its image, B more follow, for the negative prompts without the image;
    `text_cond` [N,tokens,width], `text_uncond` [B,tokens,width], which is that of the prompts where the negative
    prompts do not count and nobody looks at them. `vector` [N+B,V] is added to the time embedding
    in families that have one, `image` [N+B,C,h,w] is what an inpainting model sees next to the latents; None for
    other models. `mask_cond` [N,tokens] and `mask_uncond` [B,tokens] are True where a token is no padding, for text
    encoders that have such. `extra` [N+B,...] is passed to the denoiser by the names of its own arguments: residuals of
    a control model, tokens, masks.
    """

    x: Tensor
    sigma: Tensor
    text_cond: Tensor
    text_uncond: Tensor
    step: int
    total_steps: int
    vector: Tensor | None = None
    image: Tensor | None = None
    mask_cond: Tensor | None = None
    mask_uncond: Tensor | None = None
    extra: dict[str, Extra] = field(default_factory=dict)


@dataclass
class Denoised:
    """The outputs of a model call: before guidance [N+B,C,h,w], or after it [B,C,h,w]; `x` may be replaced."""

    x: Tensor
    step: int
    total_steps: int


Predict = Callable[["Tensor", bool], "Tensor"]
"""(x [B,C,h,w], whether for the negative prompts) -> denoised [B,C,h,w]: one more call of the model."""

Rescale = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
"""(x, denoised of the prompts, denoised after guidance), all [B,C,h,w] -> denoised."""


@dataclass
class Guided:
    """The predictions of a step on their way to one. `cond` is that of the prompts (of parts joined by AND their
    weighted sum), `uncond` that of the negative prompts, both [B,C,h,w], denoised; they may be replaced before
    guidance, and so may `cfg_scale`. `denoised` is there after guidance and may be replaced then. Where the step has no
    negative prompts, `has_uncond` is False, `uncond` is `cond` and `cfg_scale` is 1. `rescale` is what the model's
    family does after classifier-free guidance."""

    x: Tensor
    sigma: Tensor
    cond: Tensor
    uncond: Tensor
    cfg_scale: float
    step: int
    total_steps: int
    predict: Predict
    has_uncond: bool = True
    denoised: Tensor | None = None
    rescale: Rescale | None = None

    @property
    def progress(self) -> float:
        """How much of the pass is over, 0 to 1."""
        return min(self.step / max(self.total_steps, 1), 1.0)

    def combined(self) -> Tensor:
        """Classifier-free guidance of the two, [B,C,h,w]."""
        denoised = self.uncond + self.cfg_scale * (self.cond - self.uncond)
        return denoised if self.rescale is None else self.rescale(self.x, self.cond, denoised)


@dataclass(frozen=True)
class PassFacts:
    """The facts about a pass before its first step: its texts, an entry for each image, and its sizes."""

    prompts: tuple[str, ...]
    negative_prompts: tuple[str, ...]
    size_px: tuple[int, int]  # width, height
    steps: int  # that the sampler makes in this pass
    cfg_scale: float
    is_hires: bool = False
    calls_per_step: int = 1


@dataclass
class SamplerProgress:
    """How far the sampler of a pass says that it is: the step that it last reported, from 0, of `steps`. In most
    samplers a step is reported between its first call of the model and its second."""

    steps: int
    step: int = 0


def _no_files(path: Path, build: Any, key: object = None, kept: int | None = None) -> Auxiliary:
    raise InvalidValueError(f"{path.name} cannot be loaded here: there is no engine.")


@dataclass
class ModelUse:
    """A model that a pass is about to compute with (`modules.models.loading.loaded.LoadedModel`).

    `encode(prompts, negative_prompts)` encodes other texts for this pass as its own are (`EncodedPrompts`), `notice`
    tells the user something. `before_call` receive the `DenoiserInputs` of each step, `after_call` what the model made
    of them (`Denoised`, before guidance), `after_step` what the sampler is about to get (`Denoised`); they may change
    these. `call` is set during every call of the denoiser. `auxiliary(path, build, key, kept)` is `Engine.auxiliary`: a
    model from a file of its own, stored, streamed, kept and freed like the program's; `sampler` says how far the pass
    is.
    """

    model: Any
    facts: PassFacts
    encode: Callable[[Sequence[str], Sequence[str]], Any]
    notice: Callable[[str], None]
    auxiliary: Callable[..., Auxiliary] = _no_files
    sampler: SamplerProgress = field(default_factory=lambda: SamplerProgress(1))
    undo: ExitStack = field(default_factory=ExitStack)
    before_call: list[Callable[[DenoiserInputs], None]] = field(default_factory=list)
    after_call: list[Callable[[Denoised], None]] = field(default_factory=list)
    before_guidance: list[Callable[[Guided], None]] = field(default_factory=list)
    after_guidance: list[Callable[[Guided], None]] = field(default_factory=list)
    after_step: list[Callable[[Denoised], None]] = field(default_factory=list)
    reads_uncond: bool = False
    """Whether somebody looks at the negative prompts even where they do not count; else they are not encoded then."""
    needs_uncond: bool = False
    """Whether the negative prompt is predicted even where it does not count, at a CFG scale of 1."""
    is_replayable: bool = True
    """Whether all that the model's answers depend on is in its inputs; else a job that was cut off does not go on in
    the middle of the pass."""
    _around: list[tuple[int, AroundDenoiser]] = field(default_factory=list)
    _guide: tuple[str, Callable[[Guided], Tensor]] | None = None
    _call: ModelCall | None = None
    _is_inside: bool = False

    @classmethod
    def unwatched(cls) -> ModelUse:
        """Return one for a model around which nothing is put."""
        return cls(None, PassFacts((), (), (0, 0), 0, 1.0), lambda *_: None, lambda _: None)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of the latents of this pass."""
        height, width = self.model.latent_size(self.facts.size_px)
        return height, width

    def hook(self, module: nn.Module, hook: ModuleHook, order: HookOrder = HookOrder.ADAPTER) -> None:
        """Have `hook(module, inner, *args, **kwargs)` called around a module's forward in this pass."""
        self.undo.callback(register_hook(module, hook, order).remove)

    def replace(self, holder: Any, name: str, value: Any) -> None:
        """Set an attribute for this pass."""
        self.undo.callback(replace_attribute(holder, name, value).remove)

    def around_denoiser(self, around: AroundDenoiser, order: int = USUAL) -> None:
        """Have `around(denoise)` called instead of the denoiser. It may call `denoise` several times, with other rows
        inside of `calling`. A higher `order` is further outside."""
        self._around.append((order, around))

    def guide(self, name: str, guide: Callable[[Guided], Tensor]) -> None:
        """Have `guide` combine prompt and negative prompt instead of classifier-free guidance. Raises
        `InvalidValueError` where another one does; `name` is for that message."""
        if self._guide is not None:
            raise InvalidValueError(
                f"{self._guide[0]} and {name} both take the place of classifier-free guidance. Switch one of them off."
            )
        self._guide = (name, guide)

    @property
    def call(self) -> ModelCall:
        """The call that is being made, with the rows that the denoiser has now: fewer than all where a batch is cut up
        for want of memory."""
        assert self._call is not None, "no call is being made"
        runner = self.model.unet_runner
        first, last = runner.part
        if self._is_inside or (first, last) == (0, runner.rows) or runner.rows != len(self._call.images):
            return self._call
        return self._call.rows(range(first, last))

    @property
    def reported_step(self) -> int:
        """The step, of `facts.steps`, that the sampler had reported when this call began: in the first call of a step
        the one before. It is what extensions of the reference UI compare with their beginning and end."""
        return self.reported_at(self.call.step)

    def reported_at(self, call: int) -> int:
        """Return the step that was last reported after so many calls."""
        step, later = divmod(call, self.facts.calls_per_step)
        return step if later else max(step - 1, 0)

    def calling(self, call: ModelCall, is_inside: bool = False) -> _Calling:
        """While open, `call` is this one: around the denoiser, or `is_inside` of it, around one of its layers."""
        return _Calling(self, call, is_inside)

    @property
    def guides(self) -> bool:
        """Whether somebody changes how the predictions of a step become one."""
        return bool(self.before_guidance or self.after_guidance or self._guide)

    def guided(self, parts: Guided) -> Tensor:
        """Return what the step predicts, [B,C,h,w]."""
        for change in self.before_guidance:
            change(parts)
        parts.denoised = self._guide[1](parts) if self._guide is not None else parts.combined()
        for change in self.after_guidance:
            change(parts)
        return parts.denoised

    def around(self, denoise: ConditionedDenoise) -> ConditionedDenoise:
        """The denoiser with all that was registered on it."""
        for _, around in sorted(self._around, key=lambda entry: entry[0]):
            denoise = around(denoise)
        return denoise


def rows_of_context(context: DenoiserContext, rows: Sequence[int], count: int) -> DenoiserContext:
    """A context with these of its `count` rows, which may come several times."""

    def chosen(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(chosen(item) for item in value)
        if isinstance(value, Mapping):
            return {name: chosen(item) for name, item in value.items()}
        return value[list(rows)] if hasattr(value, "ndim") and value.ndim and len(value) == count else value

    return replace(context, **{each.name: chosen(getattr(context, each.name)) for each in fields(context)})


@dataclass
class _Calling:
    use: ModelUse
    call: ModelCall
    is_inside: bool
    before: tuple[ModelCall | None, bool] = (None, False)

    def __enter__(self) -> None:
        self.before = self.use._call, self.use._is_inside
        self.use._call, self.use._is_inside = self.call, self.is_inside

    def __exit__(self, *error: object) -> None:
        self.use._call, self.use._is_inside = self.before
