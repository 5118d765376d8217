"""Putting weights to rest: out of their layers, into main memory, a file, or the checkpoint they came from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.codes import CodesFormat
from modules.memory.formats.format import FORMATS, dtype_name
from modules.memory.layer import stored_state
from modules.memory.row_table import STATE as ROW_TABLE
from modules.memory.streaming.blobs import BlobSource, BlobStore
from modules.memory.streaming.source import FileRegion, RamSource, Source, WatchedFile

SMALL_BYTES = 1 << 16  # norms and biases: moving them costs more than keeping them


class OffloadStorage:
    """Takes weights of layers and leaves shells on the meta device, which have their shape and dtype.

    With a `store` what comes from no file is stored in files there, else in main memory. Weights of fewer bytes than
    `small_bytes` are not taken.
    """

    def __init__(self, store: BlobStore | None = None, small_bytes: int = SMALL_BYTES) -> None:
        self.store = store
        self.small_bytes = small_bytes
        self.sources: dict[tuple[int, str], Source] = {}
        self._layers: list[nn.Module] = []  # kept alive, so that ids stay theirs
        self._shells = WeakIdKeyDictionary()  # by weight: its shell, for layers tied to it; no weight is kept alive
        self._files: dict[str, WatchedFile] = {}

    def wants(self, shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> bool:
        """Whether a weight of this size is taken."""
        return torch.Size(shape).numel() * dtype.itemsize >= self.small_bytes

    def take(self, layer: nn.Module, name: str, is_sure: bool = False) -> bool:
        """Take a parameter as it is in its layer; False for small ones, for what is not there, for an embedding that
        is looked up in a file, and (unless `is_sure`) for what its layer could not be given in another way."""
        parameter = layer._parameters.get(name)
        if parameter is None or parameter.is_meta or ROW_TABLE in layer.__dict__:
            return False
        if not self.wants(parameter.shape, parameter.dtype):
            return False
        if not is_sure and not _is_streamable(layer, name, parameter):
            return False
        shell: nn.Parameter | None = self._shells.get(parameter)  # type: ignore[no-untyped-call]
        if shell is None:
            source = self.keep(parameter.data)
            shell = shell_of(parameter)
            self._shells[parameter] = shell
        else:
            source = self._source_of(shell)
        self._place(layer, name, shell, source)
        return True

    def take_from_file(self, layer: nn.Module, name: str, region: FileRegion, dtype: torch.dtype) -> None:
        """Have a parameter stored in a file that exists; it is a weight of `dtype`, to which the file's converts."""
        shell = nn.Parameter(torch.empty(region.shape, dtype=dtype, device="meta"), requires_grad=False)
        self._place(layer, name, shell, region)

    def file(self, path: WatchedFile) -> WatchedFile:
        """Return the file, opened once."""
        key = str(path.path)
        if key not in self._files:
            self._files[key] = path.open()
        return self._files[key]

    def keep(self, tensor: Tensor) -> Source:
        """A tensor's offloaded bytes: in the store, or in main memory."""
        if self.store is not None:
            return self.store.keep(tensor)
        return RamSource(tensor.detach().to("cpu", copy=tensor.device.type == "cpu").contiguous())

    def let_go(self, source: Source) -> None:
        """Release what `keep` gave."""
        if isinstance(source, BlobSource) and self.store is not None:
            self.store.release(source)

    def finish(self) -> None:
        """All was taken, and others know where it is stored: hold on to nothing."""
        self._shells.clear()
        self.sources.clear()
        self._layers.clear()

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _place(self, layer: nn.Module, name: str, shell: nn.Parameter, source: Source) -> None:
        layer._parameters[name] = shell
        self.sources[id(layer), name] = source
        self._layers.append(layer)

    def _source_of(self, shell: nn.Parameter) -> Source:
        return next(
            self.sources[id(layer), name]
            for layer in self._layers
            for name, parameter in layer._parameters.items()
            if parameter is shell
        )


def _is_streamable(layer: nn.Module, name: str, parameter: nn.Parameter) -> bool:
    """Whether the layer can be given this weight by `modules.memory.layer` without another rounding than its own: all
    that it does not store in a smaller format must be of the dtype in which it computes."""
    state = stored_state(layer)
    if state is not None and isinstance(state.formats.get(name), BlockFormat | CodesFormat):
        return True
    if not parameter.is_floating_point() or dtype_name(parameter.dtype) not in FORMATS:
        return False
    if state is not None:
        return name in state.formats or parameter.dtype == state.compute_dtype
    return all(other is None or other.dtype == parameter.dtype for other in layer._parameters.values())


def shell_of(tensor: Tensor) -> nn.Parameter:
    """A parameter on the meta device of a tensor's shape and dtype."""
    return nn.Parameter(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), requires_grad=False)
