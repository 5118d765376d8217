"""The scales: one line that weighs the loaded model as it lies in memory."""

from modules.models.reading.hashing import HashProgress
from modules.processing.memory_estimate.status import ModelFacts

UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def scales_line(model: ModelFacts) -> str:
    """For example `SD 1.x · 1.07 B parameters · fp8 row · 1.1 GB, fp16 would be 2.1 GB · cuda`; where weights are
    streamed it says so, and how much of them stays on the device."""
    whole = model.stored_bytes + model.streamed_bytes
    parts = [model.family, f"{short_count(model.parameters)} parameters", model.storage, short_bytes(whole)]
    if whole != model.fp16_bytes:
        parts[-1] += f", fp16 would be {short_bytes(model.fp16_bytes)}"
    if model.streaming:
        parts.append(f"{model.streaming}, {short_bytes(model.stored_bytes)} stay")
    return " · ".join([*parts, model.device])


def hashing_line(progress: HashProgress | None) -> str:
    """For example `hash of cat.safetensors 34 %`; empty where none is taken."""
    return "" if progress is None else f"hash of {progress.name} {100 * progress.fraction:.0f} %"


def short_count(number: int) -> str:
    """1,066,235,307 as "1.07 B"."""
    for unit, name in UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


def short_bytes(number: int) -> str:
    """Bytes in decimal megabytes or gigabytes."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
