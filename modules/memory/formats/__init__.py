"""Storage formats: importing this package registers all of them."""

from modules.memory.formats import code4 as _code4
from modules.memory.formats import convrot as _convrot
from modules.memory.formats import gguf_blocks as _gguf_blocks
from modules.memory.formats import plain as _plain
from modules.memory.formats import rowwise as _rowwise
from modules.memory.formats.format import FORMATS, Encoded, StorageFormat

__all__ = ["FORMATS", "Encoded", "StorageFormat"]
assert _plain and _rowwise and _gguf_blocks and _code4 and _convrot
