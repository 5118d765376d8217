"""Memory and time of the techniques in `modules/memory`: split feed-forward, and gradient checkpointing by strategy.

Run `python -m benchmarks.memory [ROW ...]`; rows that are not named keep what `results/memory.json` has of them. Peaks
are the weights' and inputs' bytes and the most that PyTorch had allocated in addition to them at one time, by its
profiler: on a GPU that is `max_memory_allocated`. Times are seconds of all threads (there: by the card's clock), the
variants of a row taking turns, the model warmed up forwards and backwards. Models have the proportions of the figures'
sources, scaled down so that weights and activations shrink alike; on a GPU they are those of the sources.
Rows that need a card say "not measured" without one.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import print_table, read_result, write_result
from lib_training.checkpointing import ByBudget, Every, Listed, enable_gradient_checkpointing
from lib_training.checkpointing.solving import peak_bytes as peak_bytes_of
from lib_training.checkpointing.solving import solve
from modules.memory.feed_forward import SplitOptions, split_feed_forward
from modules.system.registry import Registry

REPEATS = 5
Row = Callable[[], dict[str, Any]]
ROWS: Registry[Row] = Registry("row")


def peak_of(model: nn.Module, inputs: Iterable[object], run: Callable[[], object]) -> int:
    """Bytes of weights and inputs, and the peak of what `run` allocates, on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    found: Any = profiler.profiler
    now = highest = 0
    for event in sorted(found.kineto_results.events(), key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    resting = [*model.parameters(), *model.buffers(), *(each for each in inputs if isinstance(each, Tensor))]
    return highest + sum(tensor.nbytes for tensor in resting)


class Meter(Protocol):
    """How bytes and seconds are measured where the models of a row compute."""

    @property
    def device(self) -> torch.device: ...

    def peak(self, model: nn.Module, inputs: Iterable[object], run: Callable[[], object]) -> int:
        """Bytes of weights and inputs, and the most that `run` allocates in addition to them."""

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one run."""


class Processor:
    """The profiler, and seconds of all threads."""

    device = torch.device("cpu")

    def peak(self, model: nn.Module, inputs: Iterable[object], run: Callable[[], object]) -> int:
        return peak_of(model, inputs, run)

    def seconds(self, run: Callable[[], object]) -> float:
        began = time.process_time()
        run()
        return time.process_time() - began


def taking_turns(variants: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The quickest run of each variant, in seconds; each is called once before it counts."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(REPEATS + 1):
        for name, run in variants.items():
            seconds = run()
            if repeat:
                times[name].append(seconds)
    return {name: min(found) for name, found in times.items()}


# -- split feed-forward: diffusers pull request 10623, batch 2, 8192 tokens, width 4096, 5 layers; width and tokens / 8


FF_SOURCE = {  # peak / normal, time / normal
    "gelu": (0.85, 1.09),
    "gelu-approximate": (0.85, 0.99),
    "geglu": (0.73, 1.00),
    "geglu-approximate": (0.75, 1.31),
    "swiglu": (0.73, 1.00),
    "linear-silu": (0.85, 1.00),
}
FF_GOALS = {"geglu": (0.55, 1.00), "gelu": (0.70, 1.00)}
FF_WIDTH, FF_TOKENS, FF_LAYERS = 512, 1024, 5
FF_CUTS: dict[str, SplitOptions | None] = {
    "normal": None,
    "4 slices": SplitOptions(num_splits=4),
    "8 slices": SplitOptions(num_splits=8),
    "512 tokens": SplitOptions(token_chunk=512),
    "budget 4 MB": SplitOptions(budget_bytes=4 << 20),
    "budget 1 MB": SplitOptions(budget_bytes=1 << 20),
    "budget 0.5 MB": SplitOptions(budget_bytes=1 << 19),
}


def feed_forwards(act: str, width: int = FF_WIDTH) -> nn.Module:
    """The source's model."""
    from diffusers.models.attention import FeedForward

    torch.manual_seed(0)
    layers = [FeedForward(width, dim_out=width, mult=4, activation_fn=act) for _ in range(FF_LAYERS)]
    return nn.Sequential(*layers).eval()


@ROWS.register("split feed-forward")
def split_rows() -> dict[str, Any]:
    """Ours and the whole side by side, for each activation."""
    return {act: split_row(act, FF_WIDTH, FF_TOKENS, FF_CUTS, Processor()) for act in FF_SOURCE}


@torch.no_grad()
def split_row(
    act: str, width: int, tokens: int, cuts: Mapping[str, SplitOptions | None], meter: Meter
) -> dict[str, Any]:
    """Peak and time of each of `cuts` against "normal", and how far the numbers are apart."""
    model = feed_forwards(act, width).to(meter.device)
    x = torch.randn(2, tokens, width, device=meter.device)
    peaks = {}
    for name, options in cuts.items():
        with split_feed_forward(model, options) if options is not None else nullcontext():
            peaks[name] = meter.peak(model, (x,), lambda: model(x))
    expected, largest = model(x), dict[str, float]()

    def run(name: str, options: SplitOptions | None, measure: Callable[[Callable[[], Tensor]], float]) -> float:
        outputs: list[Tensor] = []

        def keep() -> Tensor:
            outputs[:] = [model(x)]
            return outputs[0]

        with split_feed_forward(model, options) if options is not None else nullcontext():
            found = measure(keep)
        largest[name] = float((outputs[0] - expected).abs().max())
        return found

    seconds = taking_turns({name: partial(run, name, options, meter.seconds) for name, options in cuts.items()})
    result: dict[str, Any] = {
        "source": {"peak": FF_SOURCE[act][0], "time": FF_SOURCE[act][1]},
        "goal": dict(zip(("peak", "time"), FF_GOALS[act], strict=True)) if act in FF_GOALS else None,
        "normal": {"peak_bytes": peaks["normal"], "seconds": seconds["normal"]},
        "ours": {
            name: {
                "peak": peaks[name] / peaks["normal"],
                "time": seconds[name] / seconds["normal"],
                "largest_difference": largest[name],
            }
            for name in cuts
            if name != "normal"
        },
    }
    rows = [(f"{act}, {name}", f"{e['peak']:.2f}", f"{e['time']:.2f}") for name, e in result["ours"].items()]
    print_table((f"split feed-forward, {meter.device}", "peak / normal", "time / normal"), rows)
    return result


# -- gradient checkpointing: diffusers pull request 10611, LTX-Video


CHECKPOINT_SOURCE = {"every": (0.35, 0.81), "every 2nd": (0.66, 0.92), "every 4th": (0.83, 0.99)}  # memory, speed
THEIRS = {"every": 1, "every 2nd": 2, "every 4th": 4}
OURS = ("all", "every 2", "every 4", "all, inputs on disk", "budget 0.8", "budget 0.6", "budget 0.4", "budget 0.25")


def ltx() -> tuple[nn.Module, dict[str, Any]]:
    """LTX-Video's transformer with 6 layers of width 512, and 768 tokens: 28 M parameters."""
    from diffusers import LTXVideoTransformer3DModel

    torch.manual_seed(0)
    model: nn.Module = LTXVideoTransformer3DModel(
        in_channels=32,
        out_channels=32,
        num_attention_heads=8,
        attention_head_dim=64,
        cross_attention_dim=512,
        caption_channels=256,
        num_layers=6,
    )
    inputs = {
        "hidden_states": torch.randn(1, 2 * 16 * 24, 32),
        "encoder_hidden_states": torch.randn(1, 32, 256),
        "timestep": torch.full((1,), 500),
        "encoder_attention_mask": torch.ones(1, 32),
        "num_frames": 2,
        "height": 16,
        "width": 24,
        "return_dict": False,
    }
    return model, inputs


def unet() -> tuple[nn.Module, dict[str, Any]]:
    """A UNet of Stable Diffusion's kind: blocks of unequal cost, 48 x 48 latents."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    model: nn.Module = UNet2DConditionModel(
        block_out_channels=(64, 128, 256, 256), cross_attention_dim=256, attention_head_dim=8
    )
    inputs = {
        "sample": torch.randn(1, 4, 48, 48),
        "timestep": torch.full((1,), 500),
        "encoder_hidden_states": torch.randn(1, 77, 256),
        "return_dict": False,
    }
    return model, inputs


MODELS = {"ltx": ltx, "unet": unet}


def applied(model: Any, how: str, name: str, chosen: Sequence[int], folder: Path) -> Callable[[], None]:
    """Turn one variant on; what is returned turns it off.

    `how`: "theirs" (diffusers' own) or "ours". `chosen`: what a budget's plan is, so that it is measured once.
    """
    if how == "none":
        return lambda: None
    if how == "theirs":
        n = THEIRS[name]
        units = [m for m in model.modules() if type(m).__name__ in ("LTXVideoTransformerBlock", *UNET_UNITS)]
        for index, unit in enumerate(units):
            unit.layer_index = index

        def by_index(unit: Any, *args: Any) -> Any:
            if getattr(unit, "layer_index", 0) % n == 0:
                return torch.utils.checkpoint.checkpoint(unit.__call__, *args, use_reentrant=False)
            return unit(*args)

        model.enable_gradient_checkpointing(by_index)
        off: Callable[[], None] = model.disable_gradient_checkpointing
        return off
    if name.startswith("budget"):
        return enable_gradient_checkpointing(model, Listed(chosen), blocks=_fine(model)).close
    if name == "all, inputs on disk":
        return enable_gradient_checkpointing(model, "all", offload=folder).close
    return enable_gradient_checkpointing(model, Every({"all": 1, "every 2": 2, "every 4": 4}[name])).close


UNET_UNITS = ("ResnetBlock2D", "Transformer2DModel")
FINE = ("LTXAttention", "Attention", "FeedForward", "ResnetBlock2D")


def _fine(model: nn.Module) -> Sequence[str]:
    """Attention, feed-forward and residual parts: a budget has more to choose from than among whole blocks."""
    return [name for name, module in model.named_modules() if type(module).__name__ in FINE]


def step(model: nn.Module, inputs: dict[str, Any], meter: Meter) -> float:
    """Seconds of one forward and backward pass."""
    seconds = meter.seconds(lambda: model(**inputs)[0].mean().backward())
    model.zero_grad(set_to_none=True)
    return seconds


def budget_plans(model: nn.Module, inputs: dict[str, Any]) -> dict[str, list[int]]:
    """For each budget, given as a share of what all parts keep at most, the parts that are computed again."""
    plans = {}
    with enable_gradient_checkpointing(model, ByBudget(1 << 62), blocks=_fine(model)) as handle:
        model(**inputs)
        order, costs = list(handle.costs), list(handle.costs.values())
    for name in OURS:
        if name.startswith("budget"):
            budget = int(float(name.split()[1]) * peak_bytes_of(costs, frozenset()))
            plans[name] = [order[index] for index in solve(costs, budget)]
    return plans


def checkpointing_row(which: str, meter: Meter) -> dict[str, Any]:
    """Memory and speed against none, and how far above the line through diffusers' points."""
    model, inputs = MODELS[which]()
    plans = budget_plans(model, inputs)
    variants = [("none", "none"), *(("theirs", name) for name in THEIRS), *(("ours", name) for name in OURS)]
    with tempfile.TemporaryDirectory() as folder:

        def timed(how: str, name: str) -> Callable[[], float]:
            def run() -> float:
                off = applied(model, how, name, plans.get(name, []), Path(folder))
                try:
                    return step(model, inputs, meter)
                finally:
                    off()

            return run

        peaks = {}
        for how, name in variants:
            off = applied(model, how, name, plans.get(name, []), Path(folder))
            step(model, inputs, meter)
            peaks[f"{how} {name}"] = meter.peak(model, inputs.values(), lambda: step(model, inputs, meter))
            off()
        seconds = taking_turns({f"{how} {name}": timed(how, name) for how, name in variants})
    none_peak, none_seconds = peaks["none none"], seconds["none none"]
    points = {key: (peaks[key] / none_peak, none_seconds / seconds[key]) for key in peaks}
    line = [*sorted(points[f"theirs {name}"] for name in THEIRS), (1.0, 1.0)]
    found: dict[str, Any] = {
        "source": None if which == "unet" else CHECKPOINT_SOURCE,
        "none": {"peak_bytes": none_peak, "seconds": none_seconds},
    }
    for key in points:
        memory, speed = points[key]
        entry: dict[str, Any] = {"memory": memory, "speed": speed}
        if key.startswith("ours"):
            entry["dominated_by_theirs"] = any(m < memory and s > speed for m, s in line)
            on_line = interpolated(line, memory)
            entry["above_the_line"] = None if on_line is None else speed - on_line
        found[key] = entry
    print_table(
        (f"checkpointing, {which}", "memory", "speed", "above the line"),
        [
            (key, f"{memory:.2f}", f"{speed:.2f}", found[key].get("above_the_line") or "")
            for key, (memory, speed) in points.items()
        ],
    )
    return found


def interpolated(line: Sequence[tuple[float, float]], memory: float) -> float | None:
    """Speed on the line through these points (memory, speed) at that memory; None outside of it."""
    for (m0, s0), (m1, s1) in pairwise(line):
        if m0 <= memory <= m1 and m1 > m0:
            return s0 + (s1 - s0) * (memory - m0) / (m1 - m0)
    return None


@ROWS.register("checkpointing, LTX-Video")
def ltx_row() -> dict[str, Any]:
    """Equal blocks."""
    return checkpointing_row("ltx", Processor())


@ROWS.register("checkpointing, UNet")
def unet_row() -> dict[str, Any]:
    """Unequal blocks."""
    return checkpointing_row("unet", Processor())


# -- the sources' own shapes, where there is a card --------------------------------------------------------------------


NOT_MEASURED = "not measured"
CARD_FF = (4096, 8192)  # width, and tokens of each of a batch of 2; float32 as in the source
CARD_CUTS: dict[str, SplitOptions | None] = {
    "normal": None,
    "4 slices": SplitOptions(num_splits=4),
    "8 slices": SplitOptions(num_splits=8),
    "2048 tokens": SplitOptions(token_chunk=2048),
    "budget 512 MB": SplitOptions(budget_bytes=512 << 20),
    "budget 128 MB": SplitOptions(budget_bytes=128 << 20),
}


class Card:
    """PyTorch's allocator, and the card's own clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def peak(self, model: nn.Module, inputs: Iterable[object], run: Callable[[], object]) -> int:
        """With everything that lies on the card: nothing else should."""
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)

    def seconds(self, run: Callable[[], object]) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize(self.device)
        return float(began.elapsed_time(ended)) / 1000


def ltx_on_gpu() -> tuple[nn.Module, dict[str, Any]]:
    """LTX-Video's transformer as it is (random weights, bf16) and 81 frames of 768 x 512."""
    from diffusers import LTXVideoTransformer3DModel

    device, dtype = torch.device("cuda"), torch.bfloat16
    with torch.device("meta"):
        empty: nn.Module = LTXVideoTransformer3DModel()
    model = empty.to(dtype).to_empty(device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    config: Any = model.config
    frames, height, width, words = 11, 16, 24, 128
    inputs = {
        "hidden_states": torch.randn(1, frames * height * width, config.in_channels, device=device, dtype=dtype),
        "encoder_hidden_states": torch.randn(1, words, config.caption_channels, device=device, dtype=dtype),
        "timestep": torch.full((1,), 500, device=device),
        "encoder_attention_mask": torch.ones(1, words, device=device, dtype=torch.bool),
        "num_frames": frames,
        "height": height,
        "width": width,
        "return_dict": False,
    }
    return model, inputs


MODELS["ltx on a card"] = ltx_on_gpu


@ROWS.register("split feed-forward, on a GPU")
def split_gpu() -> dict[str, Any]:
    """The source's shapes: batch 2, 8192 tokens, width 4096, 5 layers."""
    if not torch.cuda.is_available():
        return {"split feed-forward": NOT_MEASURED}
    return {act: split_row(act, *CARD_FF, CARD_CUTS, Card(torch.device("cuda"))) for act in FF_SOURCE}


@ROWS.register("checkpointing, on a GPU")
def checkpointing_gpu() -> dict[str, Any]:
    """The source's model and shapes."""
    if not torch.cuda.is_available():
        return {"checkpointing": NOT_MEASURED}
    return checkpointing_row("ltx on a card", Card(torch.device("cuda")))


@ROWS.register("streaming, on a GPU")
def streaming_gpu() -> dict[str, Any]:
    """A step bound by transfer in 8 against 16 bits, and from disk against from main memory: Stable Diffusion 1."""
    if not torch.cuda.is_available():
        return dict.fromkeys(("fp8", "disk", "disk memory"), NOT_MEASURED)
    from benchmarks.full_size import write_full_size_checkpoint
    from benchmarks.streaming import on_gpu

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.safetensors"
        write_full_size_checkpoint(path)
        return on_gpu(path, torch.device("cuda"))


def main() -> None:
    """Measure the rows that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of: {', '.join(ROWS)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.rows or ROWS:
        row = ROWS.get(name)()
        known = read_result("memory").get("rows", {})
        write_result("memory", {"rows": {**known, ROWS.canonical(name): row}})


if __name__ == "__main__":
    main()
