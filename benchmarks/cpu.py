"""What int8 products and forecast steps are worth on a CPU: steps, memory, decoding and images against the peers.

Run `python -m benchmarks.cpu [--part layers kernels attention compile steps profile memory decode images]
[--family sd1 sdxl zimage klein] [--quick]`; it writes `results/cpu.json`. Steps are those of full-size UNets with
random weights and guidance (two images), at 512 px; all take turns, and a ratio is that of the shortest times. Images
are the bundled model's: how far they are from those in fp32, and whether the asked colors are seen where fp32 has them.
Z-Image and FLUX.2 klein have steps alone (of one image, CPU seconds), and where they go (profile); diffusers' class has
blocks that share their weights, so that it fits (`benchmarks.full_size_parts`). OpenVINO is measured where
`openvino` (and `nncf`) are installed, see `benchmarks/requirements.txt`. `--quick` does all of it at a small size, to
see that it runs.

All parts together take long: each can run by itself (`--part`, `--family`, `--way`, `--rounds`), and what it finds goes
into the results of the others. `--keep FOLDER` keeps the full-size checkpoints for the next part. Images end after
`--minutes`; the next run goes on with the prompts that are left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel

from benchmarks import full_size_parts
from benchmarks.full_size import CPU, FAMILIES, ROOT, load_through_program, use_every_page, write_full_size_checkpoint
from benchmarks.report import machine, print_table, read_result, write_result
from benchmarks.step_profile import shares
from benchmarks.turbo import measure_turbo
from lib_workbench.comparison.compare import psnr_db
from modules.memory import int8_matmul
from modules.memory.attention import ATTENTIONS, AttentionOptions
from modules.memory.compiling import CompiledBlocks
from modules.memory.formats.convrot import ROTATED as ROTATED_ROWS
from modules.memory.formats.format import FORMATS
from modules.memory.formats.rotation import can_rotate
from modules.memory.int8_matmul import multiply_in_int8, share_inputs
from modules.memory.int8_support import Int8Support, measure
from modules.memory.kernels import product_support
from modules.memory.kernels.row_support import llvm_problem
from modules.memory.kernels.support import attention_problem
from modules.memory.layer import manage, put
from modules.memory.streaming.groups import Level
from modules.models.autoencoders.kl import KlAutoencoder, build_kl
from modules.models.autoencoders.running import VaeRunner
from modules.models.families.architecture import read_architecture
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.meta_model import MetaModel
from modules.models.loading.precision import ComputeMode
from modules.models.loading.stream_layout import StreamLayout
from modules.processing.engine.attention import using_attention
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from recipes.scenes.images import draw
from recipes.scenes.layout import SIZE_PX, random_scene
from recipes.scenes.scoring import background_color, color_prompts, shape_color

PARTS = ("layers", "kernels", "attention", "compile", "steps", "profile", "memory", "decode", "turbo", "images")
SIDE, QUICK_SIDE = 64, 16
DECODED_SIDES = (32, 64)
ROUNDS, QUICK_ROUNDS = 3, 1
PROMPTS, QUICK_PROMPTS = 96, 2
ATTENTION_PROMPTS = 6
DENOISING_STEPS = 20
GOALS = {
    "int8 matmul / diffusers fp32": 0.50,
    "int8 matmul / diffusers bf16": 0.2,
    "int8 matmul / OpenVINO fp32": 0.55,
    "int8 matmul / OpenVINO int8": 1.1,
    "peak memory / diffusers fp32": 0.3,
    "decoding / diffusers fp32": 0.6,
    "int8 matmul, median dB": 32.0,
    "int8_convrot weights, median dB": 40.0,
    "forecast, time": 0.6,
    "forecast, median dB": 30.0,
}
Step = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """A way of ours to compute: the storage format (None: plain weights), its dtype and mode."""

    storage: str | None
    dtype: torch.dtype
    mode: ComputeMode
    streamed: bool = False  # by blocks, as with --lowvram

    def load(self, path: Path) -> LoadedModel:
        """The model of a checkpoint."""
        return load_through_program(path, self.storage, self.dtype, CPU, self._layout(path), mode=self.mode)

    def load_denoiser(self, info: CheckpointInfo) -> LoadedModel:
        """The model of a denoiser with parts in files of their own, of which nothing but the denoiser is read."""
        layout, reads = self._layout(info.path), "unet".__eq__
        return load_through_program(
            info.path, self.storage, self.dtype, CPU, layout, mode=self.mode, modules=info.modules, reads=reads
        )

    def _layout(self, path: Path) -> StreamLayout | None:
        folder = path.parent / "offload"
        return StreamLayout(level=Level.BLOCK, on_disk=True, folder=folder) if self.streamed else None


# Plain weights are in diffusers' own UNet with its own attention, which is also what the program computes with then.
WAYS = {
    "diffusers fp32": Way(None, torch.float32, ComputeMode.PLAIN),
    "diffusers bf16": Way(None, torch.bfloat16, ComputeMode.PLAIN),
    "int8_row weights": Way("int8_row", torch.float32, ComputeMode.MANUAL),
    "int8 matmul": Way("int8_row", torch.float32, ComputeMode.INT8_MATMUL),
    "int8 matmul, bf16": Way("int8_row", torch.bfloat16, ComputeMode.INT8_MATMUL),
    "int8 matmul, convrot": Way("int8_convrot", torch.float32, ComputeMode.INT8_MATMUL),
    "int8 matmul, streamed": Way("int8_row", torch.float32, ComputeMode.INT8_MATMUL, streamed=True),
    "int8 matmul, bf16, streamed": Way("int8_row", torch.bfloat16, ComputeMode.INT8_MATMUL, streamed=True),
}

FLOW_FAMILIES = {"zimage": "Z-Image Turbo", "klein": "FLUX.2 klein 4B"}
"""By the names of `benchmarks.plan_table`."""
TINY = {"zimage": "z_image", "klein": "flux2_klein"}
FLOW_WAYS = ("diffusers bf16", "int8 matmul, bf16", "int8 matmul, bf16, streamed")
PROFILED = ("diffusers bf16", "int8 matmul, bf16")
QUICK_WAYS = ("diffusers fp32", "int8_row weights", "int8 matmul")


def inputs(family: str, side: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Latents of two images, their timestep, the texts, and the vector that SDXL is told besides."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, side, side, generator=generator).to(dtype)
    width = 2048 if family == "sdxl" else 768
    context = torch.randn(2, 77, width, generator=generator).to(dtype)
    vector = torch.randn(2, 2816, generator=generator).to(dtype) if family == "sdxl" else None
    return x, torch.full((2,), 500), context, vector


def stepper(unet: Any, family: str, side: int, dtype: torch.dtype) -> Step:
    """One evaluation with guidance."""
    x, t, context, vector = inputs(family, side, dtype)
    return lambda: unet(x, t, encoder_hidden_states=context, class_labels=vector, return_dict=False)[0]


def take_turns(
    steps: Mapping[str, Step], rounds: int, clock: Callable[[], float] = time.perf_counter, warm_up: int = 1
) -> dict[str, float]:
    """Seconds of the quickest run of each, after one that warms up."""
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(rounds + warm_up):
        for name, step in steps.items():
            began = clock()
            step()
            if turn >= warm_up:
                best[name] = min(best[name], clock() - began)
                print(f"{name}: {best[name]:.2f} s", flush=True)
    return best


def openvino_steps(unet: Any, family: str, side: int) -> tuple[dict[str, Step], str]:
    """The same UNet compiled by OpenVINO, in fp32 and (with nncf) with weights and activations in int8; and why there
    are none."""
    if find_spec("openvino") is None:
        return {}, "openvino is not installed (pip install -r benchmarks/requirements.txt)"
    openvino = import_module("openvino")
    x, t, context, vector = inputs(family, side, torch.float32)
    example: dict[str, Any] = {"sample": x, "timestep": t, "encoder_hidden_states": context}
    if vector is not None:
        example["class_labels"] = vector
    unet.config.return_dict = False
    model = openvino.convert_model(unet, example_input=example)
    values = [x.numpy(), t.numpy(), context.numpy(), *(() if vector is None else (vector.numpy(),))]
    core = openvino.Core()
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    steps: dict[str, Step] = {"OpenVINO fp32": lambda: compiled(values)}
    if find_spec("nncf") is None:
        return steps, "nncf is not installed, so OpenVINO's int8 was left out"
    nncf = import_module("nncf")
    quantized = nncf.quantize(model, nncf.Dataset([values]), model_type=nncf.ModelType.TRANSFORMER, subset_size=1)
    small = core.compile_model(quantized, "CPU")
    steps["OpenVINO int8"] = lambda: small(values)
    return steps, ""


@torch.inference_mode()
def measure_steps(
    path: Path, family: str, side: int, rounds: int, names: Sequence[str], warm_up: int = 1
) -> dict[str, Any]:
    """Seconds of a step in each of our ways and of the peers', and the ratios; how far ours are from fp32 here."""
    unets = {name: WAYS[name].load(path).unet for name in names}
    steps = {name: stepper(unets[name], family, side, WAYS[name].dtype) for name in names}
    others, left_out = openvino_steps(unets["diffusers fp32"], family, side)
    with attention_of_ours({name: (unets[name], steps[name]) for name in names}):
        seconds = take_turns({**steps, **others}, rounds, warm_up=warm_up)
        true = steps["diffusers fp32"]()
        errors = {name: float((steps[name]().float() - true).norm() / true.norm()) for name in names}
    ours = [name for name in names if WAYS[name].storage]
    peers = [name for name in seconds if name not in ours]
    ratios = {f"{name} / {peer}": seconds[name] / seconds[peer] for name in ours for peer in peers}
    found = {"seconds": seconds, "ratios": ratios, "relative_errors": errors, "left_out": left_out}
    print(json.dumps(found), flush=True)
    return {**found, "attention": attention_here(), "machine": machine()}


def flow_denoisers(info: CheckpointInfo, side_px: int, names: Sequence[str]) -> dict[str, tuple[Any, Step]]:
    """By name of a way the denoiser of a flow model and its step, without guidance: ours, and diffusers' class."""
    found: dict[str, tuple[Any, Step]] = {}
    model: MetaModel | LoadedModel
    for name in names:
        way = WAYS[name]
        if way.mode is ComputeMode.PLAIN:
            model, denoiser = full_size_parts.peer_of(info, way.dtype)
        else:
            model = way.load_denoiser(info)
            denoiser = model.unet
        found[name] = denoiser, partial(full_size_parts.flow_step, model, denoiser, side_px, way.dtype)
    return found


def attention_here() -> str:
    """What the program computes attention with where products are in int8, see `processing.engine.attention`."""
    return "sdp" if attention_problem() is not None else "int8"


@contextmanager
def attention_of_ours(denoisers: Mapping[str, tuple[Any, Step]]) -> Iterator[None]:
    """Those of ours that multiply in int8 compute attention as the program does here."""
    ours = [denoiser for name, (denoiser, _) in denoisers.items() if WAYS[name].mode is ComputeMode.INT8_MATMUL]
    chosen = attention_here()
    with using_attention(ours, None if chosen == "sdp" else ATTENTIONS.get(chosen)(AttentionOptions())):
        yield


def measure_flow_steps(
    info: CheckpointInfo, side_px: int, rounds: int, names: Sequence[str], warm_up: int, earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """CPU seconds of a step of a flow model in each way, and the ratios of those measured together; how far streaming
    is from the same in memory, relative. What `earlier` runs found of others stays."""
    denoisers = flow_denoisers(info, side_px, names)
    with attention_of_ours(denoisers):
        steps = {name: step for name, (_, step) in denoisers.items()}
        seconds = take_turns(steps, rounds, time.process_time, warm_up)
    peers = [name for name in names if WAYS[name].mode is ComputeMode.PLAIN]
    ratios = {f"{name} / {peer}": seconds[name] / seconds[peer] for name in names for peer in peers if name != peer}
    return {
        "cpu_seconds": {**earlier.get("cpu_seconds", {}), **seconds},
        "ratios": {**earlier.get("ratios", {}), **ratios},
        "threads": torch.get_num_threads(),
        "attention": attention_here(),
    }


def measure_profile(info: CheckpointInfo, side_px: int, names: Sequence[str]) -> dict[str, Any]:
    """Where a step goes, by wall time of this thread; a second step, as the first one reads the file."""
    denoisers = flow_denoisers(info, side_px, names)
    found = {}
    with attention_of_ours(denoisers):
        for name, (denoiser, step) in denoisers.items():
            if WAYS[name].mode is not ComputeMode.PLAIN:
                step()
            found[name] = shares(denoiser, step)
            print(json.dumps({name: found[name]}), flush=True)
    return found


@torch.inference_mode()
def child_peak(path: Path, family: str, side: int, name: str) -> int:
    """Peak bytes above the base of loading and one step; for a process of its own."""
    from benchmarks.load import base_bytes, peak_bytes

    base = base_bytes()
    unet = WAYS[name].load(path).unet
    use_every_page([unet])
    stepper(unet, family, side, WAYS[name].dtype)()
    return peak_bytes() - base


def _calling(*args: Tensor, **more: Tensor) -> Callable[[Any], Any]:
    return lambda block: block(*args, **more)


def measure_memory(path: Path, family: str, side: int) -> dict[str, Any]:
    """Peaks of a process each, and the ratio."""
    peaks = {}
    for name in (*QUICK_WAYS, "int8 matmul, streamed"):
        command = [sys.executable, "-m", "benchmarks.cpu", "--child", str(path), family, str(side), name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks[name] = int(json.loads(done.stdout.splitlines()[-1]))
        print(f"{name}: {peaks[name] >> 20} MiB", flush=True)
    return {"peak_bytes": peaks, "ratio": peaks["int8 matmul"] / peaks["diffusers fp32"]}


QUERIES = {"64x64": (2 * 4096, 320), "32x32": (2 * 1024, 640), "16x16": (2 * 256, 1280)}
"""Of SD 1 at 512 px with guidance: tokens and width of self-attention, by side of the latents."""


WIDE = ((1088, 3840, 10240), (1088, 10240, 3840), (1536, 3072, 27648), (1536, 12288, 3072))
"""Of flow models at 512 px: tokens, inputs and outputs of the feed-forward's layers in Z-Image and FLUX.2 klein 4B."""


@contextmanager
def few_rows_at_once() -> Iterator[None]:
    """Layers multiply in int8 for all outputs at once, and for as few inputs as have their sums in the caches."""
    before = int8_matmul.SLICE_ROWS
    int8_matmul.SLICE_ROWS = 64
    try:
        yield
    finally:
        int8_matmul.SLICE_ROWS = before


def measure_wide_layers(rounds: int, quick: bool) -> dict[str, float]:
    """CPU time of wide layers in int8, bf16, in slices of outputs over the same in slices of few inputs."""
    found = {}
    for tokens, inputs, outputs in WIDE[:1] if quick else WIDE:
        layer, x = nn.Linear(inputs, outputs, bias=False), torch.randn(1, tokens, inputs).bfloat16()
        multiply_in_int8(_store(layer, "int8_row", torch.bfloat16))

        def in_few_rows(layer: nn.Module = layer, x: Tensor = x) -> None:
            with few_rows_at_once():
                layer(x)

        seconds = take_turns({"outputs": partial(layer, x), "inputs": in_few_rows}, rounds, time.process_time)
        found[f"{tokens} x {inputs} to {outputs}"] = seconds["outputs"] / seconds["inputs"]
    return found


@torch.inference_mode()
def measure_layers(rounds: int, quick: bool) -> dict[str, Any]:
    """CPU seconds of query, key and value in int8, with their input rounded once over rounded for each; of the text
    encoder of SD 1 with two prompts in fp32, with weights in int8, and multiplying in int8; and of wide layers."""
    shared: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    for storage in ("int8_row", "rotated"):
        for name, (tokens, width) in QUERIES.items():
            if storage == "rotated" and not can_rotate(width):
                continue
            x = torch.randn(2, tokens // (8 if quick else 2), width, generator=generator)
            apart, together = (_queries(width, storage) for _ in range(2))
            share_inputs(together)
            ways: dict[str, Step] = {"apart": partial(_each, apart, x), "together": partial(_each, together, x)}
            seconds = take_turns(ways, rounds, time.process_time)
            shared[f"{name}, {storage}"] = seconds["together"] / seconds["apart"]
    config = CLIPTextConfig(num_hidden_layers=2 if quick else 12, hidden_size=768, intermediate_size=3072)
    config.num_attention_heads = 12
    plain: Any = CLIPTextModel(config).eval()
    decoded, quick_one = deepcopy(plain), deepcopy(plain)
    for model in (decoded, quick_one):
        for layer in [each for each in model.modules() if isinstance(each, nn.Linear)]:
            _store(layer, "int8_row")
            if model is quick_one:
                multiply_in_int8(layer)
        share_inputs(model)
    tokens_of = torch.randint(0, 40000, (2, 77), generator=generator)
    models = {"fp32": plain, "int8_row weights": decoded, "int8 matmul": quick_one}
    texts: dict[str, Step] = {name: partial(model, tokens_of) for name, model in models.items()}
    seconds = take_turns(texts, rounds, time.process_time)
    true = plain(tokens_of).last_hidden_state
    error = float((quick_one(tokens_of).last_hidden_state - true).norm() / true.norm())
    ratios = {name: seconds[name] / seconds["fp32"] for name in models if name != "fp32"}
    return {
        "rounded once over thrice": shared,
        "text encoder over fp32": ratios,
        "text encoder, relative error": error,
        "slices of outputs over slices of inputs": measure_wide_layers(rounds, quick),
    }


KERNEL_WAYS = ("int8 matmul", "int8 matmul, bf16")


@contextmanager
def around_products(compiled: bool) -> Iterator[None]:
    """Inputs of int8 products are rounded and sums are scaled by compiled kernels, or by PyTorch."""
    before = product_support.PAYS_FROM
    product_support.PAYS_FROM = 0 if compiled else 1 << 62
    try:
        yield
    finally:
        product_support.PAYS_FROM = before


@torch.inference_mode()
def measure_kernels(path: Path, family: str, side: int, rounds: int) -> dict[str, Any]:
    """CPU time (all threads) and time of a step with the kernels around int8 products over one without, in turns, with
    attention in int8 where there is that; all turns, first those without; and the difference of what they compute."""
    if (problem := llvm_problem()) is not None:
        return {"left_out": problem}
    found: dict[str, Any] = {}
    attention = "int8" if attention_problem() is None else "sdp"
    for way in KERNEL_WAYS:
        unet = WAYS[way].load(path).unet
        step = stepper(unet, family, side, WAYS[way].dtype)
        took: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        made = {}
        with using_attention([unet], ATTENTIONS.get(attention)(AttentionOptions())):
            for turn in range(rounds + 1):
                for compiled in took:
                    began = time.process_time(), time.perf_counter()
                    with around_products(compiled):
                        made[compiled] = step().float()
                    if turn:
                        took[compiled].append((time.process_time() - began[0], time.perf_counter() - began[1]))
        (cpu, wall), (cpu_with, wall_with) = (tuple(map(min, zip(*took[one], strict=True))) for one in took)
        found[f"{way}, attention {attention}"] = {
            "cpu_seconds": {"without": cpu, "with": cpu_with, "ratio": cpu_with / cpu},
            "seconds": {"without": wall, "with": wall_with, "ratio": wall_with / wall},
            "turns_cpu_seconds": [[one[0] for one in took[compiled]] for compiled in took],
            "relative_difference": float((made[True] - made[False]).norm() / made[False].norm()),
        }
        print(json.dumps(found), flush=True)
    return found


HEADS = ((4096, 40), (4096, 64), (4096, 80), (4096, 128), (1024, 80))
"""Tokens and dimensions of a head: SD 1 at 512 px, SDXL at 1024 px, the second level of SD 1, flow models."""


@torch.inference_mode()
def measure_attention(rounds: int, quick: bool) -> dict[str, Any]:
    """CPU time of attention in int8 over PyTorch's in fp32 and bf16, with its error; and how far images of the bundled
    model are from those of the same weights, which multiply in int8, with PyTorch's attention."""
    if (problem := attention_problem()) is not None:
        return {"left_out": problem}
    found: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    attend = ATTENTIONS.get("int8")(AttentionOptions())
    for tokens, width in HEADS[-1:] if quick else HEADS:
        query, key, value = (torch.randn(1, 1, tokens, width, generator=generator) for _ in range(3))
        ways: dict[str, Step] = {
            "int8": partial(attend, query, key, value),
            "fp32": partial(F.scaled_dot_product_attention, query, key, value),
            "bf16": partial(F.scaled_dot_product_attention, query.bfloat16(), key.bfloat16(), value.bfloat16()),
        }
        seconds = take_turns(ways, rounds, time.thread_time)
        true = ways["fp32"]()
        errors = {name: float((ways[name]().float() - true).norm() / true.norm()) for name in ("int8", "bf16")}
        over = {name: seconds["int8"] / seconds[name] for name in ("fp32", "bf16")}
        found[f"{tokens} x {width}"] = {"over": over, "relative_errors": errors}
    base: dict[str, object] = {**ROW, "compute_mode": "int8 matmul", "cross_attention_optimization": "sdp"}
    near = []
    with tempfile.TemporaryDirectory() as scratch:
        artist = _Images(Path(scratch), 2 if quick else ATTENTION_PROMPTS)
        for index in range(2 if quick else ATTENTION_PROMPTS):
            true, _ = artist.draw(index, base, *IMAGE_SAMPLERS[0])
            drawn, _ = artist.draw(index, {**base, "cross_attention_optimization": "int8"}, *IMAGE_SAMPLERS[0])
            near.append(round(psnr_db(drawn, true), 2))
            print(f"prompt {index}: {near[-1]} dB", flush=True)
    return {"heads": found, "images_db": {"prompts": len(near), "median": statistics.median(near), "lowest": min(near)}}


@torch.inference_mode()
def measure_compiled(rounds: int, side: int) -> dict[str, float]:
    """CPU time of the first blocks of SD 1's UNet compiled, over as they are, by class and dtype; `side` in latents."""
    found = {}
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x, time_embedding = (torch.randn(2, *of, generator=generator).to(dtype) for of in ((320, side, side), (1280,)))
        tokens, context = x.flatten(2).transpose(1, 2).contiguous(), torch.randn(2, 77, 768).to(dtype)
        blocks: dict[str, tuple[nn.Module, Callable[[Any], Any]]] = {
            "ResnetBlock2D": (
                ResnetBlock2D(in_channels=320, temb_channels=1280, eps=1e-5),
                _calling(x, time_embedding),
            ),
            "BasicTransformerBlock": (
                BasicTransformerBlock(320, 8, 40, cross_attention_dim=768),
                _calling(tokens, encoder_hidden_states=context),
            ),
        }
        for name, (block, run) in blocks.items():
            plain = block.to(dtype).eval()
            compiled = deepcopy(plain)
            with CompiledBlocks().around(nn.ModuleList([compiled]), [name]):
                seconds = take_turns(
                    {"plain": partial(run, plain), "compiled": partial(run, compiled)}, rounds, time.process_time
                )
            found[f"{name}, {str(dtype).removeprefix('torch.')}"] = seconds["compiled"] / seconds["plain"]
    return found


def _queries(width: int, storage: str) -> nn.Module:
    layers = nn.ModuleList(_store(nn.Linear(width, width, bias=False), storage) for _ in range(3))
    for layer in layers:
        multiply_in_int8(layer)
    return layers


def _each(layers: Any, x: Tensor) -> list[Tensor]:
    return [layer(x) for layer in layers]


def _store(layer: nn.Linear, storage: str, dtype: torch.dtype = torch.float32) -> nn.Linear:
    chosen = ROTATED_ROWS if storage == "rotated" else FORMATS.get(storage)
    encoded = chosen.encode(layer.weight.detach())
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": encoded.storage or chosen}, dtype)
    return layer


@torch.inference_mode()
def measure_decoding(family: str, sides: Sequence[int], save: Callable[[dict[str, Any]], None]) -> None:
    """CPU seconds of decoding one image by a full-size VAE with random weights as the program runs it, in fp32 and
    bf16, and by diffusers' own in fp32, at several sizes; and how far the bundled model's images in bf16 are from those
    in fp32. `save` gets what was found after each size."""
    autoencoder = read_architecture(FAMILIES[family][1]).autoencoder
    assert isinstance(autoencoder, KlAutoencoder)
    torch.manual_seed(0)
    full = build_kl(autoencoder.sizes).eval()
    half = build_kl(autoencoder.sizes).to(torch.bfloat16).eval()
    half.load_state_dict(full.state_dict())
    runners = {dtype: VaeRunner(CPU, dtype) for dtype in (torch.float32, torch.bfloat16)}
    found: dict[str, Any] = {}
    near = decoded_in_bf16_db()
    for warm_up, side in zip((1, *(0,) * len(sides)), sides, strict=False):  # small ones first: once is enough then
        z = torch.randn(1, 4, side, side, generator=torch.Generator().manual_seed(0))
        seconds = take_turns(
            {
                "ours fp32": partial(runners[torch.float32].decode, autoencoder, full, z),
                "ours bf16": partial(runners[torch.bfloat16].decode, autoencoder, half, z),
                "diffusers fp32": partial(full.decode, z, return_dict=False),
            },
            1,
            time.process_time,
            warm_up,
        )
        best = min(seconds["ours fp32"], seconds["ours bf16"])
        found[f"{8 * side} px"] = {"cpu_seconds": seconds, "ratio": best / seconds["diffusers fp32"]}
        save({"sizes": found, "ratio": found[f"{8 * side} px"]["ratio"], "bf16_db": near})


@torch.inference_mode()
def decoded_in_bf16_db(count: int = 8) -> dict[str, float]:
    """PSNR of drawn scenes, encoded by the bundled model's VAE and decoded in bf16, over decoded in fp32."""
    random = Random(0)
    scenes = [np.asarray(draw(random_scene(random)).convert("RGB")) for _ in range(count)]
    images = torch.from_numpy(np.stack(scenes)).permute(0, 3, 1, 2) / 127.5 - 1
    checkpoint = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
    models = [WAYS[name].load(checkpoint) for name in ("diffusers fp32", "diffusers bf16")]
    latents = models[0].encode(images)
    true, close = (model.decode(latents).clamp(-1, 1) for model in models)
    distances = (10 * torch.log10(4 / (true - close).square().mean(dim=(1, 2, 3)))).tolist()
    return {"median": statistics.median(distances), "lowest": min(distances)}


class _Images:
    """Draws the prompts of the bundled model through the engine."""

    def __init__(self, scratch: Path, count: int) -> None:
        catalogue = CheckpointCatalogue([ROOT / "models" / "Stable-diffusion"], HashCache(scratch / "hashes.json"))
        machine = Machine(CPU, torch.float32, torch.float32, int8=lambda dtype: Int8Support(0.0))
        self._engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        self._output = Output(scratch)
        self._prompts = color_prompts()[:count]

    def draw(
        self, index: int, changes: Mapping[str, object], sampler: str, scheduler: str
    ) -> tuple[Image.Image, float]:
        """The image of one prompt, and the CPU seconds that it took."""
        prompt = self._prompts[index]
        request = GenerationRequest(
            prompt=prompt.text,
            width=SIZE_PX,
            height=SIZE_PX,
            steps=DENOISING_STEPS,
            cfg_scale=6.0,
            sampler=sampler,
            scheduler=scheduler,
            seed=prompt.seed,
            subseed=0,
            checkpoint="featherweight-scenes",
            save_images=False,
            save_grid=False,
            settings=Settings().with_changes(changes),
        )
        began = time.process_time()
        image = generate(request, self._engine, self._output, Silent()).images[0].image
        return image, time.process_time() - began

    def is_right(self, index: int, image: Image.Image) -> bool:
        """Whether background and shape have the colors that were asked for."""
        prompt, pixels = self._prompts[index], np.asarray(image)
        return bool(background_color(pixels) == prompt.background and shape_color(pixels) == prompt.color)


ROW: dict[str, object] = {"fp8_storage": "Enable", "fp8_format": "int8_row"}
ROTATED: dict[str, object] = {**ROW, "fp8_format": "int8_convrot"}
IMAGE_WAYS: dict[str, dict[str, object]] = {
    "forecast 0.5": {"forecast_strength": 0.5},
    "int8_row weights": {**ROW, "compute_mode": "Manual cast"},
    "int8_convrot weights": {**ROTATED, "compute_mode": "Manual cast"},
    "int8 matmul": {**ROW, "compute_mode": "int8 matmul"},
    "int8 matmul, convrot": {**ROTATED, "compute_mode": "int8 matmul"},
}
IMAGE_SAMPLERS = (("DPM++ 2M", "Karras"), ("Euler", "Automatic"))
AT_A_TIME = 4
"""Prompts after which another precision has its turn, for which the model is read again."""
Scores = dict[str, dict[str, dict[str, Any]]]
"""By way and sampler, then by the number of the prompt: what was found of its image."""


def measure_images(scores: Scores, count: int, seconds: float, save: Callable[[], None]) -> None:
    """Add to `scores` how far the images of each way are from those in fp32, for the prompts that are not in it yet,
    until the time is up. Every layer multiplies in int8 here, those too that are too small for it to pay: the bundled
    model has few others."""
    int8_matmul.MIN_PRODUCTS = 0
    ends = time.monotonic() + seconds
    wanted = [(way, *sampler) for sampler in IMAGE_SAMPLERS for way in IMAGE_WAYS if _is_measured(way, sampler[0])]
    with tempfile.TemporaryDirectory() as scratch:
        artist = _Images(Path(scratch), count)
        for begin in range(0, count, AT_A_TIME):
            some = range(begin, min(count, begin + AT_A_TIME))
            left = [one for one in wanted if any(str(index) not in scores.get(_name(*one), {}) for index in some)]
            if not left:
                continue
            if time.monotonic() > ends:
                break
            artist.draw(some[0], {}, *IMAGE_SAMPLERS[0])  # reads the model, which is no part of a time
            true = {sampler: [artist.draw(index, {}, *sampler) for index in some] for sampler in IMAGE_SAMPLERS}
            for way, *sampler in left:
                artist.draw(some[0], IMAGE_WAYS[way], *sampler)
                for index, (image, took) in zip(some, true[sampler[0], sampler[1]], strict=True):
                    drawn, now = artist.draw(index, IMAGE_WAYS[way], *sampler)
                    scores.setdefault(_name(way, *sampler), {})[str(index)] = {
                        "db": round(psnr_db(drawn, image), 2),
                        "right": artist.is_right(index, drawn),
                        "right_in_fp32": artist.is_right(index, image),
                        "time": round(now / took, 3),
                    }
            print(json.dumps(of_images(scores)), flush=True)
            save()


def _is_measured(way: str, sampler: str) -> bool:
    return sampler == IMAGE_SAMPLERS[0][0] or way.startswith("forecast")


def _name(way: str, sampler: str, scheduler: str) -> str:
    return f"{way}, {sampler}"


def of_images(scores: Scores) -> dict[str, dict[str, float]]:
    """What the scores of the prompts come to."""
    found = {}
    for name, by_prompt in scores.items():
        rows = list(by_prompt.values())
        kept = [row["right"] for row in rows if row["right_in_fp32"]]
        found[name] = {
            "prompts": len(rows),
            "median_db": statistics.median(row["db"] for row in rows),
            "lowest_db": min(row["db"] for row in rows),
            "right_of_those_right_in_fp32": sum(kept) / max(1, len(kept)),
            "time": statistics.median(row["time"] for row in rows),
        }
    return found


def flow_file(root: Path, family: str, quick: bool) -> CheckpointInfo:
    """The file of a flow model's denoiser below `root`, of full size in int8, or a tiny one."""
    if not quick:
        return full_size_parts.write_denoiser(root / family, FLOW_FAMILIES[family])
    from tests.models.split_models import split_model  # pytest comes with it

    return full_size_parts.info_with_parts(split_model(TINY[family]).write(root / family))


def earlier_result() -> dict[str, Any]:
    """What the other parts found, of this file's results."""
    found = read_result("cpu")
    return {name: part for name, part in found.items() if name not in ("machine", "environment")}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--family", nargs="+", choices=("sd1", "sdxl", *FLOW_FAMILIES), default=["sd1"])
    parser.add_argument("--way", nargs="+", choices=tuple(WAYS), help="of the part steps; the default is all of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--side", type=int, default=8 * SIDE, help="of the parts steps and memory, in pixels")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--minutes", type=float, default=15.0, help="for images; another run goes on where it ended")
    parser.add_argument("--note", help="what else the machine did meanwhile, for the record")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where full-size checkpoints are kept")
    parser.add_argument("--quick", action="store_true", help="at a small size, nothing is written")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, family, side, name = arguments.child
        print(json.dumps(child_peak(Path(path), family, int(side), name)))
        return
    names: Sequence[str] = QUICK_WAYS if arguments.quick else tuple(arguments.way or WAYS)
    side, rounds = (QUICK_SIDE, QUICK_ROUNDS) if arguments.quick else (arguments.side // 8, arguments.rounds)
    numba_beside = "" if attention_here() == "sdp" else ", with numba"
    at = "" if side in (SIDE, QUICK_SIDE) else f", {8 * side} px"  # names of results at another size
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        at += ", AVX2"  # of a processor, or by ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
    result: dict[str, Any] = {"goals": GOALS, "image_px": 8 * (QUICK_SIDE if arguments.quick else SIDE)}

    note = {"note": arguments.note} if arguments.note else {}  # of flow models in their own rows
    if arguments.note and not set(arguments.family) <= set(FLOW_FAMILIES):
        result["notes"] = {**earlier_result().get("notes", {}), **dict.fromkeys(arguments.part, arguments.note)}

    def save(content: dict[str, Any]) -> None:
        if not arguments.quick:
            write_result("cpu", {**earlier_result(), **content})

    def keep(name: str, found: dict[str, Any]) -> None:
        result[name] = found
        save(result)

    for dtype in (torch.float32, torch.bfloat16):
        result[f"int8 product over {dtype}"] = measure(CPU, dtype).ratio
    with tempfile.TemporaryDirectory() as scratch:
        if "layers" in arguments.part:
            result["layers"] = measure_layers(rounds, arguments.quick)
            save(result)
        if "attention" in arguments.part:
            result["attention in int8"] = measure_attention(rounds, arguments.quick)
            save(result)
        if "compile" in arguments.part:
            result["compiled over plain"] = measure_compiled(rounds, side // 2)
            save(result)
        if "decode" in arguments.part:
            for family in (name for name in arguments.family if name in FAMILIES):
                sides = (QUICK_SIDE,) if arguments.quick else DECODED_SIDES
                measure_decoding(family, sides, partial(keep, f"decode, {family}"))
        if "turbo" in arguments.part:
            found = measure_turbo(Path(scratch), rounds, arguments.quick)
            keep(f"turbo, from a request to a file{at}", {**found, "machine": machine()})
        for family in FLOW_FAMILIES:
            if family not in arguments.family or not {"steps", "profile"} & set(arguments.part):
                continue
            info = flow_file(arguments.keep or Path(scratch), family, arguments.quick)
            if "steps" in arguments.part:
                key, ways = f"steps, {family}{at}{numba_beside}", arguments.way or FLOW_WAYS
                before = {} if arguments.quick else earlier_result().get(key, {})
                warm_up = 1 if arguments.quick else 0  # so long a step warms itself up
                keep(key, {**before, **measure_flow_steps(info, 8 * side, rounds, ways, warm_up, before), **note})
            if "profile" in arguments.part:
                found = measure_profile(info, 8 * side, arguments.way or PROFILED)
                keep(f"profile, {family}{at}{numba_beside}", {**found, **note})
        unets = [family for family in arguments.family if family in FAMILIES]
        for family in unets if {"kernels", "steps", "memory"} & set(arguments.part) else ():
            path = (arguments.keep or Path(scratch)) / f"{family}.safetensors"
            if not path.exists():
                write_full_size_checkpoint(path, family)
            if "kernels" in arguments.part:
                found = measure_kernels(path, family, side, rounds)
                result[f"kernels around products, {family}{at}, threads: {torch.get_num_threads()}"] = found
                save(result)
            if "steps" in arguments.part:
                # A step at a larger size is long: it warms itself up.
                found = measure_steps(path, family, side, rounds, names, warm_up=int(side <= SIDE))
                result[f"steps, {family}{at}"] = found
            if "memory" in arguments.part:
                result[f"memory, {family}{at}"] = measure_memory(path, family, side)
            save(result)
            if arguments.keep is None:
                path.unlink()
    if "images" in arguments.part:
        prompts = QUICK_PROMPTS if arguments.quick else arguments.prompts
        earlier = {} if arguments.quick else earlier_result()
        scores: Scores = earlier.get("image_scores", {})

        def save_images() -> None:
            result.update(images=of_images(scores), image_scores=scores)
            save(result)

        measure_images(scores, prompts, 60 * arguments.minutes, save_images)
        save_images()
    rows = []
    for family in arguments.family:
        beside = numba_beside if family in FLOW_FAMILIES else ""
        for name, ratio in result.get(f"steps, {family}{at}{beside}", {}).get("ratios", {}).items():
            rows.append((family, name, f"{ratio:.2f}", GOALS.get(name, "")))
        for part, name in (("memory", "peak memory / diffusers fp32"), ("decode", "decoding / diffusers fp32")):
            if (key := f"{part}, {family}{at}") in result:
                rows.append((family, name, f"{result[key]['ratio']:.2f}", GOALS[name]))
    for name, numbers in result.get("images", {}).items():
        rows.append(("images", f"{name}, median dB", f"{numbers['median_db']:.1f}", ""))
    print_table(["model", "what", "found", "goal"], rows)
    save(result)


if __name__ == "__main__":
    main()
