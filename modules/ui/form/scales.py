"""The scales: one line that weighs the loaded model as it lies in memory."""

from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import ModelFacts
from modules.system.texts import page_text

MIXED = "mixed"
"""How `ModelFacts.storage` begins where a budget chose a format for each layer."""
UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "k"))


def scales_line(model: ModelFacts) -> str:
    """Family, number of parameters, format, bytes and device: `... · 1.07 B parameters · fp8 row · 1.1 GB · cuda`.

    Where weights are streamed it says so, and how much of them stays on the device."""
    whole = model.stored_bytes + model.streamed_bytes
    parts = [model.family, page_text(f"{short_count(model.parameters)} parameters"), model.storage, short_bytes(whole)]
    if model.streaming:
        parts.append(f"{model.streaming}, {short_bytes(model.stored_bytes)} stay")
    return " · ".join([*parts, model.device])


def scales_facts(model: ModelFacts) -> str:
    """Return what more there is to say, a line each: the name, what the weights would take in fp16, how long it
    took."""
    lines = [model.title]
    if model.stored_bytes + model.streamed_bytes != model.fp16_bytes:
        lines.append(page_text(f"in fp16 it would take {short_bytes(model.fp16_bytes)}"))
    if model.threads:
        lines.append(page_text(f"CPU threads: {model.threads}"))
    if model.switch_seconds:
        lines.append(page_text(f"ready after {model.switch_seconds:.2f} s"))
    return "\n".join(lines)


def pending_line(model: ModelFacts, fp8_storage: str, is_busy: bool, budget_gb: float = 0.0) -> str:
    """Return what a chosen "FP8 weight", or a budget of all weights, will change about the loaded model, and when;
    empty where it is as chosen, or where that depends on the model."""
    is_mixed = model.storage.startswith(MIXED)
    is_quantized = is_mixed or model.storage.startswith(("fp8", "int8"))
    when = page_text("after this job" if is_busy else "with the next job")
    if budget_gb:  # it goes before "FP8 weight"
        return "" if is_mixed else page_text(f"changes to fit {budget_gb:g} GB {when}")
    if fp8_storage == "Enable" and is_mixed:
        return page_text(f"changes to 8 bits {when}")
    if fp8_storage == "Disable" and is_quantized:
        return page_text(f"changes to 16 bits {when}")
    if fp8_storage == "Enable" and not is_quantized:
        return page_text(f"changes to 8 bits {when}")
    return ""


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
