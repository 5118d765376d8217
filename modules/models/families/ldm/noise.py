"""The noise levels of the families in the latent-diffusion layout, from a table of betas, and what their files say of
the prediction."""

from collections.abc import Callable, Mapping

from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.family import Noise, flow_levels
from modules.models.families.ldm.edm import edm_architecture
from modules.models.families.ldm.rectified import rectified_architecture
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Header
from modules.sampling.discrete import (
    DiscreteSchedule,
    downcast_alphas_cumprod,
    log_uniform_alphas_cumprod,
    rescale_zero_terminal_snr,
    scaled_linear_alphas_cumprod,
)
from modules.sampling.flow import NoiseLevels
from modules.sampling.schedules import ALIGN_YOUR_STEPS_512
from modules.settings.values import Settings

V_KEY, ZERO_SNR_KEY = "v_pred", "ztsnr"
"""Empty tensors by which a file says that it predicts v, and that its last step is pure noise."""
PREDICTION_KEY = "modelspec.prediction_type"  # in the metadata, after the standard ModelSpec
PREDICTIONS = {
    **{"epsilon": "epsilon", "v": "v_prediction", "v_prediction": "v_prediction"},
    **{"flow": "flow", "rectified_flow": "flow", "rectified flow": "flow"},
}


def ldm_noise(
    schedule_table: tuple[float, ...] = ALIGN_YOUR_STEPS_512,
    unsaid: Callable[[Header], str | None] = lambda header: None,
    v_latent_side: int | None = None,
) -> Noise:
    """Return the noise of a family; `unsaid` is what a header means that says nothing of the prediction."""

    def prediction_type(header: Header, metadata: Mapping[str, str]) -> str | None:
        said = PREDICTIONS.get(metadata.get(PREDICTION_KEY, "").lower())
        return "v_prediction" if V_KEY in header else said or unsaid(header)

    return Noise(
        levels=_levels,
        prediction_type=prediction_type,
        has_zero_snr=lambda header: ZERO_SNR_KEY in header,
        told=_told,
        schedule_table=schedule_table,
        v_latent_side=v_latent_side,
    )


def _told(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    return rectified_architecture(edm_architecture(architecture, file), file)


def _levels(trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]) -> NoiseLevels:
    if trained.flow_shift is not None:
        return flow_levels(trained, settings, latent_size)
    if trained.sigma_range is not None:
        return DiscreteSchedule(log_uniform_alphas_cumprod(*trained.sigma_range, trained.timesteps))
    zero_snr = trained.zero_terminal_snr or settings.sampler.sd_noise_schedule == "Zero Terminal SNR"
    alphas = scaled_linear_alphas_cumprod(trained.linear_start, trained.linear_end, trained.timesteps)
    if settings.compatibility.use_downcasted_alpha_bar:
        alphas = downcast_alphas_cumprod(alphas)
    if zero_snr:
        alphas = rescale_zero_terminal_snr(alphas)
    return DiscreteSchedule(alphas, quantize=settings.stable_diffusion.enable_quantization)
