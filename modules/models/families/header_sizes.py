"""The sizes of UNet and autoencoder, read from the names and shapes in a checkpoint's header.

So a file without a YAML of its own may be of any width and depth, and pruned too (SSD-1B lacks transformer blocks and
the middle's attention). What no shape tells, the number of heads, comes from the family.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from modules.models.families.architecture import LdmArchitecture, UNetArchitecture
from modules.models.files.tensor_file import TensorEntry
from modules.models.names import ldm_unet

Header = Mapping[str, TensorEntry]
TRANSFORMER = re.compile(
    rf"^{re.escape(ldm_unet.PREFIX)}\.((?:input|output)_blocks\.\d+|middle_block)\.1\.transformer_blocks\.(\d+)\."
)


def sized_by_header(header: Header, family: LdmArchitecture) -> LdmArchitecture:
    """The family's architecture with the sizes of this file. A part that the file has not, or not whole, keeps the
    family's sizes, so that loading can list what is missing."""
    unet = None if family.unet is None else _unet(header, family.unet) or family.unet
    return replace(family, unet=unet, autoencoder=family.autoencoder.sized_by(header))


def _unet(header: Header, family: UNetArchitecture) -> UNetArchitecture | None:
    prefix = ldm_unet.PREFIX
    depths = _transformer_depths(header)
    try:
        in_channels = header[f"{prefix}.input_blocks.0.0.weight"].shape[1]
        out_channels = header[f"{prefix}.out.2.weight"].shape[0]
        widths: list[int] = []
        down: list[list[int]] = [[]]
        number = 1
        while f"{prefix}.input_blocks.{number}.0.in_layers.2.weight" in header or _is_downsampler(header, number):
            if _is_downsampler(header, number):
                down.append([])
            else:
                width = header[f"{prefix}.input_blocks.{number}.0.in_layers.2.weight"].shape[0]
                if not down[-1]:
                    widths.append(width)
                down[-1].append(depths[f"input_blocks.{number}"])
            number += 1
        blocks = len(down[0])
        if not blocks or any(len(level) != blocks for level in down):
            return None
        up = [
            tuple(depths[f"output_blocks.{row * (blocks + 1) + block}"] for block in range(blocks + 1))
            for row in range(len(down))
        ]
        context = next(
            entry.shape[1]
            for name, entry in header.items()
            if name.startswith(prefix) and name.endswith("attn2.to_k.weight")
        )
        projection = next(
            entry.shape
            for name, entry in header.items()
            if name.startswith(prefix) and name.endswith(".1.proj_in.weight")
        )
    except (KeyError, IndexError, StopIteration):
        return None
    vector = header.get(f"{prefix}.label_emb.0.0.weight")
    return replace(
        family,
        in_channels=in_channels,
        out_channels=out_channels,
        widths=tuple(widths),
        blocks_per_level=blocks,
        down_depths=tuple(tuple(level) for level in down),
        middle_depth=depths["middle_block"],
        up_depths=tuple(up),
        context_width=context,
        linear_projection=len(projection) == 2,
        vector_width=vector.shape[1] if vector is not None else None,
        has_middle=any(name.startswith(f"{prefix}.middle_block.") for name in header),
    )


def _is_downsampler(header: Header, number: int) -> bool:
    return f"{ldm_unet.PREFIX}.input_blocks.{number}.0.op.weight" in header


def _transformer_depths(header: Header) -> Counter[str]:
    """How many transformer blocks each block of the original numbering has."""
    depths: Counter[str] = Counter()
    for name in header:
        match = TRANSFORMER.match(name)
        if match is not None:
            depths[match[1]] = max(depths[match[1]], int(match[2]) + 1)
    return depths
