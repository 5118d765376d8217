"""What storing weights in a format costs: bits per weight and the error that is to be expected, before any is read.

Errors are relative (root mean square), measured on Gaussian weights as `benchmarks/formats.py` does; that
of formats without scales depends on the size of the weights and is that of usual ones (around 0.02).
"""

from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.format import FORMATS, StorageFormat

ERRORS = {
    "fp8_e4m3fn": 0.033,
    "fp8_e5m2": 0.053,
    "fp8_e4m3fn_row": 0.026,
    "fp8_e5m2_row": 0.053,
    "int8_row": 0.008,
    "int8_convrot": 0.008,
    "code4": 0.066,
    "gguf_q8_0": 0.0054,
    "gguf_q5_1": 0.038,
    "gguf_q5_0": 0.043,
    "gguf_q4_1": 0.078,
    "gguf_q4_0": 0.086,
}


def expected_error(name: str) -> float | None:
    """Of the weights in a format; None for those of 16 bits and more, and for formats that are only read."""
    return ERRORS.get(name)


def bits_per_weight(storage: StorageFormat) -> float:
    """Bits per weight, without the scales of rows."""
    return storage.bits_per_weight if isinstance(storage, BlockFormat) else 8.0 * storage.dtype.itemsize


def described(name: str) -> str:
    """For people: "gguf_q4_0: 4.5 bits per weight, expected error 8.9 %"."""
    error = expected_error(name)
    words = f"{name}: {bits_per_weight(FORMATS.get(name)):g} bits per weight"
    return words if error is None else f"{words}, expected error {100 * error:.2g} %"
