"""The noise levels of the families in the latent-diffusion layout, from a table of betas, and what their files say of
the prediction, also those of UNets that were trained on all noise levels (Karras et al. 2022, arXiv:2206.00364)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from modules.errors import CheckpointError
from modules.models.autoencoders.kl import KlAutoencoder
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.family import Noise, flow_levels
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

V_RANGE = ("edm_vpred.sigma_min", "edm_vpred.sigma_max")
"""Tensors of one value, or empty marks, of models that predict v (CosXL)."""
STATISTICS = ("edm_mean", "edm_std")
"""Tensors of a value for each channel of the latents, of models in the whole preconditioning (Playground 2.5)."""
USUAL_V_RANGE, USUAL_RANGE = (0.002, 120.0), (0.002, 80.0)
LATENT_SCALE = 0.5
RECTIFIED, RECTIFIED_SHIFT = "rectified", 3.0
"""In the names of UNets that were tuned until they predict a rectified flow (Liu et al. 2022, arXiv:2209.03003), in any
case, as nothing in most files tells; and how far they are shifted towards noise: their makers name 3 to 8."""


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
    return _rectified(_edm(architecture, file), file)


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


def _edm(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    """The architecture with the noise levels, the prediction and the latents' statistics that the file tells; unchanged
    for other files. Raises `CheckpointError` for values that cannot be."""
    if V_RANGE[1] in file.entries:
        found = [_values(file, name) for name in V_RANGE]
        low, high = (value[0] if value else usual for value, usual in zip(found, USUAL_V_RANGE, strict=True))
        if not 0 < low < high < float("inf"):
            raise CheckpointError(
                f"{file.path.name}: its noise levels go from {low:g} to {high:g}, which is no range. Use another copy."
            )
        schedule = replace(architecture.noise_schedule, sigma_range=(low, high))
        return replace(architecture, noise_schedule=schedule, prediction_type="edm_v_prediction")
    autoencoder = architecture.autoencoder
    if not all(name in file.entries for name in STATISTICS) or not isinstance(autoencoder, KlAutoencoder):
        return architecture
    mean, deviation = (_values(file, name) for name in STATISTICS)
    if len(mean) != autoencoder.channels or len(deviation) != len(mean) or not all(value > 0 for value in deviation):
        raise CheckpointError(
            f"{file.path.name}: edm_mean and edm_std hold {len(mean)} and {len(deviation)} values, and need one for "
            f"each of {autoencoder.channels} channels, deviations above 0. Use another copy."
        )
    return replace(
        architecture,
        noise_schedule=replace(architecture.noise_schedule, sigma_range=USUAL_RANGE),
        prediction_type="edm",
        autoencoder=replace(autoencoder, scale_factor=LATENT_SCALE, by_channel=(mean, deviation)),
    )


def _values(file: TensorSource, name: str) -> tuple[float, ...]:
    if name not in file.entries:
        return ()
    return tuple(float(value) for value in file.read(name).float().reshape(-1).tolist())


def _rectified(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
    """The architecture with the prediction and the noise levels of a flow, where the file's name or its metadata say
    that it is one; unchanged for other files."""
    if architecture.prediction_type != "flow" and RECTIFIED not in file.path.name.lower():
        return architecture
    schedule = replace(architecture.noise_schedule, flow_shift=RECTIFIED_SHIFT, zero_terminal_snr=False)
    return replace(architecture, noise_schedule=schedule, prediction_type="flow")
