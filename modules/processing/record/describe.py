"""The infotext fields of a job: everything that another run needs to make the same image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.images.infotext import FIELD_ORDER, format_infotext, order_fields
from modules.memory.formats.format import dtype_name
from modules.models.autoencoders.files import VaeInfo
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.processing.record.setting_fields import SettingsCase, setting_fields
from modules.processing.request.batch import Batch
from modules.processing.request.parameters import infotext_fields, rows_of
from modules.processing.request.pass_settings import Used, eta_of
from modules.processing.request.request import HIRES_ROWS, GenerationRequest, HiresRequest
from modules.sampling.catalog import SAMPLERS, SCHEDULES, effective_schedule
from modules.settings.sections.optimizations import OptimizationSettings
from modules.version import PROGRAM_VERSION

RECORDED_MODES = {
    ComputeMode.MANUAL: "Manual cast",
    ComputeMode.AUTOCAST: "Autocast",
    ComputeMode.FP8_MATMUL: "FP8 matmul",
    ComputeMode.INT8_MATMUL: "int8 matmul",
}
"""As the setting `compute_mode` calls them. Always said, because Automatic may mean another one on another device."""


@dataclass
class Facts:
    """Facts that became known while the job ran and belong into the infotext."""

    used: Used = Used.NOTHING
    extra: dict[str, object] = field(default_factory=dict)


def schedule_label(sampler: str, scheduler: str) -> str:
    """The schedule type that an image records: Automatic is resolved where the sampler has a default."""
    spec, schedule = SAMPLERS.get(sampler), SCHEDULES.get(scheduler)
    if spec.default_scheduler is not None:
        return effective_schedule(spec, schedule).label
    return schedule.label


def main_fields(
    request: GenerationRequest,
    checkpoint: CheckpointInfo,
    size_px: tuple[int, int],
    seed: int,
    subseed: int,
    plan: PrecisionPlan | None = None,
    vae: VaeInfo | None = None,
    used: Used = Used.NOTHING,
    found: Sequence[Path] = (),
) -> dict[str, object]:
    """The fields that every image has, in any order; None where one does not apply. `found`: files with parts of the
    model that were not chosen; they are recorded behind those that were."""
    settings = request.settings
    spec = SAMPLERS.get(request.sampler)
    clip_skip = settings.stable_diffusion.CLIP_stop_at_last_layers
    delta = settings.sampler.eta_noise_seed_delta
    merge = request.token_merging_ratio
    merge_hires = OptimizationSettings.token_merging_ratio_hr.as_set(settings)
    has_merged = Used.MERGED_TOKENS in used
    source = settings.stable_diffusion.randn_source
    faces = settings.face_restoration
    parts = dict.fromkeys((*checkpoint.modules, *found))
    return {
        **{key: value for key, value in own_fields(request).items() if key in FIELD_ORDER},
        "Distilled CFG Scale": request.distilled_cfg_scale if Used.DISTILLED_GUIDANCE in used else None,
        "Seed": seed,
        "Variation seed": subseed if request.subseed_strength > 0 else None,
        "Sampler": spec.name,
        "Schedule type": schedule_label(request.sampler, request.scheduler),
        "Face restoration": faces.face_restoration_model if faces.face_restoration else None,
        "Size": f"{size_px[0]}x{size_px[1]}",
        "Model hash": checkpoint.shorthash if settings.infotext.add_model_hash_to_info else None,
        "Model": checkpoint.model_name if settings.infotext.add_model_name_to_info else None,
        "VAE hash": vae.shorthash if vae and settings.infotext.add_vae_hash_to_info else None,
        "VAE": vae.name if vae and settings.infotext.add_vae_name_to_info else None,
        **{f"Module {number}": path.stem for number, path in enumerate(parts, 1)},
        **(precision_fields(plan) if plan else {}),
        "Clip skip": clip_skip if clip_skip > 1 else None,
        "ENSD": delta if delta and spec.uses_ensd and eta_of(spec, settings) != 0 else None,
        "Token merging ratio": merge if has_merged and merge else None,
        "Token merging ratio hr": merge_hires if has_merged and request.hires and merge_hires else None,
        "RNG": source if source != "GPU" else None,
        "Version": PROGRAM_VERSION if settings.infotext.add_version_to_infotext else None,
        "User": request.user if request.user and settings.infotext.add_user_name_to_info else None,
    }


def own_fields(request: GenerationRequest) -> dict[str, object]:
    """Return what the request's own parameters record, those of the second pass last. Numbers are as given."""
    fields = infotext_fields(request, rows_of(type(request)))
    if request.hires:
        fields |= _hires_names(request, request.hires) | infotext_fields(request.hires, HIRES_ROWS)
    return fields


def precision_fields(plan: PrecisionPlan) -> dict[str, object]:
    """How the weights were stored and computed; nothing for a plan that is neither fp8 nor chosen."""
    fields: dict[str, object] = {}
    if plan.budget_bytes is not None:
        fields["Weights budget"] = plan.budget_bytes / 1e9
    elif plan.is_low_precision:
        fields["FP8 weight"] = plan.fp8_options
        fields["Cache FP16 weight for LoRA"] = plan.cache_fp16_weight
        fields["FP8 format"] = plan.unet_storage
    if plan.is_low_precision:
        if plan.extra_skip:
            fields["FP8 skip"] = "; ".join(plan.extra_skip)
        if plan.text_storage is None:
            fields["FP8 text encoder"] = False
    if plan.is_low_precision or plan.dtype_is_chosen:
        fields["Compute dtype"] = dtype_name(plan.compute_dtype)
    if plan.mode in RECORDED_MODES:
        fields["Compute mode"] = RECORDED_MODES[plan.mode]
    return fields


def extra_fields(request: GenerationRequest, prompt: str, negative_prompt: str, facts: Facts) -> dict[str, object]:
    """Everything else, only where it matters: what differs from a default and was used."""
    fields = {key: value for key, value in own_fields(request).items() if key not in FIELD_ORDER}
    if Used.DISTILLED_GUIDANCE in facts.used and request.hires and request.hires.distilled_cfg_scale > 0:
        fields["Hires Distilled CFG Scale"] = request.hires.distilled_cfg_scale
    fields |= setting_fields(SettingsCase(request, (prompt, negative_prompt), facts.used))
    return fields | facts.extra


def infotext(prompt: str, negative_prompt: str, main: Mapping[str, object], extra: Mapping[str, object]) -> str:
    """The whole infotext, its fields in the reference UI's order."""
    return format_infotext(prompt, negative_prompt, order_fields({**main, **extra}))


def of_image(request: GenerationRequest, batch: Batch, index: int) -> GenerationRequest:
    """The request with the texts of one image where hooks gave its second pass others than the request has."""
    hires = request.hires
    if hires is None:
        return request
    own = batch.hires_prompts[index], batch.hires_negatives[index]
    if own == (hires.prompt, hires.negative_prompt):
        return request
    return replace(
        request,
        prompt=batch.prompts[index].shown,
        negative_prompt=batch.negatives[index].shown,
        hires=replace(hires, prompt=own[0], negative_prompt=own[1]),
    )


def _hires_names(request: GenerationRequest, hires: HiresRequest) -> dict[str, object]:
    """Names and texts of the second pass that differ from the first one's."""
    fields: dict[str, object] = {}
    if hires.sampler and SAMPLERS.canonical(hires.sampler) != SAMPLERS.canonical(request.sampler):
        fields["Hires sampler"] = SAMPLERS.canonical(hires.sampler)
    if hires.prompt and hires.prompt != request.prompt:
        fields["Hires prompt"] = hires.prompt
    if hires.negative_prompt and hires.negative_prompt != request.negative_prompt:
        fields["Hires negative prompt"] = hires.negative_prompt
    if hires.scheduler and SCHEDULES.canonical(hires.scheduler) != SCHEDULES.canonical(request.scheduler):
        fields["Hires schedule type"] = SCHEDULES.get(hires.scheduler).label
    return fields
