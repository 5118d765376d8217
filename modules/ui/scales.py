"""The scales: one line that weighs the loaded model as it lies in memory."""

from modules.processing.status import ModelFacts

UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def scales_line(model: ModelFacts) -> str:
    """For example `SD 1.x · 1.07 B parameters · fp8 row · 1.1 GB, fp16 would be 2.1 GB`."""
    weight = short_bytes(model.stored_bytes)
    if model.stored_bytes != model.fp16_bytes:
        weight += f", fp16 would be {short_bytes(model.fp16_bytes)}"
    return f"{model.family} · {short_count(model.parameters)} parameters · {model.storage} · {weight} · {model.device}"


def short_count(number: int) -> str:
    """1,066,235,307 as "1.07 B"."""
    for unit, name in UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


def short_bytes(number: int) -> str:
    """Bytes in decimal megabytes or gigabytes."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
