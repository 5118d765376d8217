"""A denoiser's calls recorded once as a graph of the GPU's (CUDA graphs) and replayed, so that nothing has to send its
kernels one by one.

A fast GPU is done with a small model's kernel before the next one is sent: it waits for Python. A replay sends all of
them at once. It does exactly what was recorded, on the memory that was recorded; so a graph is used only where all of
this holds, and everything else is computed as it is:

- no hooks are registered on the model but those that compute the same in another way (`HookOrder.COMPUTE`), and its
  weights, in memory on the device, stay in their places;
- while the call was watched, it drew no random numbers, read no tensor of the CPU and no value of the GPU;
- for two calls with different inputs the replay gave the same numbers as the model, to the bit.

In *Automatic* a graph is recorded only where a call was seen to be bound by sending kernels, and where memory is left.
Source for the technique: NVIDIA's CUDA programming guide, CUDA graphs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from modules.memory.hook_chain import HookOrder, has_foreign_forward, hooks_of
from modules.memory.layer import STATE, Stored
from modules.memory.recovery import is_out_of_memory
from modules.system.devices import Moment, Recorder, read_device

log = logging.getLogger(__name__)

Call = Callable[[Sequence[Tensor]], Tensor]
MAX_GRAPHS = 4
"""Kinds of inputs that are remembered: prompt and negative prompt may come apart, and hires fix has another size."""
BUSY = 1.15
"""Times as long as the CPU took to send a call: where the GPU takes longer, it did not wait for the CPU."""
SPARE_SHARE, SPARE_BYTES = 0.2, 2 << 30
"""Of the device, that must be unused before a graph is recorded, which keeps the memory of one call for itself."""
LEFT_BYTES = 1 << 30
"""Of the device, that must be unused after it."""
FOREIGN = "a hook changes a layer"
_DROPOUT = torch.ops.aten.dropout.default


class GraphMode(Enum):
    """When graphs are recorded."""

    OFF = "Off"
    AUTOMATIC = "Automatic"
    ON = "On"


class Phase(Enum):
    """The action of the next call with one key."""

    BEGIN = "computes, so that libraries have made their choices"
    TIME = "computes, and is timed"
    RECORD = "computes, is recorded, and the two are compared"
    CHECK = "computes, is replayed, and the two are compared"
    REPLAY = "is replayed"
    WAIT = "computes, and is looked at again in the next job"
    PLAIN = "computes"


@dataclass(frozen=True)
class Computation:
    """The things that a call depends on besides its inputs: `facts` are equal if it is the same. `objects` are kept, so
    that no other can get the identity of one."""

    facts: tuple[Hashable, ...]
    objects: tuple[object, ...] = field(compare=False, repr=False)


@dataclass
class Recorded:
    """Calls with inputs of one kind. `computation`: what they depend on besides."""

    computation: Computation
    phase: Phase = Phase.BEGIN
    inputs: list[Tensor] = field(default_factory=list)
    output: Tensor | None = None
    replay: Callable[[], None] | None = None
    timing: tuple[Moment, Moment, float] | None = None  # on the GPU before and after, and the seconds of sending


class DenoiserGraphs:
    """The graphs of one denoiser. Used by one thread at a time."""

    def __init__(self, recorder: Recorder | None, device: torch.device) -> None:
        """`recorder` None: the device has no graphs."""
        self.replays = 0
        """In this job, or the last one. The allocator does not count what a call takes that is replayed."""
        self._recorder = recorder
        self._device = device
        self._mode = GraphMode.OFF
        self._kinds: dict[Hashable, Recorded] = {}
        self._tell: Callable[[str], None] = log.info

    @property
    def can_record(self) -> bool:
        """Whether the device has graphs."""
        return self._recorder is not None

    def begin_job(self, mode: GraphMode, tell: Callable[[str], None] = log.info) -> None:
        """Set what holds for the calls from now on. Graphs of the job before are used again where nothing has changed.
        With `GraphMode.ON`, `tell` gets one sentence where calls are not recorded."""
        self._mode, self._tell = mode, tell if mode is GraphMode.ON else log.info
        self.replays = 0
        if mode is GraphMode.OFF:
            self.drop()
        for known in self._kinds.values():
            known.phase = Phase.BEGIN if known.phase is Phase.WAIT else known.phase

    def end_job(self) -> None:
        """Record and replay no more; what was recorded stays."""
        self._mode, self._tell = GraphMode.OFF, log.info

    def drop(self) -> None:
        """Let go of all graphs and their memory."""
        self._kinds.clear()

    def pause(self) -> None:
        """Drop all graphs, and record none in the rest of this job: memory has run out."""
        self.drop()
        self._mode = GraphMode.OFF

    @property
    def is_on(self) -> bool:
        """Whether calls of this job may be recorded."""
        return self._mode is not GraphMode.OFF and self._recorder is not None

    def run(self, module: nn.Module, call: Call, inputs: Sequence[Tensor], kind: Hashable) -> Tensor:
        """Return what `call(inputs)` gives. The call computes by `module`, whose weights are on the device; `kind` is
        all that it depends on besides, apart from the shapes and dtypes of the inputs."""
        if not self.is_on or self._recorder is None or torch.is_grad_enabled():
            return call(inputs)
        computation = computation_of(module)
        if isinstance(computation, str):
            self._say(computation)
            return call(inputs)
        key = (
            kind,
            torch.is_inference_mode_enabled(),
            tuple((tensor.shape, tensor.dtype, tensor.stride()) for tensor in inputs),
        )
        known = self._kinds.pop(key, None)
        if known is None or known.computation != computation:
            known = Recorded(computation)
        self._kinds[key] = known  # the last used is the last
        while len(self._kinds) > MAX_GRAPHS:
            del self._kinds[next(iter(self._kinds))]
        return self._next(known, call, inputs, self._recorder)

    def _next(self, known: Recorded, call: Call, inputs: Sequence[Tensor], recorder: Recorder) -> Tensor:
        if known.phase is Phase.TIME:
            return self._time(known, call, inputs, recorder)
        if known.phase is Phase.RECORD and self._is_worth_it(known):
            return self._record(known, call, inputs, recorder)
        if known.phase is Phase.CHECK:
            return self._check(known, call(inputs), inputs, Phase.REPLAY)
        if known.phase is Phase.REPLAY:
            self.replays += 1
            return _replayed(known, inputs).clone()
        if known.phase is Phase.BEGIN:
            known.phase = Phase.RECORD if self._mode is GraphMode.ON else Phase.TIME
        return call(inputs)

    def _time(self, known: Recorded, call: Call, inputs: Sequence[Tensor], recorder: Recorder) -> Tensor:
        before, began = recorder.moment(), time.perf_counter()
        output = call(inputs)
        sent = time.perf_counter() - began
        known.timing, known.phase = (before, recorder.moment(), sent), Phase.RECORD
        return output

    def _is_worth_it(self, known: Recorded) -> bool:
        """Whether to record; else calls of this kind stay as they are."""
        if self._mode is GraphMode.ON:
            return True
        before, after, sent = known.timing or (None, None, 0.0)
        took = None if before is None or after is None else after.seconds_since(before)
        known.timing = None
        if took is None or took > BUSY * sent:
            return self._leave(known, "the GPU is not kept waiting", Phase.WAIT)
        now = read_device(self._device)
        if now is not None:
            unused = now.free + now.reserved - now.allocated
            if unused < max(SPARE_BYTES, SPARE_SHARE * now.total):
                return self._leave(known, "too little memory is unused", Phase.WAIT)
        return True

    def _leave(self, known: Recorded, problem: str, phase: Phase = Phase.PLAIN) -> bool:
        known.phase = phase
        known.replay, known.output, known.inputs = None, None, []
        self._say(problem)
        return False

    def _say(self, problem: str) -> None:
        self._tell(f"CUDA graphs have no effect on calls of the model: {problem}.")

    def _record(self, known: Recorded, call: Call, inputs: Sequence[Tensor], recorder: Recorder) -> Tensor:
        known.inputs = [tensor.clone() for tensor in inputs]
        watch = _Watch(self._device)
        with watch:
            output = call(known.inputs)
        if watch.problem is not None:
            self._leave(known, watch.problem)
            return output
        try:
            known.replay, known.output = recorder.record(lambda: call(known.inputs))
        except RuntimeError as error:
            self._leave(known, str(error).strip().partition("\n")[0][:200] or type(error).__name__)
            if is_out_of_memory(error):
                self.pause()
            return output
        now = read_device(self._device)
        if self._mode is GraphMode.AUTOMATIC and now is not None and now.free < LEFT_BYTES:
            self.pause()
            return output
        return self._check(known, output, inputs, Phase.CHECK)

    def _check(self, known: Recorded, output: Tensor, inputs: Sequence[Tensor], then: Phase) -> Tensor:
        """Replay, and go on with phase `then` where that gives the same as the model did, `output`."""
        if torch.equal(_replayed(known, inputs), output):
            known.phase = then
        else:
            self._leave(known, "a recorded call gave other numbers")
        return output


def _replayed(known: Recorded, inputs: Sequence[Tensor]) -> Tensor:
    """The output of a replay, which the next one overwrites."""
    assert known.replay is not None and known.output is not None
    for own, given in zip(known.inputs, inputs, strict=True):
        own.copy_(given)
    known.replay()
    return known.output


# -- what may be recorded ----------------------------------------------------------------------------------------------


def computation_of(module: nn.Module) -> Computation | str:
    """Where the weights of `module` and of its adapters lie, and how it computes. Or, where that is not all that a call
    depends on, a few words why. It is asked before each call: 2 us for each of its modules."""
    facts: list[Hashable] = []
    objects: list[object] = []
    note = facts.append
    left = [module]
    while left:
        own = left.pop().__dict__
        left.extend(child for child in own["_modules"].values() if child is not None)
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return FOREIGN
        if "forward" in own:
            if isinstance(found := _chain_facts(own["forward"]), str):
                return found
            for hook in found:
                computes = getattr(hook, "computes", None)
                note(computes)
                objects.append(hook if computes is None else None)
        if "processor" in own:
            processor = own["processor"]
            if not _is_pure(processor):
                return "a script or an extension computes attention"
            objects.append(processor)
            note(str(getattr(processor, "_attention_backend", "")))
        if "padding_mode" in own:
            note(own["padding_mode"])
        for tensors in (own["_parameters"], own["_buffers"]):
            for tensor in tensors.values():
                if tensor is not None:
                    note(tensor.data_ptr())
                    note(tensor.dtype)
        state: Stored | None = own.get(STATE)
        if state is not None:
            problem = _state_problem(state)
            if problem is not None:
                return problem
            note(state.compute_dtype)
            note(state.cast_inputs)
            objects.append(state.product)
            if state.branches is not None:
                facts.extend(tensor.data_ptr() for tensor in state.branches.tensors() or ())
    facts.extend(map(id, objects))
    return Computation(tuple(facts), tuple(objects))


def _chain_facts(forward: object) -> list[object] | str:
    """The hooks around a module's forward, or why it cannot be known what they do."""
    module = getattr(forward, "module", None)
    handles = hooks_of(module) if isinstance(module, nn.Module) else []
    if not handles or module is None or has_foreign_forward(module):
        return FOREIGN
    if any(handle.order is not HookOrder.COMPUTE for handle in handles):
        return "a script, an extension or token merging changes a layer"
    return [handle.hook for handle in handles]


def _state_problem(state: Stored) -> str | None:
    if state.fetch is not None:
        return "the weights are streamed"
    if state.changes or (state.branches is not None and state.branches.tensors() is None):
        return "an adapter changes weights while they are used"
    return None


def _is_pure(processor: object) -> bool:
    """Whether attention is computed from its inputs and the layer's weights alone."""
    kind = type(processor)
    return bool(getattr(kind, "is_pure", False)) or (
        kind.__module__.startswith("diffusers.models.") and "IPAdapter" not in kind.__name__
    )


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation of a call. `problem`: the first that a recording would not repeat."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problem: str | None = None
        self._type = device.type

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.problem is None:
            given = (*_tensors(args), *_tensors((kwargs or {}).values()))
            self.problem = self._problem_of(func, args, given, result)
        return result

    def _problem_of(self, func: Any, args: Any, given: Sequence[Tensor], result: Any) -> str | None:
        is_off = "attention" in str(func) or (func is _DROPOUT and not args[2])  # they could draw, in training
        if torch.Tag.nondeterministic_seeded in func.tags and not is_off:
            return f"{func} draws random numbers"
        if torch.Tag.data_dependent_output in func.tags or (
            torch.Tag.dynamic_output_shape in func.tags
            and (func is not torch.ops.aten.index.Tensor or any(tensor.dtype == torch.bool for tensor in given[1:]))
        ):
            return f"{func} depends on the numbers of the call"
        if any(tensor.device.type != self._type for tensor in (*given, *_tensors((result,)))):
            return f"{func} works on tensors of another device"
        return None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
