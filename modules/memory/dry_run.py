"""Run a module without computing anything, and count the bytes that its tensors would take.

The real code runs on tensors that have a shape, a dtype and a device but no memory (PyTorch's `FakeTensorMode`), so
that every temporary, every list of skipped features and every slice is counted as it would live and die. What kernels
take inside of themselves is not seen, but for the largest of it: convolutions on the CPU. Corrections learnt from
real runs add the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class DryRun:
    """Modules and tensors without memory. Not thread safe; hold a lock where threads share one."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode()

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, in this thread, everything that is made has no memory, and nothing is computed."""
        with torch.no_grad(), self._mode:
            yield

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """A tensor for `measure`."""
        with self.open():
            return torch.empty(shape, dtype=dtype, device=device)

    def place(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Give the parameters and buffers of `module` (usually on the meta device) a device and, where they are
        floating, a dtype; they still have no memory. Changed in place: the module can only be estimated by a dry run
        with."""
        with self.open():
            for layer in module.modules():
                for name, parameter in layer._parameters.items():
                    if parameter is not None:
                        layer._parameters[name] = nn.Parameter(_empty(parameter, device, dtype), requires_grad=False)
                for name, buffer in layer._buffers.items():
                    if buffer is not None:
                        layer._buffers[name] = _empty(buffer, device, dtype)

    def measure(self, run: Callable[[], object], cpu_is: str = "cpu") -> Mapping[str, int]:
        """The most bytes, by type of device ("cpu", "cuda"), of tensors that `run` makes and that live at one time.

        Tensors that were there before, weights among them, do not count. A test of a value (`bool(tensor)`) is taken
        for true. `cpu_is`: the type of device that the CPU's tensors stand for, where PyTorch has none of it.
        """
        counter = _Counter(cpu_is=cpu_is)
        self.observe(run, counter)
        return counter.peak

    def observe(self, run: Callable[[], object], mode: TorchDispatchMode) -> None:
        """Call `run` while `mode` sees each of its operations."""
        with self.open(), mode:
            run()


def _empty(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device=device)


class MetaRun:
    """A dry run of modules that stay on one device: on tensors of the meta device, which is several times faster.

    Not for what asks a tensor for its device, or for autocast, which knows no meta device.
    """

    def __init__(self, device: torch.device) -> None:
        """`device`: the one that the meta device stands for. Keep one for several measurements: it remembers what
        operations make of shapes that it has seen."""
        self._device = device
        self._outcomes = Outcomes()

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor for `measure`."""
        return torch.empty(shape, dtype=dtype, device="meta")

    def place(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Give the floating parameters and buffers of `module` a dtype; changed in place, see `DryRun.place`."""
        for layer in module.modules():
            for name, parameter in layer._parameters.items():
                if parameter is not None and not _is_so(parameter, dtype):
                    empty = _empty(parameter, torch.device("meta"), dtype)
                    layer._parameters[name] = nn.Parameter(empty, requires_grad=False)
            for name, buffer in layer._buffers.items():
                if buffer is not None and not _is_so(buffer, dtype):
                    layer._buffers[name] = _empty(buffer, torch.device("meta"), dtype)

    def measure(self, run: Callable[[], object]) -> int:
        """The most bytes that a call has on the device at once."""
        counter = _Counter(meta_is=self._device.type, outcomes=self._outcomes)
        self.observe(run, counter)
        return counter.peak.get(self._device.type, 0)

    def observe(self, run: Callable[[], object], mode: TorchDispatchMode) -> None:
        """Call `run` while `mode` sees each of its operations."""
        with torch.no_grad(), mode:
            run()


def _is_so(tensor: Tensor, dtype: torch.dtype) -> bool:
    is_meta = type(tensor) in (Tensor, nn.Parameter) and tensor.is_meta
    return is_meta and (tensor.dtype == dtype or not tensor.is_floating_point())


Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]  # shape, strides and dtype of a tensor


class Outcomes:
    """The results of operations on the meta device, remembered by shape: PyTorch computes them in Python for most
    operations, and blocks of a model ask the same again and again. Operations that change or return their inputs are
    not remembered, and neither are their results."""

    def __init__(self) -> None:
        self._makes_anew: dict[Any, bool] = {}
        self._made: dict[Any, _Made] = {}

    def call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of `func(*args, **kwargs)`: tensors on the meta device of the shapes that it would have."""
        is_new = self._makes_anew.get(func)
        if is_new is None:
            is_new = self._makes_anew[func] = _makes_anew(func)
        if not is_new:
            return func(*args, **kwargs)
        try:
            key = (func, _key(args), *[(name, _key(value)) for name, value in kwargs.items()])
            made = self._made.get(key)
        except TypeError:  # an argument without a hash, or a tensor elsewhere
            return func(*args, **kwargs)
        if made is not None:
            return made.again()
        result = func(*args, **kwargs)
        if (new := _Made.of(result, (args, kwargs))) is not None:
            self._made[key] = new
        return result


@dataclass(frozen=True)
class _Made:
    """The tensors that an operation makes; None stands for None."""

    layouts: tuple[Layout | None, ...]
    is_one: bool  # and not a tuple of them

    @classmethod
    def of(cls, result: Any, given: Any) -> _Made | None:
        """None where new tensors could not stand for the result."""
        results = (result,) if isinstance(result, Tensor) else result
        if type(results) is not tuple:
            return None
        known, layouts = _storages(given), []
        for value in results:
            layout = _layout(value, known) if isinstance(value, Tensor) else None
            if layout is None and value is not None:
                return None
            layouts.append(layout)
            known |= _storages(value)
        return cls(tuple(layouts), results is not result)

    def again(self) -> Any:
        """New tensors like those of the first time."""
        tensors = tuple([None if layout is None else _empty_with(layout) for layout in self.layouts])
        return tensors[0] if self.is_one else tensors


def _makes_anew(func: Any) -> bool:
    """Whether the operation says that it changes none of its arguments and returns none of them."""
    schema = func._schema
    return not schema.is_mutable and all(value.alias_info is None for value in schema.returns)


def _key(value: Any) -> Any:
    """Return a key that is equal for arguments that give equal shapes. Raises `TypeError` for tensors that are not on
    the meta device and for special classes of tensors."""
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or not value.is_meta or value.layout is not torch.strided:
            raise TypeError(f"{type(value).__name__} on {value.device}")
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple([_key(each) for each in value])
    return type(value), value  # 1, 1.0 and True promote differently


def _layout(tensor: Tensor, known: set[int]) -> Layout | None:
    storage = tensor.untyped_storage()
    if type(tensor) is not Tensor or not tensor.is_meta or storage._cdata in known:
        return None
    layout = tensor.shape, tensor.stride(), tensor.dtype
    return layout if _empty_with(layout).untyped_storage().nbytes() == storage.nbytes() else None


def _empty_with(layout: Any) -> Tensor:
    shape, strides, dtype = layout
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _storages(given: Any) -> set[int]:
    return {value.untyped_storage()._cdata for value in tree_leaves(given) if isinstance(value, Tensor)}


class _Counter(TorchDispatchMode):
    """Counts the storages that operations make, until they die. `meta_is`: for which device the meta device stands;
    `outcomes`: where all tensors are on it; `cpu_is`: for which device the CPU stands."""

    def __init__(self, meta_is: str = "meta", outcomes: Outcomes | None = None, cpu_is: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stands_for = {"meta": meta_is, "cpu": cpu_is}
        self._outcomes = outcomes
        self.live: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        kwargs = kwargs or {}
        self._know_all((args, *kwargs.values()), counted=False)
        result = func(*args, **kwargs) if self._outcomes is None else self._outcomes.call(func, args, kwargs)
        self._know_all(result, counted=True)
        inside = _inside_bytes(func, args, result, self._device_type)
        for device_type, size in self.live.items():
            self.peak[device_type] = max(self.peak.get(device_type, 0), size + (inside if device_type == "cpu" else 0))
        return result

    def _know_all(self, values: Any, counted: bool) -> None:
        if isinstance(values, Tensor):
            self._know(values, counted)
        elif isinstance(values, (tuple, list)):
            for value in values:
                self._know_all(value, counted)

    def _know(self, tensor: Tensor, counted: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        device_type, size = self._device_type(tensor), storage.nbytes() if counted else 0

        def forget(_: object) -> None:
            self.live[device_type] -= size
            self._known.pop(key, None)

        self.live[device_type] = self.live.get(device_type, 0) + size
        self._known[key] = weakref.ref(storage, forget)

    def _device_type(self, tensor: Tensor) -> str:
        device_type = tensor.device.type
        return self._stands_for.get(device_type, device_type)


CHANNEL_BLOCK = 16  # channels that lie side by side in the layout that convolutions on the CPU work in


def _inside_bytes(func: Any, args: tuple[Any, ...], result: Any, device_of: Callable[[Tensor], str]) -> int:
    """Return the bytes that a convolution on the CPU takes besides its output: it copies its input into a layout of its
    own, computes in that, and copies the result out when the input's copy is missing (as measured with PyTorch 2.13).
    Products of one pixel at a time (kernels of size 1) need neither."""
    if func is not torch.ops.aten.convolution.default or device_of(result) != "cpu":
        return 0
    inputs, weight = args[0], args[1]
    if weight.shape[2:].numel() == 1:
        return 0
    before, after, output = _blocked_bytes(inputs), _blocked_bytes(result), result.numel() * result.element_size()
    return max(before + after - int(output), after)


def _blocked_bytes(tensor: Tensor) -> int:
    channels = -(-tensor.shape[1] // CHANNEL_BLOCK) * CHANNEL_BLOCK
    return tensor.numel() // max(1, tensor.shape[1]) * channels * tensor.element_size()
