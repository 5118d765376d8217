"""Formats of the weights in a file, found from its header. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from modules.models.files.header import DECLARATIONS_KEY, GPTQ, NUNCHAKU, PACKED_KEY, Header
from modules.system.bounded import ContentError, read_json

EIGHT_BITS = (("F8_E4M3", "fp8 e4m3fn"), ("F8_E5M2", "fp8 e5m2"), ("I8", "int8"))
WIDE = (("F16", "fp16"), ("BF16", "bf16"), ("F32", "fp32"), ("F64", "fp64"))
SCALES = (".scale_weight", ".weight_scale")


@dataclass(frozen=True)
class FormatSigns:
    """A format: the type of most weights ("": any), the ends of names next to them, and whether it is read."""

    label: str
    dtype: str = ""
    ends: tuple[str, ...] = ()
    is_read: bool = True


FORMATS = (
    FormatSigns("SVDQuant (Nunchaku)", "", NUNCHAKU, is_read=False),
    FormatSigns("the codes of GPTQ or AWQ", "", GPTQ, is_read=False),
    FormatSigns("nf4 (bitsandbytes)", "", (".quant_state.bitsandbytes__nf4",)),
    FormatSigns("fp4 (bitsandbytes)", "", (".quant_state.bitsandbytes__fp4",)),
    FormatSigns("codes of bitsandbytes without their shapes", "", (".absmax",), is_read=False),
    FormatSigns("int8 (bitsandbytes)", "I8", (".SCB",), is_read=False),
    FormatSigns("nvfp4", "U8", (".weight_scale_2",)),
    *(FormatSigns(f"{label}, with scales", dtype, (end,)) for dtype, label in EIGHT_BITS for end in SCALES),
    *(FormatSigns(label, dtype) for dtype, label in (*EIGHT_BITS, *WIDE, ("U8", "codes"))),
)
"""Compared with a header in this order."""
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K", 12: "Q3_K"},
    **{13: "Q3_K", 14: "Q4_K", 15: "Q4_K", 16: "Q5_K", 17: "Q5_K", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16"},
}
"""llama.cpp's numbers for files most of whose tensors are of a type."""


def stored_format(header: Header) -> FormatSigns:
    """Return the format of most weights in a file; one without a label where the header does not say it."""
    kinds: dict[str, int] = {}
    for shape, dtype in header.tensors.values():
        if len(shape) > 1:
            kinds[dtype] = kinds.get(dtype, 0) + shape[0] * shape[-1]
    most = (
        max(kinds, key=lambda dtype: kinds[dtype])
        if kinds
        else next((one.dtype for one in header.tensors.values()), "")
    )
    if header.format == "gguf":
        number = header.metadata.get("general.file_type", "")
        named = most or FILE_TYPES.get(int(number) if number.isdecimal() else -1, "")
        return FormatSigns(f"GGUF {named}".strip())
    declared = _declared(header.metadata)
    if declared:
        return FormatSigns(declared)
    found = (one for one in FORMATS if one.dtype in ("", most))
    names = "\n".join((*header.tensors, ""))
    return next((one for one in found if all(f"{end}\n" in names for end in one.ends)), FormatSigns(most.lower()))


def _declared(metadata: Mapping[str, str]) -> str:
    """Return what the metadata says of most layers: ComfyUI's name of a format, or ours of packed weights."""
    try:
        packed = read_json(metadata[PACKED_KEY]) if PACKED_KEY in metadata else {}
        layers = read_json(metadata.get(DECLARATIONS_KEY, "{}")).get("layers")
    except (ContentError, AttributeError):
        return ""
    names = (
        [str(one[0]) for one in packed.values() if isinstance(one, list) and one] if isinstance(packed, dict) else []
    )
    for one in layers.values() if isinstance(layers, dict) else ():
        if isinstance(one, dict):
            nested = one.get("params")
            rotated = one.get("convrot") or (isinstance(nested, dict) and nested.get("convrot"))
            names.append(f"{one.get('format')}{', rotated' if rotated else ''}")
    return max(set(names), key=names.count) if names else ""
