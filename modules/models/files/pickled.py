"""Pickled objects as plain data. Nothing that a pickle names is imported or called. Imports no torch.

Each of its opcodes (Python's `pickletools` lists them) only moves data: a class or function becomes a `Global`,
whatever it would have made an `Inert` object that keeps its state, and a tensor a `StoredTensor` that says where its
bytes are.
"""

import pickle
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise

MAX_OPCODES = 3_000_000
MAX_MODULES = 20_000  # of one tree; a module that is named twice counts twice
STORAGE_DTYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
"""Storage classes of torch, and what safetensors files call their type."""
VALUE_OPCODES = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)
"""Opcodes that push their own argument."""


@dataclass(frozen=True)
class Global:
    """A class or function by its full name."""

    name: str


@dataclass(eq=False)
class Inert:
    """Stands for an object of the class, or the result of the function, `name`. `state` is what the object would have
    been given to restore itself."""

    name: str
    state: object = None

    def get(self, attribute: str) -> object:
        """A value of the state; None where there is none."""
        return self.state.get(attribute) if isinstance(self.state, dict) else None

    def members(self, attribute: str) -> dict[object, object]:
        """A value of the state that is a dict; empty where it is none."""
        found = self.get(attribute)
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Storage:
    """The bytes that tensors share: a file `key` of the zip."""

    key: str
    dtype: str  # as safetensors files call it


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A view of a storage; `offset` and `stride` in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def modules_of(root: Inert) -> dict[str, Inert]:
    """A pickled torch module and all below it, by dotted name; the root's is empty. Raises `ValueError` for a tree of
    more than `MAX_MODULES`."""
    found: dict[str, Inert] = {}
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        found[name] = module
        if len(found) + len(waiting) > MAX_MODULES:
            raise ValueError(f"more than {MAX_MODULES} modules")
        for child, inner in module.members("_modules").items():
            if isinstance(inner, Inert):
                waiting.append((f"{name}.{child}".removeprefix("."), inner))
    return found


def tensors_of(modules: dict[str, Inert]) -> dict[str, StoredTensor]:
    """The parameters and buffers of `modules_of`, by dotted name."""
    return {
        f"{name}.{own}".removeprefix("."): tensor
        for name, module in modules.items()
        for attribute in ("_parameters", "_buffers")
        for own, tensor in module.members(attribute).items()
        if isinstance(tensor, StoredTensor)
    }


class Machine:
    """The pickle machine with data only. What is on the stack is limited by the pickle's length, as is every argument;
    dicts take only plain keys, since hashing a deep tuple can exhaust the stack of the interpreter."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._outer: list[list[object]] = []  # the stacks below the marks
        self._memo: dict[object, object] = {}

    def run(self, pickled: bytes | BytesIO) -> object:
        """Return what a pickle holds. Raises `pickle.UnpicklingError`, `ValueError`, `IndexError` or `KeyError` for
        what is no such pickle."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(pickled)):
            if number >= MAX_OPCODES:
                raise pickle.UnpicklingError(f"its pickle has more than {MAX_OPCODES} opcodes")
            if opcode.name == "STOP":
                return self._stack.pop()
            if opcode.name in VALUE_OPCODES:
                self._stack.append(argument)
            else:
                self._step(opcode.name, argument)
        raise pickle.UnpicklingError("its pickle ends too early")

    def named(self) -> Iterator[tuple[str, StoredTensor]]:
        """Yield the tensors that a pickle which was cut off had not put into a table yet, with their names."""
        for items in (*self._outer, self._stack):
            for name, tensor in pairwise(items):
                if isinstance(name, str) and isinstance(tensor, StoredTensor):
                    yield name, tensor

    def _step(self, opcode: str, argument: object) -> None:
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[opcode]())
            case "EMPTY_SET":
                stack.append(Inert("builtins.set"))
            case "MARK":
                self._outer.append(stack)
                self._stack = []
            case "POP" if not stack:
                self._since_mark()
            case "POP":
                stack.pop()
            case "POP_MARK" | "ADDITEMS":
                self._since_mark()
            case "DUP":
                stack.append(stack[-1])
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [stack.pop() for _ in range(int(opcode[-1]))]
                stack.append(tuple(reversed(items)))
            case "TUPLE" | "LIST" | "DICT" | "FROZENSET" | "APPENDS" | "SETITEMS" | "OBJ" | "INST":
                self._gather(opcode, argument, self._since_mark())
            case "APPEND":
                self._gather("APPENDS", argument, [stack.pop()])
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._gather("SETITEMS", argument, [key, value])
            case "GLOBAL":
                stack.append(Global(str(argument).replace(" ", ".")))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                if not isinstance(name, str) or not isinstance(module, str):
                    raise pickle.UnpicklingError("a class has no name")
                stack.append(Global(f"{module}.{name}"))
            case "REDUCE" | "NEWOBJ":
                arguments, callee = stack.pop(), stack.pop()
                stack.append(_called(callee, arguments))
            case "NEWOBJ_EX":
                _, arguments, callee = stack.pop(), stack.pop(), stack.pop()
                stack.append(_called(callee, arguments))
            case "BUILD":
                state, target = stack.pop(), stack[-1]
                if isinstance(target, Inert):
                    target.state = state
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case _:
                raise pickle.UnpicklingError(f"its pickle has the opcode {opcode}")

    def _gather(self, opcode: str, argument: object, items: list[object]) -> None:
        """An opcode that takes the items since a mark."""
        stack = self._stack
        match opcode:
            case "TUPLE":
                stack.append(tuple(items))
            case "LIST":
                stack.append(items)
            case "FROZENSET":
                stack.append(Inert("builtins.frozenset"))
            case "INST":
                stack.append(Inert(str(argument).replace(" ", ".")))
            case "OBJ":
                stack.append(_called(items[0], tuple(items[1:])))
            case "APPENDS":
                target = stack[-1]
                if isinstance(target, list):
                    target.extend(items)
            case _:
                if opcode == "DICT":
                    stack.append({})
                table = stack[-1]
                if isinstance(table, dict):
                    pairs = zip(items[::2], items[1::2], strict=True)
                    table.update((key, value) for key, value in pairs if isinstance(key, str | int | float | None))

    def _since_mark(self) -> list[object]:
        items, self._stack = self._stack, self._outer.pop()
        return items


def _called(callee: object, arguments: object) -> object:
    """Return the stand-in for a call's result: a tensor or a dict where one is rebuilt, else an inert object."""
    if not isinstance(callee, Global):
        return Inert("")
    match callee.name, arguments:
        case "torch._tensor._rebuild_from_type_v2", (
            Global("torch._utils._rebuild_tensor_v2") as rebuild,
            _,
            tuple() as inner,
            *_,
        ):
            return _called(rebuild, inner)
        case "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2", (
            Storage() as storage,
            int(offset),
            tuple(shape),
            tuple(stride),
            *_,
        ):
            return _tensor(storage, offset, shape, stride)
        case "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", (
            StoredTensor() as tensor,
            *_,
        ):
            return tensor
        case "collections.OrderedDict", ():
            return {}
        case "torch.Size", (tuple() as shape,):
            return shape
        case _:
            return Inert(callee.name)


def _tensor(
    storage: Storage, offset: int, shape: tuple[object, ...], stride: tuple[object, ...]
) -> StoredTensor | Inert:
    sizes = tuple(size for size in shape if isinstance(size, int) and size >= 0)
    steps = tuple(step for step in stride if isinstance(step, int) and step >= 0)
    if offset < 0 or len(sizes) != len(shape) or len(steps) != len(stride) or len(sizes) != len(steps):
        raise pickle.UnpicklingError("a tensor has no shape")
    return StoredTensor(storage, offset, sizes, steps)


def _storage(address: object) -> Storage | Inert:
    match address:
        case ("storage", Global(name), str(key), *_) if name.rpartition(".")[2] in STORAGE_DTYPES:
            return Storage(key, STORAGE_DTYPES[name.rpartition(".")[2]])
        case _:
            return Inert("torch.storage")
