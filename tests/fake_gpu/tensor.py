"""Tensors on a GPU that is made up.

Which devices an operation may mix, and where its result is, PyTorch itself says: the operation runs once on tensors of
its `FakeTensorMode`, which follow shapes, dtypes and devices without such a device. Its values, unless the card is made
without any, come from the CPU: so what reads a value (a NaN check, a mask, a step count) needs no stand-in, and images
can be compared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from tests.fake_gpu.card import FakeCard

CPU = torch.device("cpu")
FLOATS_OF_8_BITS = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})
NOT_ON_APPLE = FLOATS_OF_8_BITS | {torch.float64}
_PARSE_TO = torch._C._nn._parse_to  # what `Module.to` reads its arguments with
_UNWRITTEN = frozenset({torch.empty, torch.empty_strided})


class DeviceMismatchError(RuntimeError):
    """As PyTorch's, for operations of which it cannot say without values."""


class CardTensor(Tensor):
    """A tensor on the card. `elem` is where its values are: on the CPU, or nowhere (the meta device)."""

    elem: Tensor
    card: FakeCard

    @staticmethod
    def __new__(cls: type[CardTensor], elem: Tensor, card: FakeCard) -> CardTensor:
        made: CardTensor = Tensor._make_wrapper_subclass(
            cls,
            elem.shape,
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
            requires_grad=False,
        )
        made.elem, made.card = elem, card
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.card.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.card.device.type == "cuda"

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def data_ptr(self) -> int:
        storage = self.elem.untyped_storage()
        address: int = storage.data_ptr() if not self.elem.is_meta else storage._cdata
        return address + int(self.elem.storage_offset()) * self.elem.element_size()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.elem.untyped_storage()

    def get_device(self) -> int:
        return int(self.card.device.index)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"CardTensor({tuple(self.shape)}, {self.dtype}, {self.card.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("a tensor is pickled while it is on the GPU")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        made = self.detach().clone()
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        else:
            made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = next((value for value in args if isinstance(value, CardTensor)), None)
        if found is None:  # in a list
            found = next(value for value in tree_flatten((args, kwargs))[0] if isinstance(value, CardTensor))
        with torch._C.DisableTorchFunction():  # what PyTorch computes on the way is nobody's request of the card
            return found.card.dispatch(func, args, dict(kwargs or {}))


def is_on_card(value: object) -> bool:
    """Whether it is a tensor on a card that is made up."""
    return isinstance(value, CardTensor)


def on_card(tensor: Tensor, card: FakeCard) -> Tensor:
    """The same values on the card."""
    elem = tensor.detach().clone() if card.has_values else torch.empty_like(tensor, device="meta")
    return card.wrap(elem, is_written=True)


class Rules:
    """What PyTorch says of devices, remembered by operation and devices."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self.asked = 0

    def devices(self, func: Any, flat: Sequence[Any], spec: Any) -> Any:
        """The devices of an operation's results: one, or a list of them, None for what is no tensor. Raises what
        PyTorch raises for operations across two devices."""
        key = (func, *[self._key(value) for value in flat])
        with self._lock:
            if key not in self._known:
                self._known[key] = self._ask(func, flat, spec)
                self.asked += 1
        found = self._known[key]
        if isinstance(found, BaseException):
            raise found
        return found

    @staticmethod
    def _key(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.device, value.dim() == 0
        return value if isinstance(value, (torch.device, torch.dtype)) else None

    def _ask(self, func: Any, flat: Sequence[Any], spec: Any) -> Any:
        tensors = [value for value in flat if isinstance(value, Tensor)]
        try:
            with self._mode, torch.no_grad():
                args, kwargs = tree_unflatten([self._fake(value) for value in flat], spec)
                result = func(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ == "FakeTensorDeviceMismatchError":
                return DeviceMismatchError(f"{func}: {error}")
            places = {tensor.device for tensor in tensors if tensor.dim() > 0 or tensor.device.type != "cpu"}
            if len(places) > 1 and func is not torch.ops.aten.copy_.default:
                shapes = [f"{tensor.device} {tuple(tensor.shape)}" for tensor in tensors]
                return DeviceMismatchError(f"{func}: on {' and '.join(shapes)} at once ({error})")
            return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), CPU)
        if isinstance(result, Tensor):
            return result.device
        if isinstance(result, (tuple, list)):
            each_on = [each.device if isinstance(each, Tensor) else None for each in result]
            return each_on[0] if len(set(each_on)) == 1 else each_on  # how many there are depends on more than devices
        return None

    def _fake(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


# -- what PyTorch decides before an operation is dispatched ---------------------------------------------------------


class CardFunctions(TorchFunctionMode):
    """Sends what names the card's device to the card: factories, moves, and what only the CPU's memory can do."""

    def __init__(self, card: FakeCard) -> None:
        super().__init__()
        self.card = card

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            stand_in = _DRY_RUN.get(func)  # a dry run has such devices of its own
            return func(*args, **kwargs) if stand_in is None else stand_in(*args, **kwargs)
        self.card.look_at_autocast()
        special = _SPECIAL.get(func)
        if special is not None:
            found = special(self.card, func, args, dict(kwargs))
            if found is not NotImplemented:
                return found
        device = kwargs.get("device")
        if device is not None and func is not _PARSE_TO and self.card.is_named_by(device):
            return self._made_there(func, args, kwargs)
        return func(*args, **kwargs)

    def _made_there(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A factory's result, on the card."""
        kwargs.pop("device")
        generator = kwargs.get("generator")
        is_like = any(isinstance(value, CardTensor) for value in args)
        self.card.check_dtype(kwargs.get("dtype"))
        if is_like:
            return func(*args, **kwargs)
        if not self.card.has_values and func is not torch.tensor and func is not torch.as_tensor:
            kwargs.pop("generator", None)
            with torch.inference_mode(torch.is_inference_mode_enabled()):
                return self.card.wrap(func(*args, **kwargs, device="meta"), is_written=func not in _UNWRITTEN)
        del generator
        requires_grad = kwargs.pop("requires_grad", False)
        elem = self.card.without_values(func(*args, **kwargs, device="cpu"))
        made = self.card.wrap(elem, is_written=func not in _UNWRITTEN)
        return made.requires_grad_() if requires_grad else made


def _indexed(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` by the operations behind it: PyTorch's own asks for a device that a build for CPUs never has."""
    view, found = _viewed(tensor, index)
    return torch.ops.aten.index.Tensor(view, found) if found else view


def _set_indexed(tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value`, which needs no memory; a dry run does not ask for values."""
    tensor.zero_()


def _viewed(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """What slices, numbers and new dimensions leave, and the tensors that index its dimensions."""
    parts = index if isinstance(index, tuple) else (index,)
    taken = sum(part.dim() if _is_mask(part) else part is not None and part is not Ellipsis for part in parts)
    view, at, found = tensor, 0, dict[int, Tensor]()
    for part in parts:
        if part is Ellipsis:
            at += tensor.dim() - taken
        elif part is None:
            view, at = view.unsqueeze(at), at + 1
        elif isinstance(part, slice):
            view, at = torch.ops.aten.slice.Tensor(view, at, part.start, part.stop, part.step or 1), at + 1
        elif isinstance(part, int):
            view = view.select(at, part)
        else:
            found[at] = part if isinstance(part, Tensor) else torch.tensor(part)
            at += part.dim() if _is_mask(part) else 1
    return view, [found.get(place) for place in range(max(found, default=-1) + 1)]


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype == torch.bool


def _contiguous(tensor: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
    is_so = tensor.is_contiguous(memory_format=memory_format)
    return tensor if is_so else tensor.clone(memory_format=memory_format)


_DRY_RUN: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _indexed,
    Tensor.__setitem__: _set_indexed,
    Tensor.contiguous: _contiguous,
}
"""Methods that ask for the device itself, which PyTorch for CPUs never has."""


def _moved(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.to`: its many forms."""
    tensor, *rest = args
    words = list(rest)
    device = kwargs.pop("device", None)
    dtype = kwargs.pop("dtype", None)
    other = kwargs.pop("other", None)
    non_blocking = bool(kwargs.pop("non_blocking", False))
    copy = bool(kwargs.pop("copy", False))
    memory_format = kwargs.pop("memory_format", None)
    flags = []
    for word in words:
        if isinstance(word, Tensor):
            other = word
        elif isinstance(word, torch.dtype):
            dtype = word
        elif isinstance(word, bool):
            flags.append(word)
        elif word is not None:
            device = word
    non_blocking = flags[0] if flags else non_blocking
    copy = flags[1] if len(flags) > 1 else copy
    if other is not None:
        device, dtype = other.device, other.dtype
    target = tensor.device if device is None else torch.device(device)
    if card.is_named_by(target):
        target = card.device
    here = isinstance(tensor, CardTensor)
    if not here and target.type != card.device.type:
        return NotImplemented
    if here and target == card.device:
        wanted = dtype or tensor.dtype
        given: dict[str, Any] = {"dtype": wanted, "copy": copy, "memory_format": memory_format}
        card.check_dtype(wanted)
        return func(tensor, **{key: value for key, value in given.items() if value is not None})
    return _Move.apply(  # type: ignore[no-untyped-call]
        tensor, card, target, dtype or tensor.dtype, non_blocking, memory_format
    )


class _Move(torch.autograd.Function):
    """Between the card and the CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, card: FakeCard, target: Any, dtype: Any, late: bool, layout: Any) -> Tensor:
        ctx.back = (card, tensor.device, tensor.dtype)
        return card.move(tensor, target, dtype, late, layout)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        card, device, dtype = ctx.back
        return card.move(gradient, device, dtype, False, None), None, None, None, None, None


def _to_cpu(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _moved(card, Tensor.to, (args[0], CPU), {}) if isinstance(args[0], CardTensor) else NotImplemented


def _no_numpy(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], CardTensor):
        raise TypeError(
            f"can't convert {card.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )
    return NotImplemented


def _as_list(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _to_cpu(card, func, args, {}).tolist() if isinstance(args[0], CardTensor) else NotImplemented


def _set_data(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`parameter.data = tensor`, where one is on the card and the other is not, or both are."""
    holder, value = args
    if not isinstance(holder, CardTensor) and not isinstance(value, CardTensor):
        return NotImplemented
    new = value.detach()
    if isinstance(holder, nn.Parameter):
        new = nn.Parameter(new, requires_grad=holder.requires_grad)
    torch.utils.swap_tensors(holder, new)  # type: ignore[no-untyped-call]
    return None


def _pinned(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return card.is_pinned(args[0])


def _record_stream(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], CardTensor):
        return NotImplemented
    card.memory.block(args[0].elem.untyped_storage()).recorded = True
    return None


def _to_card(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _moved(card, Tensor.to, (args[0], card.device), {})


def _new_tensor(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.new_tensor(numbers)`: of the tensor's dtype and device, where no others are said."""
    like, numbers = args
    if not isinstance(like, CardTensor):
        return NotImplemented
    made = torch.tensor(numbers, dtype=kwargs.get("dtype") or like.dtype)
    return card.move(made, torch.device(kwargs.get("device") or card.device), made.dtype, False, None)


def _padded(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`pad_sequence`, whose result PyTorch puts on what it takes for the first tensor's device: the CPU."""
    sequences, batch_first, value = (*args, *(False, 0.0)[len(args) - 1 :])[:3]
    if not isinstance(sequences[0], CardTensor):
        return NotImplemented
    assert kwargs.get("padding_side", (*args, "right")[3] if len(args) > 3 else "right") == "right"
    longest = max(len(each) for each in sequences)
    padded = [
        torch.cat([each, each.new_full((longest - len(each), *each.shape[1:]), value)]) if len(each) < longest else each
        for each in sequences
    ]
    return torch.stack(padded, dim=0 if kwargs.get("batch_first", batch_first) else 1)


def _attention(card: FakeCard, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whose inputs autocast casts before it looks at them."""
    if not any(isinstance(value, CardTensor) for value in args):
        return NotImplemented
    dtype = card.autocast_dtype()
    if dtype is not None:
        args = tuple(value.to(dtype) if isinstance(value, Tensor) else value for value in args)
    return func(*args, **kwargs)


_SPECIAL: dict[Any, Callable[[FakeCard, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    Tensor.to: _moved,
    Tensor.cpu: _to_cpu,
    Tensor.cuda: _to_card,
    Tensor.numpy: _no_numpy,
    Tensor.__array__: _no_numpy,
    Tensor.tolist: _as_list,
    Tensor.new_tensor: _new_tensor,
    Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    Tensor.is_pinned: _pinned,
    Tensor.record_stream: _record_stream,
    nn.functional.scaled_dot_product_attention: _attention,
    torch._C._nn.pad_sequence: _padded,
}
