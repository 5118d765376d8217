"""Storage formats: importing this package registers all of them."""

from modules.memory.formats import convrot as _convrot
from modules.memory.formats import plain as _plain
from modules.memory.formats import rowwise as _rowwise
from modules.memory.formats.format import FORMATS, Encoded, StorageFormat

__all__ = ["FORMATS", "Encoded", "StorageFormat"]
assert _plain and _rowwise and _convrot
