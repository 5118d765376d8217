"""The memory that a job will need: its stages estimated by a dry run without memory, corrected by what earlier jobs
took."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.errors import FeatherweightError
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.memory.planning import Corrections
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER
from modules.processing.engine.chosen_checkpoint import wanted_checkpoint
from modules.processing.engine.model_shelf import headroom_bytes
from modules.processing.engine.precision import PrecisionOptions, optional_encoders, resolve, with_gpu
from modules.processing.memory_estimate.step_time import StepWork
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, reference_size
from modules.processing.request.stages import (
    IN_MAIN_MEMORY,
    Role,
    Stage,
    StageOfJob,
    checkpoint_of,
    computes,
    stages_of,
    upscaler_of,
)
from modules.processing.request.texts import prepare_text
from modules.sampling.catalog import SAMPLERS
from modules.settings.sections.stable_diffusion import FULL, TINY
from modules.settings.values import Settings
from modules.system.devices import autocast, describe, held_of_main_memory, is_available, shares_main_memory
from modules.system.threads import start_loop

if TYPE_CHECKING:
    import torch

    from modules.memory.attention import Attention
    from modules.memory.dry_run import DryRun, MetaRun
    from modules.memory.timeline import MemoryRecord
    from modules.memory.work import Work
    from modules.models.files.catalogue import CheckpointInfo
    from modules.models.loading.meta_model import MetaModel
    from modules.models.loading.precision import PrecisionPlan
    from modules.processing.engine.engine import Engine
    from modules.processing.engine.precision import Machine
    from modules.processing.request.result import Result

log = logging.getLogger(__name__)

MAX_META_MODELS = 2
MAX_DRY_RUNS = 256
PROGRAM_BYTES = 700_000_000
"""What the program takes before it has learnt better: Python, PyTorch and its packages, the page."""
DRIVER_BYTES = 500_000_000
"""What driver, libraries and a desktop take of a GPU's memory."""
SYSTEM_BYTES = 2_500_000_000
"""What a desktop system takes of the main memory, with what it can put away."""
OUTPUT_ONLY = ("sdp", "sdp-no-mem", "xformers", "int8")
"""Ways of attention that never hold the scores."""
KERNELS_ON_TOP = {"cpu": 0.35}
"""Before anything was learnt: convolutions on the CPU copy what they read into another layout."""


AUXILIARY_STAGES = (Stage.ENLARGE, Stage.FACES)
UPSCALER_MAPS = 128
RESTORER_MAPS = 256
"""Before anything was learnt: maps in the size of the result that a network of its usual width has at once."""
FACE_PX = 512
JUST_LEFT = 1.02
"""A stage that has no more than this many times what the one before has left in memory does not say what it needs."""


@dataclass(frozen=True)
class StageNeed:
    """The most memory during one stage, weights and program included, in bytes: `needs_bytes` of the device that
    computes, `main_bytes` of main memory. On the CPU these are the same. `held_bytes` of the first are weights and
    program, which no smaller image saves."""

    stage: Stage
    needs_bytes: int
    main_bytes: int = 0
    held_bytes: int = 0

    def after(self, left_bytes: int) -> StageNeed:
        """Return the need after a stage that has left so many bytes: streamed weights go when others are used."""
        if left_bytes <= self.needs_bytes:
            return self
        return replace(self, needs_bytes=left_bytes, held_bytes=left_bytes)

    def share_in(self, available_bytes: int) -> float:
        """Return the share of the pixels with which the stage would need about as much as there is; 0 to 1."""
        of_pixels = self.needs_bytes - self.held_bytes
        free = max(0, available_bytes - self.held_bytes)
        return 1.0 if free >= of_pixels else free / of_pixels


@dataclass(frozen=True)
class MemoryEstimate:
    """The memory that a job needs. `needs_bytes` of `available_bytes`: of the device that computes, at the worst stage.

    On the CPU that is main memory, with everything that the program holds; with a GPU
    `main_available_bytes` is what there is of main memory next to it. `learnt_from` counts the jobs of this kind that
    the numbers are based on. None: not known.
    """

    device: str
    stages: tuple[StageNeed, ...]
    weights_bytes: int
    available_bytes: int | None
    learnt_from: int
    main_available_bytes: int | None = None

    @property
    def needs_bytes(self) -> int:
        """Return the bytes of the worst stage."""
        return max(stage.needs_bytes for stage in self.stages)

    @property
    def main_bytes(self) -> int:
        """Return the bytes of main memory, at the stage that needs the most of it."""
        return max(stage.main_bytes for stage in self.stages)

    @property
    def missing_bytes(self) -> int:
        """Return the missing bytes, of the device and of main memory."""
        wanted = ((self.needs_bytes, self.available_bytes), (self.main_bytes, self.main_available_bytes))
        return sum(max(0, needs - there) for needs, there in wanted if there is not None)

    @property
    def share_of_pixels(self) -> float:
        """Return the share of the image's pixels with which every stage would fit on the device; 0 to 1."""
        there = self.available_bytes
        return 1.0 if there is None else min(stage.share_in(there) for stage in self.stages)

    @property
    def worst(self) -> Stage:
        """The stage that needs the most."""
        return max(self.stages, key=lambda stage: stage.needs_bytes).stage

    @property
    def fits(self) -> bool:
        """Whether it is there."""
        return self.missing_bytes == 0


@dataclass(frozen=True)
class _Case:
    """Everything that the memory of a job's stages with one of its checkpoints depends on."""

    meta_model: MetaModel
    plan: PrecisionPlan
    attention: str
    upcast: bool
    request: GenerationRequest


class MemoryEstimator:
    """Plans jobs and learns from them. Thread safe; plans one at a time. Never waits for a running job."""

    def __init__(
        self,
        engine: Engine,
        configs_dir: Path,
        learnt: Path | None = None,
        yaml: Path | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`learnt`: the file with what was learnt; None: in memory only. `yaml` as the engine's default YAML.
        `machine`: what to plan for in the engine's place; it need not be here."""
        self._engine, self._machine_in_place = engine, machine
        self._configs_dir = configs_dir
        self._yaml = yaml
        self._corrections = Corrections(learnt)
        self._lock = threading.Lock()
        self._dry_run: DryRun | None = None
        self._meta_models: OrderedDict[tuple[object, ...], MetaModel] = OrderedDict()
        self._dry_run_of: OrderedDict[tuple[object, ...], int] = OrderedDict()
        self._program_bytes: int | None = None
        self._turn = threading.Lock()
        self._learning: threading.Thread | None = None
        self._observation: tuple[GenerationRequest, Result] | None = None  # the next, in the background
        self._closed = False
        self._auxiliary_left = (0, 0)  # what the last job has left in memory, as `_Auxiliary.bytes`

    def with_gpu(self) -> MemoryEstimator:
        """Return what plans as if there were a GPU, and knows nothing of one yet."""
        return MemoryEstimator(self._engine, self._configs_dir, None, self._yaml, with_gpu(self._engine.machine))

    def bytes_of_gpu(self, total_bytes: int, settings: Settings) -> int:
        """Return what a job may use of a GPU, or of a machine whose GPU has the main memory, with so much."""
        if shares_main_memory(self._machine.device):
            return max(0, total_bytes - SYSTEM_BYTES)
        return max(0, total_bytes - DRIVER_BYTES - headroom_bytes(settings))

    @property
    def _machine(self) -> Machine:
        return self._machine_in_place or self._engine.machine

    def plan(self, request: GenerationRequest, available_bytes: int | None = None) -> MemoryEstimate:
        """Estimate what the job will need, and whether it is there: `available_bytes`, or else what is free now.

        Raises `FeatherweightError` for a checkpoint that is not there or cannot be used.
        """
        with self._lock:
            case, stages = self._stages(request)
            device = case.plan.device
            weights = sum(sum(sizes.values()) for sizes in case.meta_model.weights(case.plan).values())
            needs: dict[Stage, StageNeed] = {}
            auxiliary, left = _Auxiliary(self._engine, device, case.plan), 0
            for each, item in stages:
                auxiliary.enter(item.stage, request)
                for own in self._needs(each, item, auxiliary.bytes):
                    need, left = own.after(left), own.held_bytes
                    needs[need.stage] = _most(needs.get(need.stage, need), need)
            free = self._available(device, request) if available_bytes is None else available_bytes
            main = None if shares_main_memory(device) else available(_main_memory())
            count = self._corrections.count(_keys(case, Stage.SAMPLE)[0])
            return MemoryEstimate(describe(device), tuple(needs.values()), weights, free, count, main)

    def step_work(self, request: GenerationRequest) -> StepWork:
        """Return what the denoiser computes in a step of the job's first pass, as models of its family are usually
        sampled. Raises what `plan` raises."""
        from modules.models.families.family import GuidanceType

        with self._lock:
            _, stages = self._stages(request)
            each, item = next((each, item) for each, item in stages if item.stage.samples)
            family, unet, scale = each.meta_model.family, each.meta_model.module("unet"), each.meta_model.downscale
            usual = family.denoiser.usual_settings(unet, each.meta_model.info.name)
            steps, cfg_scale = (usual.steps, usual.cfg_scale) if usual else (request.steps, request.cfg_scale)
            is_guided = family.denoiser.guidance(unet) is not GuidanceType.NONE and cfg_scale != 1
            rows = request.batch_size * (2 if is_guided else 1)
            seen = self._with_references(each, item.height_px // scale, item.width_px // scale)
            counted = self._count_unet(each, rows, *seen)
            work = replace(
                counted,
                touched_bytes=counted.touched_bytes + each.meta_model.decoded_bytes(each.plan, "unet"),
                sent_bytes=each.meta_model.moved_bytes(each.plan, "unet"),
            )
            return StepWork(work, steps, item.width_px, item.height_px, each.plan.device, each.plan.compute_dtype)

    def _available(self, device: torch.device, request: GenerationRequest) -> int | None:
        """Return what this process could hold at most on `device`; for a GPU without the headroom for other
        programs."""
        now = self._machine.read_memory(device)
        if now is None or held_of_main_memory(device) is not None:
            return available(device)
        return max(0, now.free + now.reserved - headroom_bytes(request.settings))

    def fits_beside(self, request: GenerationRequest) -> bool:
        """Whether the job can be done while something else that is no model of images, such as a training, keeps all
        the memory that it holds now. False where that is not known, or cannot be estimated."""
        from modules.memory.timeline import read_memory

        device = self._machine.device
        there, now = self._available(device, request), read_memory(device)
        if there is None:
            return False
        with self._lock:
            held = now.allocated or 0
            if shares_main_memory(device):
                held = (now.rss or 0) + (held_of_main_memory(device) or 0) - self._program(device)
        try:
            return self.plan(request, there - max(0, held)).fits
        except FeatherweightError:
            return False

    def _needs(self, case: _Case, item: StageOfJob, auxiliary: tuple[int, int]) -> Iterator[StageNeed]:
        """Yield the need of one stage, with upscaler and face restorer in memory, behind that of looking at images, if
        there are any; nothing if it is not known to need any."""
        stage, predicted, tower = item.stage, self._predicted(case, item), _tower(case, item.stage)
        if tower is not None:  # without the weights of the language model, where those are streamed
            looking, everything = self._held(case, Stage.LOAD), lambda component: True
            own = (tower.resident_bytes(case.plan, everything), tower.resting_bytes(case.plan))
            yield self._need(case, stage, _tower_bytes(case, tower), looking, own, auxiliary)
        if predicted is not None:
            yield self._need(case, stage, predicted, self._held(case, stage), auxiliary)

    def _need(self, case: _Case, stage: Stage, predicted: int, *held: tuple[int, int]) -> StageNeed:
        """Return the need of a stage with these temporaries, and bytes `held` on the device and in main memory."""
        device = case.plan.device
        program, extra = self._program(device), round(predicted * KERNELS_ON_TOP.get(device.type, 0.0))
        on_device, in_main = (sum(each) for each in zip(*held, strict=True))
        needs = on_device + self._corrections.correct(_keys(case, stage), predicted, extra)
        if shares_main_memory(device):  # what both need is there once
            held_bytes = program + in_main + on_device
            needs += program + in_main + (_copied_bytes(case) if stage is Stage.LOAD else 0)
            return StageNeed(stage, needs, needs, held_bytes)
        main = self._corrections.correct((_main_key(device, stage),), _main_bytes(case, stage, predicted))
        return StageNeed(stage, needs, program + in_main + main, on_device)

    def _held(self, case: _Case, stage: Stage) -> tuple[int, int]:
        """Bytes of weights, of models that are set aside too: on the device that computes, and in main memory."""
        on_device, in_main = self._engine.kept_bytes(case.meta_model.info)
        on_device += case.meta_model.resident_bytes(case.plan, partial(computes, stage))
        return on_device, in_main + case.meta_model.resting_bytes(case.plan)

    def learn(self, request: GenerationRequest, result: Result) -> None:
        """Compare a finished job with its plan. Jobs that were interrupted, had to recover or used several checkpoints
        teach nothing."""
        record = result.memory
        if record is None or result.interrupted or "Memory recovery" in result.info.extra_params:
            return
        with self._lock:
            case, stages = self._stages(request)
            if any(other is not case for other, _ in stages):
                return
            device = case.plan.device
            on_cpu = device.type == "cpu"
            held = self._held_in(case, record)
            in_main = {stage: on_device if on_cpu else main for stage, (on_device, main) in held.items()}
            program = self._learn_program(record, in_main, device)
            predictions: dict[Stage, int] = {}
            for _, item in stages:
                predictions[item.stage] = max(predictions.get(item.stage, 0), self._predicted(case, item) or 0)
            left = 0  # what the stage before had of weights
            for stage, predicted in predictions.items():
                peak = record.peak(stage)
                measured = peak.rss if on_cpu else peak.allocated
                if stage is Stage.LOAD or measured is None or _tower(case, stage) is not None:
                    continue  # images that were seen before are not looked at again
                own = held[stage][0] + (program if on_cpu else 0)
                before, left = left, own
                if before > own and measured < before * JUST_LEFT:
                    continue  # the peak is the stage before's
                if stage in (Stage.SAMPLE, Stage.SAMPLE_HIRES) and result.replayed_calls:
                    continue  # the allocator does not see what they take
                on_top = max(0, measured - own)
                self._corrections.learn(_keys(case, stage), predicted, on_top)
                if not on_cpu and peak.rss is not None:
                    main = max(0, peak.rss - program - in_main[stage])
                    self._corrections.learn((_main_key(device, stage),), _main_bytes(case, stage, predicted), main)

    def _held_in(self, case: _Case, record: MemoryRecord) -> dict[str, tuple[int, int]]:
        """Return what was held in each stage of a finished job, as `_held` does. Upscaler and face restorer: from the
        stage that uses them on what is in memory now, until then what the job before had left."""
        now = _Auxiliary(self._engine, case.plan.device, case.plan).bytes
        before = (
            self._auxiliary_left if self._auxiliary_left[0] <= now[0] and self._auxiliary_left[1] <= now[1] else now
        )
        self._auxiliary_left = now
        names = [item.stage for item in record.stages]
        first = next((place for place, name in enumerate(names) if name in AUXILIARY_STAGES), len(names))
        after = set(names[first:])
        found = {}
        for stage in record.summary():
            on_device, in_main = self._held(case, Stage(stage))
            own = now if stage in after else before
            found[str(stage)] = (on_device + own[0], in_main + own[1])
        return found

    def learn_later(self, request: GenerationRequest, result: Result) -> None:
        """Learn from a job in the background, so that the next one need not wait; errors are logged. If jobs come
        faster than they can be learned from, the latest counts."""
        with self._turn:
            self._observation = (request, result)
            if self._learning is None and not self._closed:
                self._learning = start_loop("featherweight-plan", self._learn_quietly)

    def close(self, timeout_s: float = 30.0) -> None:
        """Learn nothing more; waits for what is being learned, two observations at most."""
        with self._turn:
            self._closed = True
            learning = self._learning
        if learning is not None:
            learning.join(timeout_s)

    def _learn_quietly(self) -> bool:
        with self._turn:
            observed, self._observation = self._observation, None
            if observed is None:
                self._learning = None
                return False
        try:
            self.learn(*observed)
        except FeatherweightError as error:
            log.warning("Nothing was learnt from a job: %s", error)
        return True

    def _learn_program(self, record: MemoryRecord, held: dict[str, int], device: torch.device) -> int:
        """Return what the process holds of main memory besides weights (`held`, by stage), as it was before its first
        job: later ones find memory that earlier ones have left to the heap, and use it again."""
        first = next((item for item in record.stages if item.stage != Stage.LOAD), None)
        if self._program_bytes is None and first is not None and first.begin.rss is not None:
            self._program_bytes = max(0, first.begin.rss - held[first.stage])
            self._corrections.learn((_program_key(device),), 0, self._program_bytes)
        return self._program(device)

    def _program(self, device: torch.device) -> int:
        if self._program_bytes is not None:
            return self._program_bytes
        return self._corrections.correct((_program_key(device),), 0, PROGRAM_BYTES)

    # -- what is to be estimated by a dry run --------------------------------------------------------------------------

    def _stages(self, request: GenerationRequest) -> tuple[_Case, list[tuple[_Case, StageOfJob]]]:
        """The base checkpoint's case, and each stage of the job with the case of the checkpoint that is in use."""
        base = self._case(request, wanted_checkpoint(request, self._engine.catalogue).name)
        cases, found = {Role.BASE: base}, []
        multiple_px = base.meta_model.size_multiple_px
        for item in stages_of(request.cut_to(multiple_px), multiple_px):
            if item.role not in cases:
                case = self._case(request, checkpoint_of(request, item.role))
                is_base = case.meta_model.info.path == base.meta_model.info.path
                cases[item.role] = base if is_base else case
            found.append((cases[item.role], item))
        return base, found

    def _case(self, request: GenerationRequest, checkpoint: str | None) -> _Case:
        from modules.processing.engine.attention import choose_attention

        settings, machine = request.settings, self._machine
        info = self._engine.catalogue.default(checkpoint)
        options = PrecisionOptions.of(settings)
        info = replace(info, modules=self._engine.modules.paths(options.modules))
        meta_model = self._meta_model(info, optional_encoders(settings))
        plan = resolve(self._engine.fitting(info, options), machine, meta_model.family)
        choice = choose_attention(
            settings.optimizations.cross_attention_optimization,
            settings.stable_diffusion.upcast_attn,
            machine.attention,
            plan.device,
            plan.compute_dtype,
        )
        return _Case(meta_model, plan, choice.name, settings.stable_diffusion.upcast_attn, request)

    def _meta_model(self, info: CheckpointInfo, optional: frozenset[str]) -> MetaModel:
        from modules.models.loading.meta_model import build_meta_model

        key = (info.path, info.mtime_ns, info.modules, optional)
        if key not in self._meta_models:
            self._meta_models[key] = build_meta_model(info, self._configs_dir, self._yaml, optional)
            while len(self._meta_models) > MAX_META_MODELS:
                self._meta_models.popitem(last=False)
        self._meta_models.move_to_end(key)
        return self._meta_models[key]

    def _predicted(self, case: _Case, item: StageOfJob) -> int | None:
        """Bytes of temporaries of a stage; None where nothing tells."""
        request, scale, stage = case.request, case.meta_model.downscale, item.stage
        latent = (item.height_px // scale, item.width_px // scale)
        adapters = self._adapter_bytes(request)
        if stage is Stage.LOAD:
            return case.meta_model.loading_bytes(case.plan)
        if stage is Stage.ADAPTERS:
            return adapters or None
        if stage is Stage.ENCODE_TEXT:
            return self._text_bytes(case)
        if stage.samples:
            seen = self._with_references(case, *latent)
            run = self._denoise_bytes(case, _rows(request), *seen)
            unet = adapters + case.meta_model.scratch_bytes(case.plan, "unet") + run
            return max(unet, self._preview_bytes(case, *latent))
        if stage is Stage.ENCODE_IMAGE:
            return self._encoder_bytes(case, *latent)
        if stage is Stage.DECODE:
            return self._decoder_bytes(case, *latent)
        if stage is Stage.ENLARGE:
            return self._enlarging_bytes(request, item)
        if stage is Stage.FACES:
            return RESTORER_MAPS * 4 * FACE_PX * FACE_PX
        if stage is Stage.SAVE:
            return 3 * item.width_px * item.height_px * 3 * 4  # the decoded image, and two on the way to bytes
        return None  # hashing holds nothing

    def _with_references(self, case: _Case, height: int, width: int) -> tuple[int, int]:
        """The size in latents of an image of as many tokens as the denoiser sees: those of the image that it makes, of
        the one that this starts from, and of each that it is shown besides."""
        start, model = case.request.start, case.meta_model
        denoiser = model.family.denoiser
        is_from_image = isinstance(start, FromImage) and not denoiser.edits_by_adapter
        if not (is_from_image or start.references):
            return height, width
        if not denoiser.takes_references(model.module("unet"), model.info.name):
            return height, width
        if denoiser.edits_by_adapter and self._are_fitted(case.request):
            return height * (1 + len(start.references)), width
        pixels = sum(math.prod(reference_size(*source.image.size)) for source in start.references)
        rows = (height if is_from_image else 0) + -(-pixels // (model.downscale**2 * width))
        multiple = model.family.latents.multiple
        return height + -(-rows // multiple) * multiple, width

    def _enlarging_bytes(self, request: GenerationRequest, item: StageOfJob) -> int | None:
        """Return the bytes of an upscaler file's run: the maps of one tile and the images, in float32; None for
        upscalers without a file."""
        info = self._engine.upscalers.catalogue.find(upscaler_of(request))
        if info is None:
            return None
        width, height = -(-item.width_px // info.scale), -(-item.height_px // info.scale)
        tile = info.type.tiling(request.settings).size
        pixels = min(width, tile or width) * min(height, tile or height) * info.scale**2
        return 4 * (UPSCALER_MAPS * pixels + 2 * 3 * item.width_px * item.height_px)

    def _are_fitted(self, request: GenerationRequest) -> bool:
        """Whether references are fitted into the image that is made, by a model that edits by adapters."""
        from modules.models.families.denoiser_context import REFERENCE

        tags = prepare_text(request.prompt, request.settings).tags
        return self._engine.adapters.files.references_shown_as(tags, request.settings) == REFERENCE

    def _adapter_bytes(self, request: GenerationRequest) -> int:
        """The files of the adapters that the prompt names: they are held in main memory and put on the device."""
        tags = prepare_text(request.prompt, request.settings).tags
        return sum(2 * info.size_bytes for info in self._engine.adapters.files.named_in(tags))

    @staticmethod
    def _text_bytes(case: _Case) -> int:
        """The widest layer of a text encoder over the tokens of a short prompt, which is little, or over those of the
        images that it sees, and the largest weight that is decoded."""
        from modules.models.text_encoders.vision import MERGED

        model, tower = case.meta_model, _tower(case, Stage.ENCODE_TEXT)
        tokens = case.request.batch_size * model.family.texts.tokens
        if tower is not None:  # texts that see are read one by one
            tokens = model.family.texts.tokens + _shown(case)[0] * _patches(case, tower) // MERGED**2
        encoders = [item.name for item in model.components if item.name.startswith("text_encoder")]
        scratch = max((model.scratch_bytes(case.plan, name) for name in encoders), default=0)
        return 4 * tokens * _widest(model) * case.plan.compute_dtype.itemsize + scratch

    def _denoise_bytes(self, case: _Case, rows: int, height: int, width: int) -> int:
        key = ("denoise", *_model_key(case), case.plan.offload_dtype, rows, height, width, _split(case))
        return self._remember(key, lambda: self._dry_run_unet(case, rows, height, width))

    def _preview_bytes(self, case: _Case, height: int, width: int) -> int:
        """Return the bytes of a preview between two steps; 0 if previews are made from the latents directly."""
        settings = case.request.settings
        method = settings.previews.show_progress_type
        if not settings.previews.live_previews_enable:
            return 0
        if method == TINY:
            is_there = (
                self._engine.tiny_vaes.find(DECODER, case.meta_model.info, case.meta_model.family.latents.tiny_vae)
                is not None
            )
            return self._tiny_bytes(case, height, width, DECODER) if is_there else 0
        may_be_full = case.plan.streaming is None or settings.previews.live_preview_allow_lowvram_full
        return self._vae_bytes(case, height, width) if method == FULL and may_be_full else 0

    def _decoder_bytes(self, case: _Case, height: int, width: int) -> int:
        is_tiny = case.request.settings.vae.sd_vae_decode_method == TINY
        return self._tiny_bytes(case, height, width, DECODER) if is_tiny else self._vae_bytes(case, height, width)

    def _encoder_bytes(self, case: _Case, height: int, width: int) -> int:
        is_tiny = case.request.settings.vae.sd_vae_encode_method == TINY
        if is_tiny:
            return self._tiny_bytes(case, height, width, ENCODER)
        return self._vae_bytes(case, height, width, encode=True)

    def _tiny_bytes(self, case: _Case, height: int, width: int, half: str) -> int:
        """Return the bytes of a tiny autoencoder, with its weights, which are not among the model's."""
        path = self._engine.tiny_vaes.get(half, case.meta_model.info, case.meta_model.family.latents.tiny_vae)
        tile = case.request.settings.vae.vae_tile_size // case.meta_model.downscale
        key = ("tiny", path, path.stat().st_mtime_ns, case.plan.device, case.plan.vae_dtype, height, width, tile, half)
        run = self._remember(key, lambda: self._dry_run_tiny(case, path, height, width, tile, half))
        return path.stat().st_size + run

    def _vae_bytes(self, case: _Case, height: int, width: int, encode: bool = False) -> int:
        tile_px = _tile_px(case)
        key = ("vae", *_model_key(case), case.plan.vae_dtype, height, width, tile_px, encode)
        return self._remember(key, lambda: self._dry_run_vae(case, height, width, tile_px, encode))

    def _remember(self, key: tuple[object, ...], run: Callable[[], int]) -> int:
        if key not in self._dry_run_of:
            self._dry_run_of[key] = run()
            while len(self._dry_run_of) > MAX_DRY_RUNS:
                self._dry_run_of.popitem(last=False)
        return self._dry_run_of[key]

    # -- dry runs ------------------------------------------------------------------------------------------------

    def _denoiser_call(
        self, case: _Case, shape: tuple[int, int, int], dtype: torch.dtype, on_meta: bool
    ) -> tuple[MetaRun | None, Callable[[], torch.Tensor]]:
        """Place the denoiser for a run on the meta device (which is returned), or for the dry run that is kept, and
        give a call of it with inputs of `shape` (rows, height, width)."""
        from modules.memory.dry_run import MetaRun

        unet, device, family = case.meta_model.module("unet"), _run_on(case), case.meta_model.family
        meta_run, dry_run = MetaRun(case.plan.device) if on_meta else None, self._kept_dry_run()
        if meta_run is not None:
            meta_run.place(unet, dtype)
        else:
            dry_run.place(unet, device, dtype)

        def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            if meta_run is not None:
                return meta_run.tensor(*shape, dtype=dtype)
            return dry_run.tensor(*shape, dtype=dtype, device=device)

        inputs = family.example_inputs(unet, shape, dtype, make)
        return meta_run, lambda: family.denoiser.run(unet, inputs)

    def _dry_run_unet(self, case: _Case, rows: int, height: int, width: int) -> int:
        from modules.models.loading.meta_model import few_blocks
        from modules.processing.engine.feed_forward import using_split_feed_forward

        unet, denoiser = case.meta_model.module("unet"), case.meta_model.family.denoiser
        on_meta = denoiser.runs_on_meta and case.attention in OUTPUT_ONLY and not _autocasts(case.plan)
        meta_run, call = self._denoiser_call(case, (rows, height, width), case.plan.offload_dtype, on_meta)

        def run() -> object:
            with autocast(_run_on(case), case.plan.compute_dtype, enabled=_autocasts(case.plan)):
                return call().float()

        split = using_split_feed_forward(unet, _split(case), few_pieces=True)
        with few_blocks(unet, denoiser.blocks.stacked), _attending(case, unet), split:
            if meta_run is not None:
                return meta_run.measure(run)
            return self._measured(case, run)

    def _count_unet(self, case: _Case, rows: int, height: int, width: int) -> Work:
        """Count what a call of the denoiser with all of its blocks computes."""
        from modules.memory.work import WorkCounter
        from modules.processing.engine.attention import using_attention

        counter, on_meta = WorkCounter(), case.meta_model.family.denoiser.runs_on_meta
        meta_run, call = self._denoiser_call(case, (rows, height, width), case.plan.compute_dtype, on_meta)
        with using_attention((case.meta_model.module("unet"),), counter.attend):
            (meta_run or self._kept_dry_run()).observe(call, counter)
        return counter.work

    def _dry_run_vae(self, case: _Case, height: int, width: int, tile_px: int, encode: bool) -> int:
        dry_run, device, dtype = self._kept_dry_run(), _run_on(case), case.plan.vae_dtype
        vae: Any = case.meta_model.module("vae")
        dry_run.place(vae, device, dtype)
        scale, autoencoder = case.meta_model.downscale, case.meta_model.architecture.autoencoder
        own = dry_run.tensor(1, *autoencoder.own_shape(height, width), dtype=dtype, device=device)
        image = dry_run.tensor(1, 3, height * scale, width * scale, device=device)

        def decode() -> object:
            return autoencoder.decode(vae, own, tile_px, few_tiles=True).float()

        def encode_image() -> object:
            return autoencoder.encode(vae, image.to(dtype), tile_px, few_tiles=True)

        with _attending(case, vae):
            return self._measured(case, encode_image if encode else decode)

    def _dry_run_tiny(self, case: _Case, path: Path, height: int, width: int, tile: int, half: str) -> int:
        from modules.models.autoencoders.tiny_vae import build_meta_tiny

        dry_run, device, dtype = self._kept_dry_run(), _run_on(case), case.plan.vae_dtype
        scale = case.meta_model.downscale
        channels = case.meta_model.architecture.autoencoder.channels
        tiny = build_meta_tiny(path, half, channels, scale)
        dry_run.place(tiny.module, device, dtype)
        shape = (1, channels, height, width) if half == DECODER else (1, 3, height * scale, width * scale)
        x = dry_run.tensor(*shape, dtype=dtype, device=device)
        return self._measured(case, lambda: tiny.compute(x, tile).float())

    def _measured(self, case: _Case, run: Callable[[], object]) -> int:
        """Measure the most bytes that `run` has on the device at once."""
        device = case.plan.device.type
        cpu_is = device if _run_on(case).type == "cpu" else "cpu"
        return self._kept_dry_run().measure(run, cpu_is).get(device, 0)

    def _kept_dry_run(self) -> DryRun:
        if self._dry_run is None:
            from modules.memory.dry_run import DryRun

            self._dry_run = DryRun()
        return self._dry_run


def _run_on(case: _Case) -> torch.device:
    """Return where the tensors of a dry run are: on the CPU, which stands for a GPU that is not here."""
    device = case.plan.device
    return device if is_available(device.type) else _main_memory()


@contextmanager
def _attending(case: _Case, module: Any) -> Any:
    """Attention as the job will compute it; kernels that never hold the scores only make their output."""
    from modules.memory.attention import ATTENTIONS, AttentionOptions, upcast
    from modules.processing.engine.attention import using_attention

    attention: Attention = _output_only
    if case.attention not in OUTPUT_ONLY:
        attention = ATTENTIONS.get(case.attention)(AttentionOptions())
    beside = nullcontext() if case.plan.device.type == "cpu" else _fused_attention()()
    with using_attention((module,), upcast(attention) if case.upcast else attention), beside:
        yield


@cache
def _fused_attention() -> type[AbstractContextManager[Any]]:
    """While open, PyTorch's attention makes its output alone, as the kernels of GPUs do: what has a processor of its
    own calls it, and in a dry run PyTorch would hold all scores."""
    from torch.nn import functional as F
    from torch.overrides import TorchFunctionMode

    class FusedAttention(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is F.scaled_dot_product_attention:
                named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
                return _output_only(named["query"], named["key"], named["value"])
            return func(*args, **(kwargs or {}))

    return FusedAttention


def _output_only(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


class _Auxiliary:
    """Weights of upscaler, face restorer and extensions' models while a job goes through its stages. `bytes`: on the
    device that computes, and in main memory where that is another one."""

    def __init__(self, engine: Engine, device: torch.device, plan: PrecisionPlan) -> None:
        self._engine, self._device = engine, device
        self._upscaler = self._restorer = ""
        self._plan = plan
        here = engine.auxiliaries.here
        self._beside = sum(each.stored_bytes for each in here), sum(each.offloaded_bytes for each in here)

    @property
    def bytes(self) -> tuple[int, int]:
        streaming = self._plan.streaming
        on_device, in_main = self._beside[0], 0 if streaming is not None and streaming.on_disk else self._beside[1]
        found = (
            self._engine.upscalers.weights_bytes(self._upscaler),
            self._engine.faces.weights_bytes(self._restorer),
        )
        for count, device in found:
            if device is not None and device.type == self._device.type:
                on_device += count
            else:
                in_main += count
        return on_device, in_main

    def enter(self, stage: Stage, request: GenerationRequest) -> None:
        """A stage begins; what it uses stays."""
        if stage.samples:
            at_once = _at_once(self._plan)
            self._beside = self._engine.auxiliaries.bytes_for(request, _bits(self._plan), at_once)
        elif stage is Stage.ENLARGE:
            self._upscaler = upscaler_of(request)
        elif stage is Stage.FACES:
            self._restorer = request.settings.face_restoration.face_restoration_model


def _at_once(plan: PrecisionPlan) -> int | None:
    """Return what of a model that is streamed as this plan says is on the device at once: two groups at most. None for
    one that is there as a whole."""
    from modules.memory.streaming.groups import MAX_BLOCK_BYTES, Level

    streaming = plan.streaming
    return None if streaming is None or streaming.level is Level.COMPONENT else 2 * MAX_BLOCK_BYTES


def _bits(plan: PrecisionPlan) -> float:
    """Per weight of a denoiser."""
    storage = plan.unet_storage
    return 8.0 * plan.offload_dtype.itemsize if storage is None else FORMAT_SPECS.get(storage).bits


def _model_key(case: _Case) -> tuple[object, ...]:
    return case.meta_model.info.path, case.meta_model.info.mtime_ns, case.plan.device, case.attention, case.upcast


def _tile_px(case: _Case) -> int:
    from modules.models.autoencoders.running import tile_side_px

    return tile_side_px(case.plan.device, case.plan.vae_dtype, case.request.settings.vae.vae_tile_size)


def _autocasts(plan: PrecisionPlan) -> bool:
    return plan.mode.value == "autocast"


def _tower(case: _Case, stage: Stage) -> MetaModel | None:
    """Return the vision tower, as a model of its own, where it looks at images in this stage."""
    return case.meta_model.tower if stage is Stage.ENCODE_TEXT and _shown(case)[0] else None


def _shown(case: _Case) -> tuple[int, int]:
    """Return how many images the text encoder sees with a text, and the pixels of each."""
    start, model = case.request.start, case.meta_model
    count = len(start.references) + (isinstance(start, FromImage) and not model.family.denoiser.edits_by_adapter)
    if not (count and model.family.denoiser.takes_references(model.module("unet"), model.info.name)):
        return 0, 0
    return count, model.family.texts.shown_pixels(model.info.name, count)


def _patches(case: _Case, tower: Any) -> int:
    return int(_shown(case)[1] // tower.module("text_encoder").config.patch_size ** 2)


def _tower_bytes(case: _Case, tower: MetaModel) -> int:
    """Return what looking at one image takes: as `_text_bytes`, over its patches."""
    run = 4 * _patches(case, tower) * _widest(tower) * case.plan.compute_dtype.itemsize
    return run + tower.scratch_bytes(case.plan, "text_encoder")


def _widest(model: MetaModel) -> int:
    """Return the width of the widest linear layer of a model's text encoders."""
    from torch import nn

    encoders = (item.module for item in model.components if item.name.startswith("text_encoder"))
    layers = (layer for module in encoders for layer in module.modules() if isinstance(layer, nn.Linear))
    return max((layer.out_features for layer in layers), default=0)


def _keys(case: _Case, stage: Stage) -> tuple[str, ...]:
    """Under which a stage's runs are remembered, the most similar first."""
    plan = case.plan
    dtype = plan.vae_dtype if stage is Stage.DECODE else plan.compute_dtype
    shared = "/".join((describe(plan.device), str(dtype).removeprefix("torch."), stage))
    if stage is Stage.DECODE:
        own = "tiled" if _tile_px(case) else "whole"
        if case.request.settings.vae.sd_vae_decode_method == TINY:
            own, shared = f"{own}/tiny", f"{shared}/tiny"
    else:
        streaming = plan.streaming.level.value if plan.streaming is not None else "resident"
        own = f"{plan.unet_storage or 'plain'}/{streaming}"
        if stage.samples and _split(case) != "Off":
            own, shared = f"{own}/split {_split(case)}", f"{shared}/split {_split(case)}"
        if stage in AUXILIARY_STAGES:
            settings = case.request.settings
            is_faces = stage is Stage.FACES
            name = settings.face_restoration.face_restoration_model if is_faces else upscaler_of(case.request)
            own, shared = f"{own}/{name}", f"{shared}/{name}"
    return f"{shared}/{case.meta_model.family.label}/{case.attention}/{own}", shared


def _rows(request: GenerationRequest) -> int:
    """Latents in one call of the denoiser: with those of the negative prompts, unless these do not count."""
    is_without = request.cfg_scale == 1.0 and not SAMPLERS.get(request.sampler).needs_uncond
    is_apart = is_without or not request.settings.optimizations.batch_cond_uncond
    return request.batch_size * (1 if is_apart else 2)


def _split(case: _Case) -> str:
    return case.request.settings.optimizations.split_feed_forward


def _most(first: StageNeed, second: StageNeed) -> StageNeed:
    """Return the larger need of one stage, with one model and with another."""
    main = max(first.main_bytes, second.main_bytes)
    larger = max(first, second, key=lambda need: need.needs_bytes)
    return StageNeed(first.stage, larger.needs_bytes, main, larger.held_bytes)


def _main_memory() -> torch.device:
    import torch

    return torch.device("cpu")


def _main_bytes(case: _Case, stage: Stage, predicted: int) -> int:
    """Return what a stage takes of main memory if a GPU computes; loading takes one tensor after the other."""
    if stage is Stage.LOAD:
        return case.meta_model.max_tensor_bytes
    return predicted if stage in IN_MAIN_MEMORY else 0


def _copied_bytes(case: _Case) -> int:
    """Return what a tensor takes in main memory on its way to a GPU that shares it: nothing where that copies from the
    pages of the file."""
    if case.plan.device.type == "cpu" or (case.plan.map_files and not case.plan.is_low_precision):
        return 0
    return case.meta_model.max_tensor_bytes


def _main_key(device: torch.device, stage: Stage) -> str:
    return f"{describe(device)}/main memory/{stage}"


def _program_key(device: torch.device) -> str:
    return f"{describe(device)}/program"


def available(device: torch.device) -> int | None:
    """Bytes that this process could hold at most on `device`: what it holds now and what is free. None: not known."""
    from modules.memory.timeline import read_memory
    from modules.system.devices import memory_info

    now = read_memory(device)
    if shares_main_memory(device):
        free = memory_info(device)["ram"].get("free")
        if not isinstance(free, int) or now.rss is None:
            return None
        left = container_bytes()
        return now.rss + (held_of_main_memory(device) or 0) + (free if left is None else min(free, left))
    system = memory_info(device)["cuda"].get("system")
    return system["free"] + (now.reserved or 0) if isinstance(system, dict) else None


def container_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return what a container still allows its processes (cgroup version 2); None if there is no limit."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        return None if limit == "max" else max(0, int(limit) - used)
    except (OSError, ValueError):
        return None
