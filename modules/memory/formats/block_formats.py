"""All formats that pack weights into blocks, by name: those that one may choose, and those that are only read."""

from collections.abc import Mapping

from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.code4 import CODE4
from modules.memory.formats.gguf_blocks import GGUF_BLOCKS

BLOCK_FORMATS: Mapping[str, BlockFormat] = {**GGUF_BLOCKS, CODE4.name: CODE4}
