"""UNets that were trained on all noise levels (Karras et al. 2022, arXiv:2206.00364), and say so by small tensors."""

from dataclasses import replace

from modules.errors import CheckpointError
from modules.models.autoencoders.kl import KlAutoencoder
from modules.models.families.architecture import LdmArchitecture
from modules.models.files.tensor_source import TensorSource

V_RANGE = ("edm_vpred.sigma_min", "edm_vpred.sigma_max")
"""Tensors of one value, or empty marks, of models that predict v (CosXL)."""
STATISTICS = ("edm_mean", "edm_std")
"""Tensors of a value for each channel of the latents, of models in the whole preconditioning (Playground 2.5)."""
USUAL_V_RANGE, USUAL_RANGE = (0.002, 120.0), (0.002, 80.0)
LATENT_SCALE = 0.5


def edm_architecture(architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
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
