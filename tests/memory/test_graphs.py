"""Calls that are recorded and replayed: the same numbers, and only where nothing else can have an effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.adapters.applying import add_branches
from modules.memory import graphs as graphs_module
from modules.memory.changes import Budget, SideBranch
from modules.memory.formats.format import FORMATS
from modules.memory.graphs import DenoiserGraphs, GraphMode
from modules.memory.hook_chain import HookOrder, register_hook
from modules.memory.layer import manage, put, stored_state
from modules.system.devices import DeviceReading, recorder_of
from tests.memory.recording import LogRecorder

CPU = torch.device("cpu")


class Denoiser(nn.Module):
    """Linear layers, of which the first may be stored in 8 bits."""

    def __init__(self, storage: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.requires_grad_(False)
        self.calls = 0
        if storage is not None:
            encoded = FORMATS.get(storage).encode(self.first.weight)
            put(self.first, "weight", encoded.data, encoded.scale)
            manage(self.first, {"weight": FORMATS.get(storage)}, torch.float32)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        output: Tensor = self.second(torch.tanh(self.first(x)) * t[:, None])
        return output


class Run:
    """A denoiser with its graphs; each call has inputs of its own."""

    def __init__(
        self, denoiser: nn.Module | None = None, mode: GraphMode = GraphMode.ON, recorder: LogRecorder | None = None
    ) -> None:
        self.denoiser = denoiser or Denoiser()
        self.recorder = recorder or LogRecorder()
        self.told: list[str] = []
        self.graphs = DenoiserGraphs(self.recorder, CPU)
        self.graphs.begin_job(mode, self.told.append)
        self.generator = torch.Generator().manual_seed(1)

    def inputs(self, rows: int = 2) -> list[Tensor]:
        return [torch.randn(rows, 8, generator=self.generator), torch.rand(rows, generator=self.generator)]

    def call(self, tensors: Sequence[Tensor]) -> Tensor:
        output: Tensor = self.denoiser(*tensors)
        return output

    @torch.inference_mode()
    def make(self, times: int = 1, rows: int = 2, kind: str = "") -> None:
        """Calls, each of which gives what the model gives, to the bit."""
        for _ in range(times):
            inputs = self.inputs(rows)
            given = [tensor.clone() for tensor in inputs]
            found = self.graphs.run(self.denoiser, self.call, inputs, kind)
            assert torch.equal(found, self.call(given))
            assert all(torch.equal(own, before) for own, before in zip(inputs, given, strict=True))


@pytest.mark.parametrize("storage", [None, "fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row"])
def test_replays_give_what_the_model_gives(storage: str | None) -> None:
    run = Run(Denoiser(storage))
    run.make(8)
    assert run.recorder.recorded == 1
    assert run.graphs.replays == 5  # after the first call, the recorded one and the one that was compared
    assert not run.told


def test_results_stay_when_the_next_call_is_replayed() -> None:
    run = Run()
    run.make(4)
    with torch.inference_mode():
        first, second = (run.graphs.run(run.denoiser, run.call, run.inputs(), "") for _ in range(2))
    assert not torch.equal(first, second)


def test_sizes_and_kinds_have_graphs_of_their_own() -> None:
    run = Run()
    for _ in range(5):
        run.make(rows=2)
        run.make(rows=3)
        run.make(rows=3, kind="with a mask")
    assert run.recorder.recorded == 3 and run.graphs.replays == 6


def test_only_a_few_kinds_are_kept() -> None:
    run = Run()
    for _ in range(3):
        for rows in range(1, graphs_module.MAX_GRAPHS + 2):
            run.make(rows=rows)
    assert run.recorder.recorded == 0  # each is forgotten before it comes again


def test_other_weights_are_recorded_again() -> None:
    run = Run()
    run.make(4)
    assert run.graphs.replays == 1
    run.denoiser.second.weight = nn.Parameter(torch.randn(8, 16), requires_grad=False)  # type: ignore[union-attr]
    run.make(4)
    assert run.recorder.recorded == 2 and run.graphs.replays == 2


def test_weights_changed_in_place_are_seen() -> None:
    run = Run()
    run.make(4)
    run.denoiser.second.weight.mul_(2)  # type: ignore[union-attr,operator]
    run.make(2)
    assert run.recorder.recorded == 1 and run.graphs.replays == 3


def test_side_branches_are_recorded_with_the_layer() -> None:
    denoiser = Denoiser("fp8_e4m3fn_row")

    class Change:
        sum_dtype = None

        def branch(self) -> SideBranch:
            return SideBranch(torch.ones(2, 8), torch.ones(16, 2), None, 0.5)

        def weight_delta(self, weight: Tensor) -> Tensor | None:
            return None

        def bias_delta(self, bias: Tensor | None) -> Tensor | None:
            return None

    run = Run(denoiser)
    run.make(4)
    add_branches(denoiser.first, [Change()], Budget(0), CPU)
    run.make(4)
    assert run.recorder.recorded == 2 and run.graphs.replays == 2 and not run.told
    state = stored_state(denoiser.first)
    assert state is not None
    state.branches = None
    run.make(1)
    assert run.graphs.replays == 2


def around(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return inner(*args, **kwargs) + 1


def test_nothing_is_recorded_with_a_script_around_a_layer() -> None:
    run = Run()
    run.make(4)
    handle = register_hook(run.denoiser.first, around, HookOrder.ADAPTER)  # type: ignore[arg-type]
    run.make(3)
    assert run.graphs.replays == 1
    assert run.told and "changes a layer" in run.told[0]
    handle.remove()
    run.make(1)
    assert run.graphs.replays == 2


def test_nothing_is_recorded_with_a_hook_or_a_forward_of_somebody_else() -> None:
    run = Run()
    handle = run.denoiser.first.register_forward_hook(lambda *args: None)  # type: ignore[union-attr]
    run.make(4)
    handle.remove()
    run.denoiser.first.forward = run.denoiser.first.forward  # type: ignore[union-attr]
    run.make(4)
    assert run.recorder.recorded == 0 and "changes a layer" in run.told[0]


def test_what_computes_the_same_in_another_way_is_recorded() -> None:
    run = Run()

    def same(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    register_hook(run.denoiser.first, same, HookOrder.COMPUTE)  # type: ignore[arg-type]
    run.make(4)
    assert run.graphs.replays == 1


class Named:
    """A hook that computes the same in another way, and says so."""

    def __init__(self, computes: str) -> None:
        self.computes = computes

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)


def test_a_hook_of_the_next_job_that_computes_alike_is_the_same() -> None:
    run = Run()
    for recorded, computes in enumerate(("one", "one", "another")):
        handle = register_hook(run.denoiser.first, Named(computes), HookOrder.COMPUTE)  # type: ignore[arg-type]
        run.make(4)
        handle.remove()
        assert run.recorder.recorded == max(1, recorded)


def test_attention_of_somebody_else_is_not_recorded() -> None:
    run = Run()
    setattr(run.denoiser, "processor", object())  # noqa: B010
    run.make(4)
    assert run.recorder.recorded == 0 and "attention" in run.told[0]


class Unrepeatable(Denoiser):
    """Adds what a replay would not see change."""

    def __init__(self, added: Callable[[Tensor], Tensor | float]) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return super().forward(x, t) + self.added(x)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        (lambda x: torch.rand_like(x) * 0, "draws random numbers"),
        (lambda x: float(x[0, 0]), "depends on the numbers"),
        (lambda x: x[x > 0].sum(), "depends on the numbers"),
    ],
)
def test_what_a_replay_would_not_see_is_found(added: Callable[[Tensor], Tensor | float], reason: str) -> None:
    run = Run(Unrepeatable(added))
    run.make(5)
    assert run.recorder.recorded == 0 and reason in run.told[0]


def test_a_call_that_differs_from_its_recording_is_no_longer_replayed() -> None:
    steps = iter(range(100))
    denoiser = Denoiser()
    run = Run(denoiser)

    def call(tensors: Sequence[Tensor]) -> Tensor:
        output: Tensor = denoiser(*tensors) + next(steps)  # a number of Python's, which a graph keeps as it was
        return output

    with torch.inference_mode():
        for _ in range(5):
            run.graphs.run(denoiser, call, run.inputs(), "")
    assert run.graphs.replays == 0 and "other numbers" in run.told[0]


def test_automatic_records_where_the_device_was_kept_waiting() -> None:
    run = Run(mode=GraphMode.AUTOMATIC)
    run.make(6)
    assert run.recorder.recorded == 1 and run.graphs.replays == 2


@pytest.mark.parametrize("took", [2.0, None])
def test_automatic_leaves_a_busy_device_alone(took: float | None) -> None:
    run = Run(mode=GraphMode.AUTOMATIC, recorder=LogRecorder(took))
    run.make(6)
    assert run.recorder.recorded == 0 and not run.told  # nobody has asked for it


def test_a_device_that_was_busy_is_looked_at_again_in_the_next_job() -> None:
    recorder = LogRecorder(2.0)
    run = Run(mode=GraphMode.AUTOMATIC, recorder=recorder)
    run.make(6)
    recorder.took = 1.0
    run.make(6)
    assert recorder.recorded == 0
    run.graphs.begin_job(GraphMode.AUTOMATIC)
    run.make(6)
    assert recorder.recorded == 1


@pytest.mark.parametrize(("free", "recorded"), [(8 << 30, 1), (1 << 30, 0)])
def test_automatic_wants_memory_left(free: int, recorded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = DeviceReading(free, 16 << 30, 0, 0, 0)
    monkeypatch.setattr(graphs_module, "read_device", lambda device: reading)
    run = Run(mode=GraphMode.AUTOMATIC)
    run.make(6)
    assert run.recorder.recorded == recorded


def test_what_cannot_be_recorded_is_computed() -> None:
    recorder = LogRecorder()
    recorder.fails = RuntimeError("operation not permitted when stream is capturing\nand more")
    run = Run(recorder=recorder)
    run.make(5)
    assert run.told == [
        "CUDA graphs have no effect on calls of the model: operation not permitted when stream is capturing."
    ]


def test_where_memory_runs_out_none_is_recorded_in_this_job() -> None:
    recorder = LogRecorder()
    recorder.fails = torch.OutOfMemoryError("CUDA out of memory.")
    run = Run(recorder=recorder)
    run.make(3)
    recorder.fails = None
    run.make(5)
    assert recorder.recorded == 0
    run.graphs.begin_job(GraphMode.ON)
    run.make(5)
    assert recorder.recorded == 1


def test_the_next_job_goes_on_and_off_lets_go() -> None:
    run = Run()
    run.make(4)
    run.graphs.end_job()
    run.make(2)
    assert run.graphs.replays == 1
    run.graphs.begin_job(GraphMode.AUTOMATIC)
    run.make(2)
    assert run.recorder.recorded == 1 and run.graphs.replays == 2
    run.graphs.begin_job(GraphMode.OFF)
    run.graphs.begin_job(GraphMode.ON)
    run.make(4)
    assert run.recorder.recorded == 2


def test_gradients_are_left_alone() -> None:
    run = Run()
    run.graphs.run(run.denoiser, run.call, run.inputs(), "")
    run.graphs.run(run.denoiser, run.call, run.inputs(), "")
    assert run.recorder.recorded == 0


def test_the_cpu_records_nothing() -> None:
    assert recorder_of(CPU) is None
    graphs = DenoiserGraphs(None, CPU)
    graphs.begin_job(GraphMode.ON)
    assert not graphs.can_record and not graphs.is_on


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("storage", [None, "fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row"])
def test_on_a_card_replays_give_what_the_model_gives(storage: str | None) -> None:
    gpu = torch.device("cuda")
    denoiser = Denoiser(storage).to(gpu)
    graphs = DenoiserGraphs(recorder_of(gpu), gpu)
    graphs.begin_job(GraphMode.ON)
    generator = torch.Generator(gpu).manual_seed(0)

    def call(tensors: Sequence[Tensor]) -> Tensor:
        output: Tensor = denoiser(*tensors)
        return output

    with torch.inference_mode():
        for _ in range(8):
            inputs = [
                torch.randn(2, 8, generator=generator, device=gpu),
                torch.rand(2, generator=generator, device=gpu),
            ]
            assert torch.equal(graphs.run(denoiser, call, inputs, ""), call(inputs))
    assert graphs.replays == 5
