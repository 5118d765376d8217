"""An image by a model of SD-Turbo's size, random weights, from a request to a file: our server in 8 bits, diffusers,
and diffusers' pipeline with its models compiled by OpenVINO where that is installed (`benchmarks/requirements.txt`).

Part of `python -m benchmarks.cpu --part turbo`. One step, no guidance, the tiny decoder (TAESD) of full size, 512 px;
each is a process of its own, loads first, and then takes turns. Measured are the CPU seconds of the whole process,
which other work on the machine hardly changes, and the wall time.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.full_size import write_full_size_checkpoint
from benchmarks.long_run import Server

ROOT = Path(__file__).parent.parent
SIDE_PX, QUICK_SIDE_PX = 512, 128
REPLY_S = 1800.0
SETTINGS = {
    "fp8_storage": "Enable",
    "fp8_format": "int8_row",
    "sd_vae_decode_method": "TAESD",
}
REQUEST = {"prompt": "a", "steps": 1, "cfg_scale": 1, "sampler_name": "Euler a", "save_images": True}


def cpu_seconds(pid: int) -> float:
    """Return what all threads of a process have computed, and those of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure_turbo(folder: Path, rounds: int, quick: bool) -> dict[str, Any]:
    """Return seconds of each way by round, and the ratio of the least."""
    side = QUICK_SIDE_PX if quick else SIDE_PX
    checkpoint = folder / "sd_turbo.safetensors"
    write_full_size_checkpoint(checkpoint, "sd2")
    tiny = folder / "tiny"
    subprocess.run([sys.executable, "-m", "benchmarks.turbo", "--tiny", str(tiny)], cwd=ROOT, check=True)
    data = folder / "data"
    (data / "models" / "VAE-taesd").mkdir(parents=True)
    (tiny / "diffusion_pytorch_model.safetensors").rename(data / "models" / "VAE-taesd" / "taesd.safetensors")
    (data / "config.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.turbo", "--peer", str(folder), str(side)]
    server = Server(data, ["--nowebui", "--workers", "0"], checkpoint)
    kinds = ["diffusers", *(["openvino"] if find_spec("openvino") else [])]
    peers = [
        subprocess.Popen([*command, kind], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in kinds
    ]

    def ours() -> None:
        status, text = server.ask("/sdapi/v1/txt2img", {**REQUEST, "width": side, "height": side}, REPLY_S)
        if status != 200:
            raise RuntimeError(text[:500].decode(errors="replace"))

    def theirs(peer: subprocess.Popen[str]) -> None:
        assert peer.stdin and peer.stdout
        peer.stdin.write("image\n")
        peer.stdin.flush()
        if not peer.stdout.readline():
            raise RuntimeError(f"a peer's process ended with code {peer.wait()}; its errors are printed above")

    ways: dict[str, tuple[int, Callable[[], None]]] = {"ours, int8": (server.process.pid, ours)}
    for name, peer in zip(("diffusers fp32", "OpenVINO"), peers, strict=False):
        ways[name] = peer.pid, partial(theirs, peer)
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for turn in range(rounds + 1):
            for name, (pid, make) in ways.items():
                before, began = cpu_seconds(pid), time.monotonic()
                make()
                if turn:  # the first one loads
                    cpu[name].append(round(cpu_seconds(pid) - before, 2))
                    wall[name].append(round(time.monotonic() - began, 2))
                print(
                    json.dumps({"way": name, "turn": turn, "cpu_s": cpu[name][-1:], "wall_s": wall[name][-1:]}),
                    flush=True,
                )
        if not list(data.rglob("*.png")):
            raise RuntimeError("our server saved no image")
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
        server.process.terminate()
        server.process.wait(60)
        checkpoint.unlink()
    least = {name: min(values) for name, values in cpu.items()}
    found: dict[str, Any] = {"side_px": side, "cpu_s": cpu, "wall_s": wall}
    found["ratio"] = round(least["ours, int8"] / least["diffusers fp32"], 3)
    if "OpenVINO" in least:
        found["ratio_openvino"] = round(least["ours, int8"] / least["OpenVINO"], 3)
    else:
        found["left_out"] = "OpenVINO: it is not installed"
    return found


def write_tiny(folder: Path) -> None:
    """Write TAESD of full size with random weights, in the one-file form of diffusers."""
    import torch
    from diffusers import AutoencoderTiny

    torch.manual_seed(0)
    AutoencoderTiny().save_pretrained(folder)


def compile_by_openvino(pipeline: Any, side: int) -> None:
    """Have OpenVINO compute a pipeline's UNet and its decoder, in the precision that it chooses for this CPU."""
    import torch

    openvino = import_module("openvino")
    core, unet, decoder = openvino.Core(), pipeline.unet, pipeline.vae.decoder
    latents, text = torch.randn(1, 4, side // 8, side // 8), torch.randn(1, 77, unet.config.cross_attention_dim)
    unet.config.return_dict = False
    example = {"sample": latents, "timestep": torch.tensor(999.0), "encoder_hidden_states": text}
    compiled = core.compile_model(openvino.convert_model(unet, example_input=example), "CPU")
    decode = core.compile_model(openvino.convert_model(decoder, example_input=latents), "CPU")
    unet.forward = lambda x, t, encoder_hidden_states, **_: (
        torch.from_numpy(compiled([x.numpy(), t.float().numpy(), encoder_hidden_states.numpy()])[0]),
    )
    decoder.forward = lambda x: torch.from_numpy(decode([x.numpy()])[0])
    for part in (unet, decoder):
        for block in part.children():
            block.to("meta")


def run_peer(folder: Path, side: int, kind: str) -> None:
    """Make an image file for each line of standard input, by diffusers' pipeline with random weights of this size;
    `kind` is diffusers, or openvino."""
    import torch
    from diffusers import AutoencoderTiny, EulerDiscreteScheduler, StableDiffusionPipeline
    from transformers import CLIPTokenizer

    from benchmarks.full_size import FAMILIES
    from benchmarks.pipeline_peer import TINY_VOCABULARY
    from modules.models.families.architecture import read_architecture

    make, yaml = FAMILIES["sd2"]
    text_encoder, unet = (
        module.to_empty(device="cpu").float().eval() for module, _ in make(read_architecture(yaml))[:2]
    )
    for module in (text_encoder, unet):
        for weight in module.parameters():
            torch.nn.init.normal_(weight.requires_grad_(False), std=0.02)
        for name, buffer in module.named_buffers():
            assert name.endswith("position_ids"), name
            buffer.copy_(torch.arange(buffer.shape[-1]))
    pipeline = StableDiffusionPipeline(
        vae=AutoencoderTiny(),
        text_encoder=text_encoder,
        tokenizer=CLIPTokenizer(vocab=TINY_VOCABULARY, merges=[], model_max_length=77),
        unet=unet,
        scheduler=EulerDiscreteScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    if kind == "openvino":
        compile_by_openvino(pipeline, side)
    for number, _ in enumerate(sys.stdin):
        made = pipeline("a", width=side, height=side, num_inference_steps=1, guidance_scale=0.0)
        made.images[0].save(folder / f"{kind}-{number}.png")
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--tiny":
        write_tiny(Path(sys.argv[2]))
    else:
        run_peer(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
