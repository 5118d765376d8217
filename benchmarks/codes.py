"""A step with 8-bit floats that are looked up in a table, as on devices without such a dtype, over one with it.

Run `python -m benchmarks.codes [--side N] [--turns N]`: Stable Diffusion 1's full-size UNet with small random weights
in fp8 e4m3fn by row, on the CPU in fp32, one call for prompt and negative prompt. The contenders take turns on the same
bytes: the dtype, decoded as the program does it on CPUs (moved bits); the table; and PyTorch's own cast. The least CPU
time of each counts, since other work on the machine only adds to it. The outputs must be equal to the bit. Writes
`results/codes.json`.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.report import print_table, write_result
from benchmarks.unet_step import random_unet
from modules.memory.formats.codes import look_up, numbers_of
from modules.memory.formats.format import FORMATS, Encoded, StorageFormat, by_row
from modules.memory.layer import manage, put
from modules.memory.storage import CASTABLE, SMALLEST_SCALED_ELEMENTS

FORMAT, GOAL = "fp8_e4m3fn_row", 1.05


@dataclass(frozen=True)
class Decoded:
    """The format with another way to decode it. `dtype`: of what is stored."""

    dtype: torch.dtype
    way: Callable[[Tensor, Tensor | None, Tensor], Tensor]
    name: str = FORMAT
    scaled: bool = True

    def encode(self, weight: Tensor) -> Encoded:
        """See `StorageFormat`."""
        return FORMATS.get(FORMAT).encode(weight)

    encode_rows = FORMATS.get(FORMAT).encode_rows

    def decode(self, data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
        """See `StorageFormat`."""
        return self.way(data, scale, out)


def by_table(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Look each code up, as on a device without the dtype."""
    return look_up(data, numbers_of(torch.float8_e4m3fn, out.dtype, data.device), scale, out)


def by_cast(data: Tensor, scale: Tensor | None, out: Tensor) -> Tensor:
    """Have PyTorch cast, number by number."""
    out.copy_(data)
    return out if scale is None else out.mul_(by_row(scale, out.ndim))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=256, help="of the image, in pixels")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    unet, storage = random_unet(torch.float32, torch.device("cpu")), FORMATS.get(FORMAT)
    ways: dict[str, StorageFormat] = {
        "dtype": storage,
        "table": Decoded(torch.uint8, by_table),
        "cast": Decoded(torch.float8_e4m3fn, by_cast),
    }
    stored: list[tuple[nn.Module, Encoded]] = []
    for layer in unet.modules():
        weight = layer._parameters.get("weight") if isinstance(layer, CASTABLE) else None
        if weight is not None and weight.numel() >= SMALLEST_SCALED_ELEMENTS:
            stored.append((layer, storage.encode(weight.detach())))
    side = arguments.side // 8
    x, time_step, text = torch.randn(2, 4, side, side), torch.tensor(500), torch.randn(2, 77, 768)
    best: dict[str, float] = dict.fromkeys(ways, float("inf"))
    outputs: dict[str, Tensor] = {}
    with torch.inference_mode():
        for turn in range(arguments.turns + 1):
            for name, way in ways.items():
                for layer, encoded in stored:
                    put(layer, "weight", encoded.data.view(way.dtype), encoded.scale)
                    manage(layer, {"weight": way}, torch.float32)
                began = time.process_time()
                outputs[name] = unet(x, time_step, encoder_hidden_states=text, return_dict=False)[0]
                if turn:
                    best[name] = min(best[name], time.process_time() - began)
    is_equal = all(torch.equal(output, outputs["dtype"]) for output in outputs.values())
    ratio = best["table"] / best["dtype"]
    print_table(
        ("way", "CPU s a step", "over the dtype"),
        [(n, f"{s:.2f}", f"{s / best['dtype']:.3f}") for n, s in best.items()],
    )
    print(f"equal to the bit: {is_equal}; goal {GOAL}: {'met' if ratio <= GOAL else 'missed'}")
    write_result(
        "codes",
        {
            "side_px": arguments.side,
            "cpu_seconds": {name: round(seconds, 3) for name, seconds in best.items()},
            "table_over_dtype": round(ratio, 3),
            "goal": GOAL,
            "equal_to_the_bit": is_equal,
            "threads": torch.get_num_threads(),
        },
    )


if __name__ == "__main__":
    main()
