"""The settings that an image was made with, as infotext fields.

A setting whose row names a field and says that it affects images is recorded where it differs from its default.
`HEARD` has those that change an image only together with something else, and `OF_THE_RUN` those that the run itself
records, with what it made of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from modules.processing.request.pass_settings import Used
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage
from modules.processing.request.stages import encodes_images
from modules.prompting.schedule import parse_schedule
from modules.sampling.catalog import SAMPLERS, SCHEDULES, EtaSource, SamplerSpec, ScheduleSpec, effective_schedule
from modules.settings.definitions import PROGRAM_SETTINGS
from modules.settings.sections.optimizations import CompatibilitySettings as Compatibility
from modules.settings.sections.optimizations import OptimizationSettings as Optimizations
from modules.settings.sections.samplers import SamplerSettings as Sampling
from modules.settings.sections.stable_diffusion import Img2ImgSettings as Img2Img
from modules.settings.sections.stable_diffusion import Sd3Settings, StableDiffusionSettings, VaeSettings
from modules.settings.setting import Setting
from modules.settings.values import Settings


@dataclass(frozen=True)
class SettingsCase:
    """The facts that decide whether a setting had an effect: the request, its prompt and negative prompt, and what was
    used."""

    request: GenerationRequest
    texts: tuple[str, str]
    used: Used = Used.NOTHING

    @property
    def settings(self) -> Settings:
        """The settings of the request."""
        return self.request.settings

    @property
    def spec(self) -> SamplerSpec:
        """The sampler."""
        return SAMPLERS.get(self.request.sampler)

    @property
    def schedule(self) -> ScheduleSpec | None:
        """The schedule type in effect; None: the sampler ignores it."""
        spec = self.spec
        return None if spec.ignores_scheduler else effective_schedule(spec, SCHEDULES.get(self.request.scheduler))

    @property
    def is_from_image(self) -> bool:
        """Whether it is img2img."""
        return isinstance(self.request.start, FromImage)

    def has_other_timelines(self) -> bool:
        """Whether the old rules of prompt editing mean another schedule of these prompts."""
        steps = self.request.steps
        return any(parse_schedule(text, steps, None, True) != parse_schedule(text, steps, None) for text in self.texts)


Heard = Callable[[SettingsCase], bool]


def _takes(key: str) -> Heard:
    return lambda case: key in case.spec.takes


def _has_sigmas(case: SettingsCase) -> bool:
    return case.schedule is not None and case.schedule.target is not None


def _is_beta(case: SettingsCase) -> bool:
    return case.schedule is not None and case.schedule.name == "beta"


def _of_uni_pc(case: SettingsCase) -> bool:
    return case.spec.name == "UniPC"


def _of_img2img(case: SettingsCase) -> bool:
    return case.is_from_image


HEARD: Mapping[str, Heard] = {
    StableDiffusionSettings.emphasis.key: lambda case: any("(" in text or "[" in text for text in case.texts),
    Compatibility.hires_fix_use_firstpass_conds.key: lambda case: bool(
        case.request.hires and case.request.hires.prompt
    ),
    Compatibility.use_old_scheduling.key: SettingsCase.has_other_timelines,
    Optimizations.s_min_uncond.key: lambda case: Used.LATE_WITHOUT_NEGATIVE in case.used,
    Optimizations.s_min_uncond_all.key: lambda case: Used.LATE_WITHOUT_NEGATIVE in case.used,
    Optimizations.forecast_strength.key: lambda case: Used.FORECAST in case.used,
    Optimizations.step_cache_threshold.key: lambda case: Used.STEP_CACHE in case.used,
    Optimizations.pad_cond_uncond.key: lambda case: (
        Used.PADDING in case.used and not case.settings.optimizations.pad_cond_uncond_v0
    ),
    Optimizations.pad_cond_uncond_v0.key: lambda case: Used.PADDING in case.used,
    Sampling.skip_early_cond.key: lambda case: Used.EARLY_WITHOUT_NEGATIVE in case.used,
    Sampling.eta_ancestral.key: lambda case: case.spec.eta is EtaSource.ANCESTRAL,
    Sampling.eta_ddim.key: lambda case: case.spec.eta is EtaSource.DDIM,
    **{row.key: _takes(row.key) for row in (Sampling.s_churn, Sampling.s_tmin, Sampling.s_tmax, Sampling.s_noise)},
    **{
        row.key: _of_uni_pc
        for row in (
            *(Sampling.uni_pc_variant, Sampling.uni_pc_skip_type),
            *(Sampling.uni_pc_order, Sampling.uni_pc_lower_order_final),
        )
    },
    Sampling.sigma_min.key: _has_sigmas,
    Sampling.sigma_max.key: _has_sigmas,
    Sampling.rho.key: lambda case: _has_sigmas(case) and case.schedule is not None and case.schedule.default_rho != -1,
    Sampling.beta_dist_alpha.key: _is_beta,
    Sampling.beta_dist_beta.key: _is_beta,
    Sampling.always_discard_next_to_last_sigma.key: lambda case: (
        case.schedule is not None and not case.spec.discard_next_to_last_sigma
    ),
    Img2Img.img2img_extra_noise.key: lambda case: bool(case.request.hires) or case.is_from_image,
    **{
        row.key: _of_img2img
        for row in (
            *(Img2Img.img2img_color_correction, Img2Img.img2img_fix_steps),
            *(Img2Img.img2img_background_color, Img2Img.overlay_inpaint),
        )
    },
    VaeSettings.sd_vae_encode_method.key: lambda case: encodes_images(case.request),
}
"""Whether a setting that differs from its default has changed the image; others always have."""
ALWAYS_SAID = frozenset({Sampling.beta_dist_alpha.key, Sampling.beta_dist_beta.key})
"""Recorded at their defaults too, where they are heard."""
OF_THE_RUN = frozenset(
    {
        *(Optimizations.fp8_storage.key, Optimizations.weights_budget_gb.key, Optimizations.fp8_format.key),
        *(Optimizations.fp8_skip.key, Optimizations.fp8_text_encoder.key, Optimizations.cache_fp16_weight.key),
        *(Optimizations.compute_dtype.key, Optimizations.compute_mode.key, Optimizations.lora_mode.key),
        *(Optimizations.token_merging_ratio.key, Optimizations.token_merging_ratio_hr.key),
        *(StableDiffusionSettings.sd_model_checkpoint.key, StableDiffusionSettings.CLIP_stop_at_last_layers.key),
        *(StableDiffusionSettings.randn_source.key, StableDiffusionSettings.tiling.key, VaeSettings.sd_vae.key),
        *(StableDiffusionSettings.hires_fix_refiner_pass.key, Compatibility.refiner_switch_by_sample_steps.key),
        *(Img2Img.inpainting_mask_weight.key, Img2Img.initial_noise_multiplier.key, Sd3Settings.sd3_enable_t5.key),
        Sampling.eta_noise_seed_delta.key,
    }
)


def setting_fields(case: SettingsCase, rows: tuple[Setting, ...] = PROGRAM_SETTINGS) -> dict[str, object]:
    """The fields, in the order of the settings; numbers as they were given. Extensions record their own settings."""
    fields: dict[str, object] = {}
    for row in rows:
        if not (row.affects_image and row.infotext) or row.key in OF_THE_RUN:
            continue
        value = case.settings[row.key]
        if (value != row.default or row.key in ALWAYS_SAID) and HEARD.get(row.key, _always)(case):
            fields[row.infotext] = value
    return fields


def _always(case: SettingsCase) -> bool:
    return True
