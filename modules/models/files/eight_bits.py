"""The 8-bit tensors of checkpoint files: their formats, the scales next to them, the markers around them.

Three ways are understood, and all are read as they are: bare e4m3fn or e5m2 weights (the reference UI's fp8, cast);
`NAME.scale_weight` next to a weight (ComfyUI's first form, and ours); and `NAME.weight_scale` with the format named by
the JSON in `NAME.comfy_quant` or in the metadata's `_quantization_metadata` (ComfyUI's later form; its pull request
10498, and QUANTIZATION.md there).
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.format import FORMATS, StorageFormat
from modules.memory.formats.rowwise import E5M2_ROW
from modules.models.files.coded_file import ATTENTION_HINT, COMFY, MARKER
from modules.models.files.header import DECLARATIONS_KEY
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource
from modules.system.bounded import read_json

SCALE_NAMES = ("scale_weight", "weight_scale")  # next to "weight", in files that others and we write
LEFT_OVER = ("scale_input", "input_scale", "scaled_fp8", MARKER, ATTENTION_HINT)  # for fp8 multiplication; markers
STORED_AS: Mapping[tuple[torch.dtype, bool], StorageFormat] = {
    (torch.float8_e4m3fn, False): FORMATS.get("fp8_e4m3fn"),
    (torch.float8_e5m2, False): FORMATS.get("fp8_e5m2"),
    (torch.float8_e4m3fn, True): FORMATS.get("fp8_e4m3fn_row"),
    (torch.float8_e5m2, True): E5M2_ROW,
    (torch.int8, True): FORMATS.get("int8_row"),
}
"""Which of our formats a file's 8-bit tensor is in, by its dtype and whether it has a scale."""

DECLARED: Mapping[str, torch.dtype] = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8_tensorwise": torch.int8,
}
"""The declared formats that are understood, and the dtype in which they lie in the file."""

FIRST_NON_FINITE = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C}  # codes from here on, without their sign
SLICE_ELEMENTS = 1 << 20
LISTED_LAYERS = 3


def check_declarations(file: TensorSource) -> None:
    """Raises `CheckpointError` where the file declares a format that is not understood, or another one than a weight
    has: its numbers would be read wrongly."""
    unknown: dict[str, list[str]] = {}
    for layer, declared in _declarations(file):
        name = str(declared.get("format"))
        parameters = declared.get("params")
        nested = parameters if isinstance(parameters, dict) else {}
        if declared.get("convrot") or nested.get("convrot"):
            name += " with rotation"
        entry = file.entries.get(f"{layer}.weight")
        if name not in DECLARED:
            unknown.setdefault(name, []).append(layer)
        elif entry is not None and entry.dtype != DECLARED[name]:
            raise CheckpointError(
                f"{file.path.name}: {layer}.weight is declared to be {name}, but its dtype is "
                f"{str(entry.dtype).removeprefix('torch.')}. Use another copy of the file."
            )
    if unknown:
        listed = "; ".join(f"{name} ({len(layers)} layers: {_some(layers)})" for name, layers in unknown.items())
        raise CheckpointError(
            f"{file.path.name}: stored in a format that is not understood: {listed}. "
            f"Known are {', '.join((*DECLARED, *COMFY))}. Use a 16-bit copy, or one in a known format."
        )


def _some(layers: list[str]) -> str:
    return ", ".join(layers[:LISTED_LAYERS]) + (" ..." if len(layers) > LISTED_LAYERS else "")


def _declarations(file: TensorSource) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Layers and what the file says of their format, in the metadata and in markers."""
    text = file.metadata.get(DECLARATIONS_KEY)
    if text is not None:
        table = _parsed(file, DECLARATIONS_KEY, text)
        layers = table.get("layers")
        for layer, declared in layers.items() if isinstance(layers, dict) else ():
            yield str(layer), declared if isinstance(declared, dict) else {}
    for key in file.entries:
        if key.endswith(MARKER):
            marker = file.read(key).reshape(-1).to(torch.uint8)
            yield key.removesuffix(MARKER), _parsed(file, key, bytes(marker.tolist()))


def _parsed(file: TensorSource, name: str, text: str | bytes) -> Mapping[str, object]:
    try:
        parsed = read_json(text)
    except ValueError as error:
        raise CheckpointError(
            f"{file.path.name}: {name} is not JSON, so the format of its weights is not known. Use another copy."
        ) from error
    return parsed if isinstance(parsed, dict) else {}


def refuse_non_finite(file: TensorSource, key: str, tensor: Tensor) -> None:
    """Raises `CheckpointError` that names the tensor if it holds NaN or infinity; 8-bit ones by their codes."""
    if tensor.element_size() == 1:
        finite = not _has_non_finite_code(tensor)
    elif tensor.is_floating_point() and tensor.numel():
        finite = all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor))  # NaN is the extreme of all
    else:
        return
    if not finite:
        raise CheckpointError(
            f"{file.path.name}: {key} holds NaN or infinite values. The file is damaged, or its training diverged: "
            "use another copy."
        )


def _has_non_finite_code(tensor: Tensor) -> bool:
    first = FIRST_NON_FINITE.get(tensor.dtype)
    if first is None:
        return False
    codes = tensor.reshape(-1).view(torch.uint8)
    starts = range(0, codes.numel(), SLICE_ELEMENTS)
    return any(int((codes[start : start + SLICE_ELEMENTS] & 0x7F).max()) >= first for start in starts)


def read_scale(file: TensorSource, scale_key: str | None, key: str, shape: tuple[int, ...]) -> Tensor | None:
    """The scale of the tensor `key` of this shape as float32 [1] or [rows] on the CPU; None without a key.

    Raises `CheckpointError` for a scale that is not finite, or that is neither one number nor one for each row.
    """
    if scale_key is None:
        return None
    scale = file.read(scale_key)
    refuse_non_finite(file, scale_key, scale)
    rows = shape[0] if shape else 1
    if scale.numel() not in (1, rows):
        raise CheckpointError(
            f"{file.path.name}: {scale_key} holds {scale.numel()} numbers, but {key} has {rows} rows. One scale, or "
            "one for each row, is understood. Use a copy in such a format, or a 16-bit one."
        )
    return scale.to(torch.float32).reshape(-1)


def scale_key_of(header: Mapping[str, TensorEntry], key: str) -> str | None:
    """Return the name of the scale next to a weight; None without one."""
    stem = key.removesuffix(".weight")
    return next((f"{stem}.{name}" for name in SCALE_NAMES if f"{stem}.{name}" in header), None)


def widened(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """Return an 8-bit tensor of a file as float32; `scale` is one value, or one per row."""
    wide = tensor.to(torch.float32)
    return wide if scale is None else wide * scale.reshape(-1, *(1,) * (wide.ndim - 1))
