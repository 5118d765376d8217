"""The settings of a folder in the diffusers layout: what no tensor tells is taken from them, the rest must agree.

Sizes always follow from the tensors; a setting that says something else is an error that names it, because one of the
two is not what its author meant.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from modules.errors import CheckpointError
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture, UNetArchitecture
from modules.models.files.tensor_file import TensorEntry
from modules.models.names.diffusers_settings import SCHEDULER, Settings, compare, settings_of, wrong

CHANNELS_PER_HEAD = 64
UNET_CONFIG = "unet/config.json"
TRANSFORMER_CONFIG = "transformer/config.json"
SPACING = "scaled_linear"
PREDICTIONS = ("epsilon", "v_prediction")
FLOW = "flow_prediction"


def prediction_of(folder: Path, is_flow: bool = False) -> tuple[str | None, bool]:
    """Read from the scheduler what the denoiser predicts ("epsilon", "v_prediction"; None: nothing is said), and
    whether its noise ends in pure noise; nothing for a flow model. Raises `CheckpointError` for another prediction."""
    settings = settings_of(folder, SCHEDULER)
    prediction = settings.get("prediction_type")
    known = (FLOW,) if is_flow else PREDICTIONS
    if prediction is not None and prediction not in known:
        raise wrong(folder, SCHEDULER, "prediction_type", prediction, f"known are {', '.join(known)}")
    return (None, False) if is_flow else (prediction, bool(settings.get("rescale_betas_zero_snr", False)))


def refined(folder: Path, known: LdmArchitecture) -> LdmArchitecture:
    """`known`, sized by the tensors, with the heads, latent scale and noise schedule of the folder's settings.

    Raises `CheckpointError` that names a setting at odds with the tensors, or beyond what is computed here.
    """
    denoiser = settings_of(folder, UNET_CONFIG if known.unet is not None else TRANSFORMER_CONFIG)
    size = denoiser.get("sample_size")
    side = size if isinstance(size, int) else known.latent_side
    is_flow = known.noise_schedule.flow_shift is not None
    return replace(
        known,
        unet=None if known.unet is None else _unet(folder, denoiser, known.unet),
        autoencoder=known.autoencoder.refined(folder),
        noise_schedule=(_flow_schedule if is_flow else _schedule)(folder, known.noise_schedule),
        latent_side=side,
    )


def check_text(folder: Path, part: str, header: Mapping[str, TensorEntry], activation: str) -> None:
    """Hold a text model's settings against its tensors; `activation` is that of its kind."""
    name = f"{part}/config.json"
    settings = settings_of(folder, name)
    shapes = {key.removeprefix("text_model."): entry.shape for key, entry in header.items()}
    vocabulary, width = shapes.get("embeddings.token_embedding.weight", (None, None))
    mlp_width = shapes.get("encoder.layers.0.mlp.fc1.weight", (None,))[0]
    layers = len({key.split(".")[2] for key in shapes if key.startswith("encoder.layers.")})
    tensors = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
    }
    for key, value in tensors.items():
        compare(folder, name, settings, key, value)
    heads = max(int(width or 0) // CHANNELS_PER_HEAD, 1)
    for key, wanted in (("num_attention_heads", heads), ("hidden_act", activation)):
        if key in settings and settings[key] != wanted:
            raise wrong(folder, name, key, settings[key], f"text models of this kind and size have {wanted!r}")


def _unet(folder: Path, settings: Settings, known: UNetArchitecture) -> UNetArchitecture:
    for key, value in (
        ("in_channels", known.in_channels),
        ("out_channels", known.out_channels),
        ("block_out_channels", list(known.widths)),
        ("layers_per_block", known.blocks_per_level),
        ("cross_attention_dim", known.context_width),
    ):
        compare(folder, UNET_CONFIG, settings, key, value)
    heads = settings.get("num_attention_heads")
    heads = settings.get("attention_head_dim") if heads is None else heads  # diffusers' old name for the same
    if heads is None:
        return known
    counts = _whole_numbers(heads)
    if len(counts) == 1 or len(set(counts)) == 1 < len(counts) == known.levels:
        return replace(known, heads=counts[0], head_channels=None)
    widths = {width / count for width, count in zip(known.widths, counts, strict=False) if count}
    if len(counts) != known.levels or len(widths) != 1 or not next(iter(widths)).is_integer():
        levels = f"one number, or {known.levels} that divide {list(known.widths)} evenly, is expected"
        raise wrong(folder, UNET_CONFIG, "attention_head_dim", heads, levels)
    return replace(known, heads=None, head_channels=int(next(iter(widths))))


def _schedule(folder: Path, known: NoiseScheduleArchitecture) -> NoiseScheduleArchitecture:
    settings = settings_of(folder, SCHEDULER)
    spacing = settings.get("beta_schedule", SPACING)
    if spacing != SPACING:
        raise wrong(folder, SCHEDULER, "beta_schedule", spacing, f"known is {SPACING}")
    try:
        return replace(
            known,
            linear_start=float(settings.get("beta_start", known.linear_start)),
            linear_end=float(settings.get("beta_end", known.linear_end)),
            timesteps=int(settings.get("num_train_timesteps", known.timesteps)),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{folder.name}/{SCHEDULER}: an entry has an unusable value: {error}.") from error


def _flow_schedule(folder: Path, known: NoiseScheduleArchitecture) -> NoiseScheduleArchitecture:
    """Return the schedule of a flow model, whose scheduler says how far its times are shifted towards noise."""
    settings = settings_of(folder, SCHEDULER)
    if settings.get("use_dynamic_shifting") and known.shifts_by_size:
        return known
    if settings.get("use_dynamic_shifting"):
        raise wrong(folder, SCHEDULER, "use_dynamic_shifting", True, "a shift that follows the size is not known here")
    shift = settings.get("shift", settings.get("flow_shift", known.flow_shift))
    if not isinstance(shift, int | float) or isinstance(shift, bool) or not shift > 0:
        raise wrong(folder, SCHEDULER, "shift", shift, "it must be a number above 0")
    return replace(known, flow_shift=float(shift))


def _whole_numbers(value: object) -> list[int]:
    numbers: Iterable[object] = value if isinstance(value, list) else [value]
    return [number for number in numbers if isinstance(number, int) and number > 0]
