"""The model that a job computes with, prepared as its settings say; another may take its place in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType

from modules.models.autoencoders.running import VaeRules
from modules.models.autoencoders.separate_tiles import SeparateTiles
from modules.models.loading.load_model import HeaderFacts
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.adapters import ActiveAdapters
from modules.processing.engine.attention import attention_of, using_attention
from modules.processing.engine.block_decoding import kept_bytes, using_block_decoding
from modules.processing.engine.compiling import using_compiled_blocks
from modules.processing.engine.conditioning import Conditioner, EncodedPrompts
from modules.processing.engine.engine import Engine
from modules.processing.engine.feed_forward import using_split_feed_forward
from modules.processing.engine.graphs import using_graphs
from modules.processing.engine.headroom import GpuWatch
from modules.processing.engine.model_shelf import headroom_bytes
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.engine.recovery import recovering, recovery_names, recovery_notices
from modules.processing.engine.tiny_vae import circular_padding, using_tiny_vae
from modules.processing.engine.token_merging import merged_tokens
from modules.processing.request.batch import PassTexts
from modules.processing.request.hooks import Hooks
from modules.processing.request.model_use import DenoiserInputs, ModelUse, PassFacts, SamplerProgress
from modules.processing.request.request import GenerationRequest
from modules.processing.request.stages import Stage
from modules.prompting.extra_networks import PromptTags
from modules.system.texts import page_text
from modules.upscalers.limits import UpscalerLimits


class ModelInUse:
    """A context manager; while it is open, `use` says which checkpoint. Holds no model but the one in use, so that
    what is replaced can leave memory before the next one is read.

    A job may be made inside of another one. The outer one lets its model go meanwhile, and takes it up again, with its
    own settings, as soon as it computes with it.
    """

    def __init__(self, request: GenerationRequest, engine: Engine, vae_tiles: SeparateTiles | None = None) -> None:
        self._request = request
        self._vae_tiles = vae_tiles
        self._engine = engine
        self._wanted: str | None = None
        self._has_begun = False
        self._model: LoadedModel | None = None
        self._conditioner: Conditioner | None = None
        self._contexts = ExitStack()
        self._merging = ExitStack()
        self._pass: tuple[PassTexts, PassFacts, Hooks, SamplerProgress] | None = None  # the one that runs
        self._use: ModelUse | None = None
        self._merging_ratio = 0.0
        self.has_merged_tokens = False  # of any model so far
        self.upscaling = UpscalerLimits()
        self._recovered: dict[str, None] = {}  # in order
        self._notices: dict[str, None] = {}
        self._watch: GpuWatch | None = None

    def __enter__(self) -> ModelInUse:
        leases = self._engine.leases
        if leases:
            leases[-1].let_go()
        else:
            self._engine.auxiliaries.begin_job()
        leases.append(self)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.leases.pop()
        self.let_go()

    @property
    def model(self) -> LoadedModel:
        """The model; `use` must have been called. Raises what that does where a job inside of this one took it away."""
        if self._model is None:
            assert self._has_begun
            self.use(self._wanted)
        assert self._model is not None
        return self._model

    @property
    def conditioner(self) -> Conditioner:
        """Its prompt encoder."""
        if self._conditioner is None and self._has_begun:
            self.use(self._wanted)
        assert self._conditioner is not None
        return self._conditioner

    def is_in_use(self, wanted: str | None) -> bool:
        """Whether the model is of this checkpoint. Raises `UnknownNameError`."""
        return self._engine.catalogue.default(wanted).path == self.model.info.path

    def look(self, wanted: str | None) -> HeaderFacts:
        """Read the facts in the header of another checkpoint, which this job may use later. Raises what `Engine.look`
        raises."""
        return self._engine.look(wanted, PrecisionOptions.of(self._request.settings))

    def use(self, wanted: str | None) -> None:
        """Compute with this checkpoint from now on. Raises what `Engine.model` does; there is no model then."""
        if self._model is not None and self.is_in_use(wanted):
            return
        self.let_go()
        settings, engine = self._request.settings, self._engine
        options = PrecisionOptions.of(settings)
        self._wanted, self._has_begun = wanted, True
        model = engine.model(wanted, options)
        self._model, self._conditioner = model, engine.conditioner(wanted, options)
        self._conditioner.notices.clear()
        model.vae_runner.rules = replace(VaeRules.of(settings), separate=self._vae_tiles)
        way = attention_of(settings, engine.machine, model)
        notes = (*model.plan.notes, *([model.stored_note] if model.stored_note else []))
        for note in (*notes, *([way.note] if way.note else []), *_note_on_optional(model)):
            self._notices[note] = None
        contexts = self._contexts
        contexts.callback(engine.adapters.deactivate, model, settings)
        contexts.enter_context(using_tiny_vae(model, self._request, engine.tiny_vaes))
        contexts.enter_context(circular_padding(model.modules, self._request.tiling))
        contexts.enter_context(using_attention((model.unet, model.vae), way.attention))
        contexts.enter_context(using_split_feed_forward(model.unet, settings.optimizations.split_feed_forward))
        wanted_compiled = settings.optimizations.torch_compile
        contexts.enter_context(using_compiled_blocks(model, wanted_compiled, engine.compiled, self._tell))
        machine, headroom, wanted_gb = engine.machine, headroom_bytes(settings), settings.optimizations.decoded_keep_gb
        kept = kept_bytes(model, wanted_gb, headroom, machine.read_memory(model.device))
        contexts.enter_context(using_block_decoding(model, kept))
        contexts.enter_context(using_graphs(model, settings.optimizations.cuda_graphs, self._tell))
        self._watch = watch = GpuWatch(model, headroom, lambda: machine.read_memory(model.device))
        watch.begin_job()
        contexts.enter_context(
            recovering(model, way.attention, self.upscaling, watch=watch, auxiliaries=engine.auxiliaries)
        )
        self._merge_tokens()

    @contextmanager
    def in_pass(self, texts: PassTexts, facts: PassFacts, hooks: Hooks, progress: SamplerProgress) -> Iterator[None]:
        """While open, what hooks register on a model is on whichever model is in use."""
        self._pass = (texts, facts, hooks, progress)
        try:
            yield
        finally:
            self._pass = None
            self._end_use()

    @property
    def script_use(self) -> ModelUse | None:
        """Return the hooks on the model in use, for the pass that runs. The adapters of the pass must be on the
        model."""
        if self._use is None and self._pass is not None:
            texts, facts, hooks, progress = self._pass

            def encode(prompts: Sequence[str], negatives: Sequence[str]) -> EncodedPrompts:
                settings, counts = self._request.settings, (texts.model_calls, texts.hires_model_calls)
                sizes = (texts.size_px, counts[1])
                return self.conditioner.encode(prompts, negatives, counts[0], settings, *sizes, images=texts.images)

            self._use = use = ModelUse(self.model, facts, encode, self._tell, self._engine.auxiliary, progress)
            self._have_adapters_follow(use)
            try:
                hooks.on_model(use)
            except BaseException:
                self._end_use()
                raise
        return self._use

    def _have_adapters_follow(self, use: ModelUse) -> None:
        """Have adapters that hold for some steps put on and taken off before the calls of these."""
        model = use.model
        adapters = model.adapters
        if adapters is None or not adapters.is_timed:
            return

        def follow(call: int) -> None:
            reported = use.reported_at(call)
            model.recovery.run(Stage.ADAPTERS, lambda: adapters.at_step(reported, use.facts.steps))

        def before_call(inputs: DenoiserInputs) -> None:
            follow(inputs.step)

        follow(0)  # what scripts compute before the first call depends on no job before this one
        use.before_call.append(before_call)

    def _end_use(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.undo.close()
            self._engine.auxiliaries.let_go()

    def _tell(self, note: str) -> None:
        self._notices[note] = None

    def apply_adapters(self, tags: PromptTags) -> ActiveAdapters:
        """Have the adapters of a prompt on the model and no others, and in its prompts the words of all embeddings
        that fit it or came with them. Nothing happens where they are there already."""
        model, adapters = self.model, self._engine.adapters
        active = model.recovery.run(Stage.ADAPTERS, lambda: adapters.activate(model, tags, self._request.settings))
        self.conditioner.adapters = active
        if model.family.denoiser.edits_by_adapter:
            model.shown_as = adapters.files.references_shown_as(tags, self._request.settings)
        adapters.files.embeddings.refresh()
        widths = model.text_widths
        bundled = {name: item for name, item in active.embeddings.items() if set(widths) <= set(item.vectors)}
        self.conditioner.use_embeddings({**adapters.files.embeddings.usable(widths), **bundled})
        return active

    @contextmanager
    def merging_tokens(self, ratio: float) -> Iterator[None]:
        """While open, tokens are merged by this ratio, in whichever model is in use."""
        self._merging.close()
        self._merging_ratio = ratio
        self._merge_tokens()
        try:
            yield
        finally:
            self._merging_ratio = 0.0
            self._merging.close()

    @property
    def recovered(self) -> str | None:
        """Return the fallbacks that were used when memory ran out, for the infotext; those of all models of the job so
        far."""
        self._note_recovery()
        return ", ".join(self._recovered) or None

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what the user should know about how the models were run."""
        self._note_recovery()
        unread = () if self._conditioner is None else self._conditioner.notices
        return tuple({**self._notices, **dict.fromkeys(unread)})

    def _merge_tokens(self) -> None:
        mergeable = self.model.family.denoiser.blocks.mergeable
        merges = self._merging.enter_context(merged_tokens(self.model.unet, self._merging_ratio, mergeable))
        self.has_merged_tokens |= merges
        if self._merging_ratio > 0 and not merges:
            label = self.model.family.label
            self._tell(page_text(f"Token merging has no effect on {label}: its denoiser has no layers for it."))

    def _note_recovery(self) -> None:
        if self._model is None:
            return
        names = recovery_names(self._model.recovery)
        for name in names.split(", ") if names else ():
            self._recovered[name] = None
        watched = () if self._watch is None else self._watch.notices
        for notice in (*recovery_notices(self._model.recovery), *watched):
            self._notices[notice] = None

    def let_go(self) -> None:
        """Hold no model, until one is asked for."""
        self._note_recovery()
        self._end_use()
        self._merging.close()
        self._contexts.close()
        self._model = self._conditioner = self._watch = None


def _note_on_optional(model: LoadedModel) -> list[str]:
    """That the setting for an encoder which the family can do without has no effect, if it has none."""
    optional = model.family.texts.optional
    if optional is None or not model.plan.with_optional or model.has_optional:
        return []
    return [f"Enable {optional.field} has no effect: {model.info.name} {optional.missing}"]
