"""The GPU that is made up: what stands behind `modules.system.devices.GPUS` while a test has it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from modules.memory.dry_run import Outcomes
from modules.system import devices
from modules.system.devices import DeviceReading
from tests.fake_gpu.memory import Memory
from tests.fake_gpu.streams import FakeStream, Streams, Uses
from tests.fake_gpu.tensor import CPU, FLOATS_OF_8_BITS, NOT_ON_APPLE, CardFunctions, CardTensor, Rules

Watch = Callable[[Any, tuple[Any, ...], Any], None]
MANY = 1 << 16  # elements
GARBAGE = 0xFF  # every float of these bytes is NaN
RULES = Rules()  # what PyTorch says of devices is the same for all cards
OUTCOMES = Outcomes()  # and so are shapes
NARROW = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "matmul", "linear", "scaled_dot_product_attention"}
    | {"convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)
"""What PyTorch's autocast computes in its dtype on GPUs; in inference operations arrive whole, else in their parts."""
WIDE = frozenset(
    {
        "softmax",
        "_softmax",
        "log_softmax",
        "_log_softmax",
        "layer_norm",
        "native_layer_norm",
        "group_norm",
        "pow",
        "exp",
    }
    | {"native_group_norm", "pow", "rsqrt", "reciprocal", "sum", "cumsum", "prod", "norm", "linalg_vector_norm", "log"}
    | {"tan", "mse_loss", "l1_loss", "softplus", "acos", "asin", "cosine_similarity", "cdist", "rms_norm"}
)
"""What it computes in float32."""
_TO_COPY = torch.ops.aten._to_copy.default
_COPY = torch.ops.aten.copy_.default
_UNWRITTEN = frozenset(
    getattr(torch.ops.aten, name).default for name in ("empty_like", "new_empty", "new_empty_strided")
)
_IS_NONZERO = torch.ops.aten.is_nonzero.default
_READING = frozenset({torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default, _IS_NONZERO})
_MATRIX_8_BIT = torch.ops.aten._scaled_mm.default
NOT_ON_MPS = frozenset({torch.ops.aten._int_mm.default, _MATRIX_8_BIT, torch.ops.aten.frexp.Tensor})
"""Operations that PyTorch does not have for Apple's GPUs."""
FALL_BACK = frozenset({torch.ops.aten.sort.default, torch.ops.aten.linalg_vector_norm.default})
"""Stand-ins for operations that the CPU does for them: the GPU is waited for, before and after."""


@dataclass(frozen=True)
class CardFacts:
    """What a model of GPU can do. `half`: dtypes of 16 bits that it multiplies; `refuses_fp8`: what PyTorch's build for
    it says of products in fp8, "" where compute capability 8.9 alone decides, as NVIDIA's builds do; `is_unified`: its
    memory is main memory, as Apple's always is."""

    name: str
    capability: tuple[int, int] | None = (8, 6)
    half: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    refuses_fp8: str = ""
    is_unified: bool = False


class FakeCard:
    """One GPU. `has_values`: its tensors have values, computed by the CPU; without, only shapes."""

    def __init__(self, device_type: str, memory_gb: float, facts: CardFacts, has_values: bool = True) -> None:
        self.device = torch.device(device_type, 0)
        self.facts, self.has_values = facts, has_values
        self.streams = Streams()
        self.memory = Memory(round(memory_gb * 2**30), self.streams)
        self.watches: list[Watch] = []
        self.pinned_bytes = 0
        self.autocasts: list[tuple[torch.dtype, bool]] = []
        self.synchronized = 0
        self._pinned: dict[int, Any] = {}
        self._host_uses: dict[int, Uses] = {}
        self._local = threading.local()

    # -- what `modules.system.devices.Gpu` asks --------------------------------------------------------------------

    @property
    def has_streams(self) -> bool:
        return self.device.type != "mps"

    def count(self) -> int:
        return 1

    def name(self, index: int) -> str:
        return self.facts.name

    def driver(self, device: torch.device) -> str:
        return "1.0"

    def capability(self, device: torch.device) -> tuple[int, int] | None:
        return self.facts.capability if self.device.type == "cuda" else None

    def held_of_main_memory(self, device: torch.device) -> int | None:
        return self.memory.allocated if self.facts.is_unified or self.device.type == "mps" else None

    def read(self, device: torch.device) -> DeviceReading | None:
        if self.device.type == "mps":
            return None
        memory = self.memory
        return DeviceReading(
            memory.free, memory.total_bytes, memory.reserved, memory.allocated, memory.peak, memory.peak_reserved
        )

    def statistics(self, device: torch.device) -> Mapping[str, int]:
        now = {"allocated_bytes.all": self.memory.allocated, "reserved_bytes.all": self.memory.reserved}
        peak = {"allocated_bytes.all": self.memory.peak, "reserved_bytes.all": self.memory.peak_reserved}
        return {
            **{f"{name}.current": count for name, count in now.items()},
            **{f"{name}.peak": count for name, count in peak.items()},
            "num_ooms": self.memory.failures,
        }

    def begin_peak(self, device: torch.device) -> None:
        self.memory.begin_peak()

    def empty_cache(self) -> None:
        self.memory.empty_cache()

    def synchronize(self, device: torch.device) -> None:
        self.synchronized += 1
        self.streams.finish()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        assert self.has_streams, "Apple GPUs have no page-locked memory"
        made = torch.empty(shape, dtype=dtype)
        storage = made.untyped_storage()
        self._pinned[storage._cdata] = storage
        self.pinned_bytes += storage.nbytes()
        return made

    def autocast(self, dtype: torch.dtype, enabled: bool) -> AbstractContextManager[Any]:
        self.autocasts.append((dtype, enabled))
        return self._autocast(dtype, enabled)

    @contextmanager
    def _autocast(self, dtype: torch.dtype, enabled: bool) -> Iterator[None]:
        """PyTorch's own refuses devices that are not there; what it switches is the same."""
        device_type = self.device.type
        before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        torch.autocast_increment_nesting()
        torch.set_autocast_enabled(device_type, enabled)
        torch.set_autocast_dtype(device_type, dtype)
        try:
            yield
        finally:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
            torch.set_autocast_enabled(device_type, before[0])
            torch.set_autocast_dtype(device_type, before[1])

    def autocast_dtype(self) -> torch.dtype | None:
        """What autocast casts to; None where it is off."""
        return getattr(self._local, "autocast", None)

    def look_at_autocast(self) -> None:
        """Remember whether it is on: once an operation is dispatched, PyTorch does not tell."""
        device_type = self.device.type
        is_on = torch.is_autocast_enabled(device_type)
        self._local.autocast = torch.get_autocast_dtype(device_type) if is_on else None

    def _cast(self, func: Any, args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        """As PyTorch's autocast does for GPUs: products in `dtype`, what sums many values in float32."""
        name = func._schema.name.removeprefix("aten::")
        wanted = dtype if name in NARROW else torch.float32 if name in WIDE else None
        if wanted is None:
            return args

        def cast(value: Any) -> Any:
            if (
                not isinstance(value, CardTensor)
                or not value.is_floating_point()
                or value.dtype in (wanted, torch.float64)
            ):
                return value
            return self.dispatch(_TO_COPY, (value,), {"dtype": wanted})

        return tuple([cast(each) for each in value] if isinstance(value, list) else cast(value) for value in args)

    def generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator()

    def new_stream(self, device: torch.device) -> FakeStream:
        assert self.has_streams, "Apple GPUs have no streams"
        return self.streams.new()

    def current_stream(self, device: torch.device) -> FakeStream:
        return self.streams.present

    def in_stream(self, stream: FakeStream) -> AbstractContextManager[Any]:
        return self.streams.inside(stream)

    def recorder(self, device: torch.device) -> None:
        """It has no graphs: `tests.memory.recording` has a recorder for the CPU."""

    # -- tensors ---------------------------------------------------------------------------------------------------

    def is_named_by(self, device: Any) -> bool:
        """Whether a device, or a word for one, is this card. Raises RuntimeError for a card that is not there."""
        if isinstance(device, int):
            return True
        named = torch.device(device)
        if named.type in devices.GPU_TYPES and named.type != self.device.type:
            raise RuntimeError(f"{named}: there is no such GPU here, only {self.device}")
        return named.type == self.device.type

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether its memory is page-locked."""
        return not isinstance(tensor, CardTensor) and tensor.untyped_storage()._cdata in self._pinned

    def check_dtype(self, dtype: torch.dtype | None) -> None:
        """Raise TypeError, as PyTorch does, for dtypes that Apple's GPUs do not have."""
        if self.device.type == "mps" and dtype in NOT_ON_APPLE:
            raise TypeError(
                f"Trying to convert {dtype} to the MPS backend but it does not have support for that dtype."
            )

    def wrap(self, elem: Tensor, is_written: bool = False) -> CardTensor:
        """A tensor on the card. Raises `torch.OutOfMemoryError`."""
        self.check_dtype(elem.dtype)
        block = self.memory.block(elem.untyped_storage())
        if is_written and elem.numel():
            stream, at = self.streams.begin()
            self.streams.touch(block.uses, stream, at, True, "a new tensor")
        with torch.inference_mode(False):  # a view of a usual tensor is one, also where inference is on
            return CardTensor(elem, self)

    def without_values(self, tensor: Tensor) -> Tensor:
        """Where the card has none, a tensor of the same form without."""
        return tensor if self.has_values else torch.empty_like(tensor, device="meta")

    def move(self, tensor: Tensor, target: torch.device, dtype: torch.dtype, late: bool, layout: Any) -> Tensor:
        """To the card, or from it. `late`: nobody waits for it, where the CPU's side is page-locked."""
        words = {} if layout is None else {"memory_format": layout}
        if isinstance(tensor, CardTensor):
            stream, at = self.streams.begin()
            self.streams.touch(self._uses(tensor), stream, at, False, "a copy to the CPU")
            self.streams.host.merge({**stream.clock.seen, stream.name: at})
            if self.has_values:
                return tensor.elem.to(dtype, copy=True, **words)
            return nothing(tensor, dtype)
        self.check_dtype(dtype)
        if not self.has_values:
            return self.wrap(torch.empty_like(tensor, dtype=dtype, device="meta", **words), is_written=True)
        if self.is_pinned(tensor):
            self._do_before(self.streams.present)
        return self.wrap(tensor.detach().to(dtype, copy=True, **words), is_written=True)

    def _do_before(self, stream: FakeStream) -> None:
        """What the next work of a queue comes after: a copy out of page-locked memory finds what the one into it
        left."""
        self.streams.do_until({**stream.clock.seen, **self.streams.host.seen, stream.name: stream.count})

    def _uses(self, tensor: Tensor) -> Uses:
        if isinstance(tensor, CardTensor):
            return self.memory.block(tensor.elem.untyped_storage()).uses
        return self._host_uses.setdefault(tensor.untyped_storage()._cdata, Uses())

    # -- operations ------------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation with a tensor of the card among its arguments. Raises what a GPU would."""
        if (dtype := self.autocast_dtype()) is not None:
            args = self._cast(func, args, dtype)
        flat, spec = tree_flatten((args, kwargs))
        if func in _READING:
            return self._value(args[0], func is _IS_NONZERO)
        if func is _COPY:
            return self._copy(*args, **kwargs)
        if func is _TO_COPY and "device" in kwargs:
            # A move comes by `move`. This is autograd on its way back to a dtype, and to what it takes for the device.
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
            flat, spec = tree_flatten((args, kwargs))
        where = RULES.devices(func, flat, spec)
        self._refuse(func, flat)
        stream, at = self.streams.begin()
        changed = _changed(func, args, kwargs)
        for value in flat:
            if isinstance(value, CardTensor) and value.numel():
                self.streams.touch(self._uses(value), stream, at, id(value) in changed, str(func))
        givers = {id(value.elem): value for value in flat if isinstance(value, CardTensor)}
        inner = [self._inner(value) for value in flat]
        inner_args, inner_kwargs = tree_unflatten(inner, spec)
        if "device" in inner_kwargs and inner_kwargs["device"] is not None:
            inner_kwargs["device"] = CPU if self.has_values else torch.device("meta")
        if self.has_values and func._schema.name.removeprefix("aten::") in NARROW:
            result = _product(func, inner_args, inner_kwargs)
        elif not self.has_values:
            result = OUTCOMES.call(func, inner_args, inner_kwargs)
        else:
            result = func(*inner_args, **inner_kwargs)
        wrapped = self._wrapped(func, result, where, givers, stream, at)
        for watch in self.watches:
            watch(func, args, wrapped)
        return wrapped

    def _inner(self, value: Any) -> Any:
        if isinstance(value, CardTensor):
            return value.elem
        if isinstance(value, Tensor) and not self.has_values and not value.is_meta:
            return torch.empty_like(value, device="meta") if value.dim() else value
        return value

    def _wrapped(
        self, func: Any, result: Any, where: Any, givers: dict[int, CardTensor], stream: FakeStream, at: int
    ) -> Any:
        if isinstance(result, (tuple, list)):
            places = where if isinstance(where, list) else [where] * len(result)
            return type(result)(
                self._wrapped(func, each, place, givers, stream, at) for each, place in zip(result, places, strict=True)
            )
        if not isinstance(result, Tensor):
            return result
        if id(result) in givers:
            return givers[id(result)]
        if where is not None and where.type == "cpu":
            return result if not result.is_meta else nothing(result, result.dtype)
        is_new = result.untyped_storage()._cdata not in self.memory.blocks
        made = self.wrap(result)
        if is_new and result.numel() and func not in _UNWRITTEN:
            self.streams.touch(self._uses(made), stream, at, True, "a result")
        return made

    def _value(self, tensor: CardTensor, is_truth: bool) -> Any:
        """What `item` gives, or `bool`; the host waits for it."""
        stream, at = self.streams.begin()
        self.streams.touch(self._uses(tensor), stream, at, False, "item")
        self.streams.host.merge({**stream.clock.seen, stream.name: at})
        if self.has_values:
            return bool(tensor.elem.item()) if is_truth else tensor.elem.item()
        return is_truth or tensor.dtype == torch.bool or (1.0 if tensor.is_floating_point() else 1)

    def _copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        stream, at = self.streams.begin()
        if isinstance(target, CardTensor):
            self.check_dtype(target.dtype)
        for value, is_write in ((source, False), (target, True)):
            if isinstance(value, CardTensor) and value.numel():
                self.streams.touch(self._uses(value), stream, at, is_write, "a copy")
        to, since = self._inner(target), self._inner(source)
        crosses = isinstance(target, CardTensor) is not isinstance(source, CardTensor)
        if not self.has_values:
            if isinstance(target, CardTensor):
                to.copy_(since)
            elif not _are_weights(target, target.dtype):
                target.zero_()
        elif crosses and non_blocking and self.is_pinned(source if isinstance(target, CardTensor) else target):
            if isinstance(target, CardTensor):
                self._do_before(stream)
            if to.is_contiguous():
                to.detach().view(-1).view(torch.uint8).fill_(GARBAGE)
            if stream is self.streams.main and isinstance(target, CardTensor):
                to.copy_(since)  # what follows in this queue comes after it
            else:
                self.streams.do_late(stream, at, partial(_copy_late, _place_of(to), since))
        else:
            to.copy_(since)
        if crosses and not non_blocking:
            self.streams.host.merge({**stream.clock.seen, stream.name: at})
        for watch in self.watches:
            watch(_COPY, (target, source), target)
        return target

    def _refuse(self, func: Any, flat: list[Any]) -> None:
        if func is _MATRIX_8_BIT and (self.capability(self.device) or (0, 0)) < devices.FP8_MATMUL_CAPABILITY:
            raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 8.9")
        if func is _MATRIX_8_BIT and self.facts.refuses_fp8:
            raise RuntimeError(self.facts.refuses_fp8)
        if self.device.type == "mps" and func in NOT_ON_MPS:
            raise NotImplementedError(
                f"The operator '{func._schema.name}' is not currently implemented for the MPS device."
            )
        if self.device.type == "mps" and func in FALL_BACK:
            self.synchronize(self.device)
        name = func._schema.name
        is_product = name.removeprefix("aten::") in NARROW
        for value in flat if is_product else ():
            if not isinstance(value, CardTensor):
                continue
            if value.dtype in FLOATS_OF_8_BITS:
                raise RuntimeError(f"\"{name}\" not implemented for '{value.dtype}'")
            if value.dtype.itemsize == 2 and value.dtype.is_floating_point and value.dtype not in self.facts.half:
                raise RuntimeError(f"\"{name}\" not implemented for '{value.dtype}' on {self.facts.name}")


def nothing(like: Tensor, dtype: torch.dtype) -> Tensor:
    """On the CPU, where a card has no values: zeros, or, for weights, memory that nobody has touched."""
    return torch.empty(like.shape, dtype=dtype) if _are_weights(like, dtype) else torch.zeros(like.shape, dtype=dtype)


def _are_weights(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Images, which somebody looks at, come in 32 bits."""
    return tensor.numel() > MANY and dtype.itemsize < 4


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor's values are, without holding on to them: a copy that nobody wants keeps no memory."""
    held = weakref.ref(tensor.untyped_storage())
    return held, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()


def _copy_late(place: tuple[Any, ...], source: Tensor) -> None:
    held, dtype, offset, shape, strides = place
    storage = held()
    if storage is not None:
        with torch._C.DisableTorchFunction():
            torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides).copy_(source)


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A product in fp16 as GPUs make it, summed in float32; the CPU's own in fp16 take ten times as long."""

    def is_half(value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype == torch.float16

    if not any(is_half(value) for value in args):
        return func(*args, **kwargs)
    dtypes = {value.dtype for value in args if isinstance(value, Tensor) and value.is_floating_point()}
    if len(dtypes) > 1:
        raise RuntimeError(f"{func}: expected inputs of one dtype, but found {sorted(map(str, dtypes))}")
    return func(*(value.float() if is_half(value) else value for value in args), **kwargs).half()


def _changed(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[int]:
    """The ids of the tensors that an operation writes into."""
    found = set()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found |= {id(each) for each in (value if isinstance(value, (list, tuple)) else (value,))}
    return found


FACTS = {
    "cuda": CardFacts("NVIDIA GeForce RTX 3060", (8, 6)),
    "mps": CardFacts("Apple GPU", None),
    "xpu": CardFacts("Intel(R) Arc(TM) B580 Graphics", None),
}


@contextmanager
def fake_gpu(
    device_type: str = "cuda",
    memory_gb: float = 8.0,
    facts: CardFacts | None = None,
    has_values: bool = True,
) -> Iterator[FakeCard]:
    """While open, there is one GPU of this type and memory, and no other."""
    card = FakeCard(device_type, memory_gb, facts or FACTS[device_type], has_values)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for other in devices.GPU_TYPES:
            patch.setitem(devices.GPUS, other, card if other == device_type else _Nothing())
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined] # within it PyTorch leaves the mode

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            with CardFunctions(card):  # for what is computed again on the way back
                return backward(*args, **kwargs)

        patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
        fork_rng = torch.random.fork_rng  # the card draws what the CPU draws

        def fork_of_cpu(devices: Any = None, **_: Any) -> Any:
            return fork_rng([])

        patch.setattr(torch.random, "fork_rng", fork_of_cpu)
        stack.enter_context(CardFunctions(card))
        yield card


class _Nothing:
    """A type of GPU of which there is none."""

    def count(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is asked of a GPU that is not there")
