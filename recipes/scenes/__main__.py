"""The training command: `python -m recipes.scenes draw|encode|diffusion|vae|tiny|export`, each resumable."""

import argparse
import logging
import time
from pathlib import Path

import torch
from PIL import Image

from modules.errors import CheckpointError
from modules.models.autoencoders.tiny_vae import read_tiny
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER
from modules.processing.engine.pixels import to_images
from recipes.scenes.diffusion import DiffusionOptions, Trainer, train_diffusion
from recipes.scenes.export import export, preview_factors_of_pool
from recipes.scenes.images import draw
from recipes.scenes.layout import SIZE_PX
from recipes.scenes.model import load_model
from recipes.scenes.pool import SHARD_IMAGES, Pool, encode_shard, scene_of_seed, shard_path
from recipes.scenes.tiny_vae import (
    TINY_STATE,
    TinyOptions,
    TinyTrainer,
    lesson_path,
    make_lesson,
    measure_tiny,
    train_tiny,
    write_tiny,
)
from recipes.scenes.vae import DECODER_STATE, DecoderOptions, DecoderTuner, read_tuned, tune_decoder

log = logging.getLogger("scenes")

DIFFUSION_STATE = "diffusion.pt"


def main() -> None:
    """Parse the command line and run one step of the training."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    arguments = _parser().parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.scenes", description=__doc__)
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--start", type=Path, default=Path("models/Stable-diffusion/featherweight-scenes.safetensors"))
    common.add_argument("--folder", type=Path, default=Path("training-data/scenes"), help="pool and snapshots")
    common.add_argument("--device", default="cpu")
    common.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")

    image = commands.add_parser("draw", parents=[common], help="look at some training images on one sheet")
    image.add_argument("--sheet", type=Path, default=Path("training-data/images.png"))
    image.add_argument("--images", type=int, default=48)
    image.set_defaults(run=_draw)

    encode = commands.add_parser("encode", parents=[common], help="draw images and encode them into the pool")
    encode.add_argument("--images", type=int, default=20480)
    encode.set_defaults(run=_encode)

    diffusion = commands.add_parser("diffusion", parents=[common], help="train UNet and text model on the pool")
    diffusion.add_argument("--minutes", type=float, default=90.0)
    diffusion.add_argument("--steps", type=int, default=None)
    diffusion.add_argument("--batch", type=int, default=20)
    diffusion.add_argument("--learning-rate", type=float, default=3e-4)
    diffusion.set_defaults(run=_diffusion)

    vae = commands.add_parser("vae", parents=[common], help="sharpen the VAE's decoder; the latent space stays")
    vae.add_argument("--minutes", type=float, default=20.0)
    vae.add_argument("--steps", type=int, default=None)
    vae.add_argument("--batch", type=int, default=4)
    vae.add_argument("--learning-rate", type=float, default=2e-4)
    vae.add_argument("--border-weight", type=float, default=1.0, help="extra weight of borders and corners")
    vae.set_defaults(run=_vae)

    tiny = commands.add_parser("tiny", parents=[common], help="distil the VAE into a tiny one, and write it")
    tiny.add_argument("--minutes", type=float, default=25.0)
    tiny.add_argument("--steps", type=int, default=None)
    tiny.add_argument("--batch", type=int, default=8)
    tiny.add_argument("--width", type=int, default=16)
    tiny.add_argument("--lessons", type=int, default=9, help="shards of 256 images of the pool to learn from")
    tiny.add_argument("--session-minutes", type=float, default=None, help="stop after so many; go on another time")
    tiny.add_argument("--target", type=Path, default=Path("training-data/featherweight-scenes"))
    tiny.set_defaults(run=_tiny)

    quality = commands.add_parser("tiny-quality", parents=[common], help="compare a tiny VAE with the full one")
    quality.add_argument("--target", type=Path, default=Path("models/VAE-taesd/featherweight-scenes"))
    quality.add_argument("--images", type=int, default=32)
    quality.add_argument("--sheet", type=Path, default=None, help="drawn, full, tiny, there and back by the tiny one")
    quality.set_defaults(run=_tiny_quality)

    export_command = commands.add_parser("export", parents=[common], help="write what was trained as a checkpoint")
    export_command.add_argument("--target", type=Path, default=Path("training-data/featherweight-scenes.safetensors"))
    export_command.set_defaults(run=_export)
    return parser


def _draw(arguments: argparse.Namespace) -> None:
    columns = 8
    rows = -(-arguments.images // columns)
    sheet = Image.new("RGB", (columns * SIZE_PX, rows * SIZE_PX))
    for seed in range(arguments.images):
        scene, captions = scene_of_seed(seed)
        sheet.paste(draw(scene), (seed % columns * SIZE_PX, seed // columns * SIZE_PX))
        log.info("%d: %s", seed, captions[0])
    arguments.sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(arguments.sheet)


def _vae(arguments: argparse.Namespace) -> None:
    options = DecoderOptions(
        minutes=arguments.minutes,
        steps=arguments.steps,
        batch=arguments.batch,
        learning_rate=arguments.learning_rate,
        border_weight=arguments.border_weight,
        device=arguments.device,
    )
    model = load_model(arguments.start)
    tuner = DecoderTuner(model.vae, options)
    for step, loss in tune_decoder(tuner, model, arguments.folder, arguments.folder / DECODER_STATE):
        log.info("step %d loss %.4f after %.1f minutes", step, loss, tuner.seconds / 60)


def _tiny(arguments: argparse.Namespace) -> None:
    model = load_model(arguments.start)
    for number in range(arguments.lessons):
        if not lesson_path(arguments.folder, number).exists():
            make_lesson(model.vae, model.scale_factor, arguments.folder, number)
            log.info("lesson %d", number)
    options = TinyOptions(
        minutes=arguments.minutes,
        steps=arguments.steps,
        batch=arguments.batch,
        width=arguments.width,
        device=arguments.device,
    )
    trainer = TinyTrainer(model.vae.config.latent_channels, options)
    for step, decoder, encoder in train_tiny(
        trainer, arguments.folder, arguments.folder / TINY_STATE, arguments.session_minutes
    ):
        log.info("step %d losses %.4f and %.4f after %.1f minutes", step, decoder, encoder, trainer.seconds / 60)
    for path in write_tiny(trainer, arguments.target):
        log.info("wrote %s", path)


def _tiny_quality(arguments: argparse.Namespace) -> None:
    model = load_model(arguments.start)
    channels, factor = model.vae.config.latent_channels, 1 << (len(model.vae.config.block_out_channels) - 1)
    decoder, encoder = (
        read_tiny(arguments.target.with_name(f"{arguments.target.name}_{half}.safetensors"), half, channels, factor)
        for half in (DECODER, ENCODER)
    )
    found = measure_tiny(model, decoder, encoder, images=arguments.images)
    log.info(
        "decoder against the full one %.1f dB; there and back %.1f dB (full VAE: %.1f dB)",
        *(found.decoded_db, found.round_trip_db, found.full_round_trip_db),
    )
    if arguments.sheet is not None:
        columns = [image for row in found.sheet[:8] for image in to_images(row)]
        sheet = Image.new("RGB", (SIZE_PX * 4, SIZE_PX * len(columns) // 4))
        for index, image in enumerate(columns):
            sheet.paste(image, (index % 4 * SIZE_PX, index // 4 * SIZE_PX))
        sheet.save(arguments.sheet)


def _encode(arguments: argparse.Namespace) -> None:
    vae = load_model(arguments.start).vae.to(arguments.device)
    for number in range(arguments.images // SHARD_IMAGES):
        if not shard_path(arguments.folder, number).exists():
            started = time.monotonic()
            encode_shard(vae, arguments.folder, number, device=arguments.device)
            log.info("shard %d in %.1f s", number, time.monotonic() - started)


def _diffusion(arguments: argparse.Namespace) -> None:
    options = DiffusionOptions(
        minutes=arguments.minutes,
        steps=arguments.steps,
        batch=arguments.batch,
        learning_rate=arguments.learning_rate,
        device=arguments.device,
    )
    trainer = Trainer(load_model(arguments.start), options)
    pool = Pool(arguments.folder)
    pool.refresh()
    log.info("%d images in the pool", len(pool))
    for step, loss in train_diffusion(trainer, pool, arguments.folder / DIFFUSION_STATE, log.info):
        log.info("step %d loss %.4f after %.1f minutes", step, loss, trainer.seconds / 60)


def _export(arguments: argparse.Namespace) -> None:
    model = load_model(arguments.start)
    snapshot, decoder = arguments.folder / DIFFUSION_STATE, arguments.folder / DECODER_STATE
    if not snapshot.is_file() and not decoder.is_file():
        raise CheckpointError(f"{arguments.folder} has no snapshot of a training. Run `diffusion` or `vae` first.")
    if snapshot.is_file():
        Trainer(model, DiffusionOptions()).resume(snapshot)  # puts the moving average into the components
    if decoder.is_file():
        read_tuned(model.vae, decoder)
    factors = preview_factors_of_pool(arguments.folder, model.scale_factor)
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    export(model, arguments.start, arguments.target, factors)
    log.info("wrote %s; preview factors %s", arguments.target, factors)


if __name__ == "__main__":
    main()
