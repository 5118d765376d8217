"""`python -m recipes.card`: VAE, UNet, text model, tiny VAE, control net and example LoRAs, one after the other, each
for its seconds of time; the control net and the LoRAs side by side at the end."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from recipes.card.drawing import DrawnPool
from recipes.card.running import log
from recipes.card.tiny import train_tiny_vae
from recipes.card.unet import train_unet
from recipes.card.vae import encode_pool, train_vae, tune_decoder
from recipes.control.lessons import encode_shard
from recipes.scenes.export import export, fit_preview_factors
from recipes.scenes.model import SceneModel, load_model

START = Path("models/Stable-diffusion/featherweight-scenes.safetensors")
EXAMPLES = ("balloon", "blueprint")
FACTOR_IMAGES = 1024
NAME = "featherweight-scenes"


def main() -> None:
    """Parse the command line and train."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    arguments = _parser().parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    target: Path = arguments.target
    target.mkdir(parents=True, exist_ok=True)
    device = torch.device(arguments.device)
    pool = DrawnPool(arguments.folder, arguments.images, arguments.processes, device)
    try:
        _train(arguments, pool, device)
    finally:
        pool.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.card", description=__doc__)
    parser.add_argument("--start", type=Path, default=START, help="checkpoint to go on from, with its YAML next to it")
    parser.add_argument("--target", type=Path, default=Path("training-data/card"), help="folder for what was trained")
    parser.add_argument("--folder", type=Path, default=Path("training-data/card/pool"), help="for images and lessons")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="that draw images")
    parser.add_argument("--images", type=int, default=196_608)
    parser.add_argument("--lessons", type=int, default=128, help="of the control net, in shards of 64 images")
    parser.add_argument("--batch", type=int, default=1024, help="of the UNet; a 12th of it for the VAE's")
    for part, seconds in (("vae", 120), ("unet", 240), ("decoder", 35), ("tiny", 40), ("control", 40)):
        parser.add_argument(f"--{part}-seconds", type=float, default=seconds)
    parser.add_argument("--loras", action=argparse.BooleanOptionalAction, default=True, help="train the examples")
    parser.add_argument("--channels-last", action="store_true", help="of the weights in memory")
    return parser


def _train(arguments: argparse.Namespace, pool: DrawnPool, device: torch.device) -> None:
    batch = arguments.batch
    small = max(2, batch // 12)
    model = load_model(arguments.start)
    for part in (model.vae, model.unet):
        part.to(device, memory_format=torch.channels_last if arguments.channels_last else torch.contiguous_format)
    model.text.to(device)
    pool.wait(8 * batch)
    log.info("%d images are drawn", pool.ready)
    train_vae(model.vae, pool, seconds=arguments.vae_seconds, batch=small)
    pool.wait(arguments.images)
    lessons = pool.draw_lessons(arguments.lessons)
    began = time.monotonic()
    latents = encode_pool(model.vae, pool)
    model = replace(model, scale_factor=round(1 / float(latents.std()), 6))
    seconds = time.monotonic() - began
    log.info("%d images encoded in %.1f s, scale factor %.6f", len(latents), seconds, model.scale_factor)
    train_unet(model, pool, latents, seconds=arguments.unet_seconds, batch=batch, pairs=batch // 4)
    checkpoint = arguments.target / f"{NAME}.safetensors"
    _write(model, pool, latents, arguments.start, checkpoint)
    tune_decoder(model, pool, latents, seconds=arguments.decoder_seconds, batch=small)
    _write(model, pool, latents, arguments.start, checkpoint)
    for number, drawn in lessons:
        encode_shard(model.vae, arguments.folder, number, batch=64, device=str(device), drawn=drawn)
    running = _beside(arguments, checkpoint)
    train_tiny_vae(model, pool, latents, arguments.target / NAME, seconds=arguments.tiny_seconds, batch=small)
    for command in running:
        if command.wait():
            log.error("%s failed with %d", command.args, command.returncode)


def _write(model: SceneModel, pool: DrawnPool, latents: Tensor, start: Path, target: Path) -> None:
    few = torch.arange(min(FACTOR_IMAGES, len(latents)), device=latents.device)
    factors = fit_preview_factors((latents[few] * model.scale_factor).cpu(), pool.pixels(few).cpu())
    export(model, start, target, factors)
    log.info("wrote %s", target)


def _beside(arguments: argparse.Namespace, checkpoint: Path) -> list[subprocess.Popen[bytes]]:
    """The commands that train what stands on the checkpoint."""
    common = ["--start", str(checkpoint), "--folder", str(arguments.folder), "--device", arguments.device]
    control = [*common, "--minutes", str(arguments.control_seconds / 60), "--batch", str(max(2, arguments.batch // 12))]
    net = arguments.target / f"{NAME}_canny.safetensors"
    running = [_start("recipes.control", ["train", *control, "--export", "--target", str(net)])]
    for name in EXAMPLES if arguments.loras else ():
        output = arguments.target / f"{name}.safetensors"
        places = ["--checkpoint", str(checkpoint), "--output", str(output)]
        running.append(_start("recipes.loras", ["example", name, *places]))
    return running


def _start(module: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
