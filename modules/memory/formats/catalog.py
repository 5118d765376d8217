"""The storage formats that weights can be kept in: names, labels and facts, as data.

This file is free of torch so that settings, page, API and configurations can list the formats without loading it. What
encodes and decodes is imported when it is first asked for (`modules.memory.formats.format.FORMATS`). A new format is a
row here and its own file; every list of formats is made from these rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.system.registry import Registry

Product = Literal["fp8", "int8"]
Facts = Mapping[str, object]

ROTATION_GROUP = 256
"""Inputs that `int8_convrot` rotates together, see `modules.memory.formats.rotation`."""


@dataclass(frozen=True, kw_only=True)
class FormatSpec:
    """One storage format.

    `bits`: per weight, the scales of blocks included and those of rows not. `error`: the relative error (root mean
    square) that is to be expected, measured on Gaussian weights as `benchmarks/formats.py` does; that of formats
    without scales depends on the size of the weights and is that of usual ones (around 0.02). None: 16 bits and more.
    `scaled`: scales belong to the data. `computes`: the product that takes such weights without decoding them.
    `trainable`: adapters can be trained on weights stored so. `in_blocks`: rows are packed into blocks of bytes, and a
    weights budget may choose the format for a layer. `is_chosen`: settings and page offer it; the others are for files
    only. `layouts`: how files of other programs declare such weights, by the name of the layout; files in our own
    layout hold every format. `entry`: where the `StorageFormat` lies, `module:name`.
    """

    name: str
    label: str
    bits: float
    entry: str
    error: float | None = None
    scaled: bool = True
    computes: Product | None = None
    trainable: bool = True
    in_blocks: bool = False
    is_chosen: bool = True
    layouts: Mapping[str, Facts] = field(default_factory=dict)

    @property
    def is_narrow(self) -> bool:
        """Whether weights take fewer than 16 bits."""
        return self.bits < 16


_HERE = "modules.memory.formats"


def _wide(name: str, bits: int) -> FormatSpec:
    layouts: dict[str, Facts] = {"comfyui": {}, "gguf": {}}
    label, entry = f"{name} ({bits} bits)", f"{_HERE}.plain:{name.upper()}"
    return FormatSpec(name=name, label=label, bits=bits, entry=entry, scaled=False, is_chosen=False, layouts=layouts)


def _gguf(kind: str, bits: float, error: float, file_type: int, *, is_chosen: bool = True) -> FormatSpec:
    """`file_type`: llama.cpp's number for a file most of whose tensors are in this format."""
    return FormatSpec(
        name=f"gguf_{kind.lower()}",
        label=_in_blocks(kind, bits, error),
        bits=bits,
        entry=f"{_HERE}.gguf_blocks:{kind}",
        error=error,
        trainable=False,
        in_blocks=True,
        is_chosen=is_chosen,
        layouts={"gguf": {"file_type": file_type}},
    )


def _in_blocks(label: str, bits: float, error: float) -> str:
    return f"{label}, {bits:g} bits (error {100 * error:.1f} %)"


FORMAT_SPECS: Registry[FormatSpec] = Registry("storage format")
"""By name, in the order in which lists show them."""
for _spec in (
    _wide("fp16", 16),
    _wide("bf16", 16),
    _wide("fp32", 32),
    FormatSpec(
        name="fp8_e4m3fn_row",
        label="fp8 e4m3fn, one scale per row",
        bits=8,
        entry=f"{_HERE}.rowwise:E4M3_ROW",
        error=0.026,
        computes="fp8",
        # A row's scale of fp8 is no scale that ComfyUI's fp8 kernels take, so that it is to decode.
        layouts={"comfyui": {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}},
    ),
    FormatSpec(
        name="fp8_e4m3fn",
        label="fp8 e4m3fn, plain",
        bits=8,
        entry=f"{_HERE}.plain:FP8_E4M3FN",
        error=0.033,
        scaled=False,
        computes="fp8",
        layouts={"comfyui": {}},
    ),
    FormatSpec(
        name="fp8_e5m2",
        label="fp8 e5m2, plain",
        bits=8,
        entry=f"{_HERE}.plain:FP8_E5M2",
        error=0.053,
        scaled=False,
        layouts={"comfyui": {}},
    ),
    FormatSpec(
        name="int8_row",
        label="int8, one scale per row",
        bits=8,
        entry=f"{_HERE}.rowwise:INT8_ROW",
        error=0.008,
        computes="int8",
        layouts={"comfyui": {"format": "int8_tensorwise", "per_row": True}},
    ),
    FormatSpec(
        name="int8_convrot",
        label="int8, rotated where weights have outliers",
        bits=8,
        entry=f"{_HERE}.convrot:BEST_ROW",
        error=0.008,
        computes="int8",
        layouts={
            "comfyui": {
                "format": "int8_tensorwise",
                "convrot": True,
                "convrot_groupsize": ROTATION_GROUP,
                "per_row": True,
            }
        },
    ),
    _gguf("Q8_0", 8.5, 0.0054, 7),
    _gguf("Q5_1", 6, 0.038, 9),
    _gguf("Q5_0", 5.5, 0.043, 8),
    _gguf("Q4_1", 5, 0.078, 3, is_chosen=False),
    _gguf("Q4_0", 4.5, 0.086, 2, is_chosen=False),
    FormatSpec(
        name="code4",
        label=_in_blocks("code4", 4.5, 0.066),
        bits=4.5,
        entry=f"{_HERE}.code4:CODE4",
        error=0.066,
        trainable=False,
        in_blocks=True,
    ),
):
    FORMAT_SPECS.add(_spec.name, _spec)


def all_formats() -> tuple[str, ...]:
    """Return the formats that a file can be written in."""
    return tuple(FORMAT_SPECS)


def wide_formats() -> tuple[str, ...]:
    """Formats of 16 bits and more."""
    return tuple(name for name, spec in FORMAT_SPECS.items() if not spec.is_narrow)


def chosen_formats() -> tuple[str, ...]:
    """Return the formats that settings and page offer: those of fewer than 16 bits."""
    return tuple(name for name, spec in FORMAT_SPECS.items() if spec.is_chosen)


def trainable_formats() -> tuple[str, ...]:
    """Return the formats for the frozen weights of a training."""
    return tuple(name for name, spec in FORMAT_SPECS.items() if spec.trainable)


def formats_that_compute(product: Product) -> tuple[str, ...]:
    """Return the formats whose weights are multiplied in fp8 or int8 without being decoded."""
    return tuple(name for name, spec in FORMAT_SPECS.items() if spec.computes == product)


def block_formats() -> tuple[str, ...]:
    """Return the formats that a weights budget chooses from, the most exact first."""
    chosen = (spec for _, spec in FORMAT_SPECS.items() if spec.in_blocks and spec.is_chosen)
    return tuple(spec.name for spec in sorted(chosen, key=lambda spec: (-spec.bits, spec.error or 0.0)))


def layout_facts(layout: str) -> dict[str, Facts]:
    """Return by name of a format how files in this layout declare it; formats that they do not hold are left out."""
    return {name: spec.layouts[layout] for name, spec in FORMAT_SPECS.items() if layout in spec.layouts}
