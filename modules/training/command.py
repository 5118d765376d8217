"""The command that trains a LoRA on captioned images: `train FOLDER`. `modules.cli.lora` adds the examples."""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from modules.adapters.adapter_file import read_adapter_file
from modules.errors import FeatherweightError, InvalidValueError
from modules.models.families.registry import version_of_family
from modules.models.loaded import LoadedModel
from modules.training.base_model import file_hashes, load_base
from modules.training.factors import take_over
from modules.training.file import TrainingRecord, write_lora
from modules.training.images import CaptionedImage, encode_images, read_images
from modules.training.options import LoraOptions
from modules.training.preview import PreviewRenderer, PreviewSample, write_card
from modules.training.trainer import LoraTrainer, train_lora

log = logging.getLogger("lora")

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
SHIPPED = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
LORAS = ROOT / "models" / "Lora"


AddCommands = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]


def main(argv: Sequence[str], add_commands: AddCommands = lambda commands: None) -> int:
    """Run the command; exit code 0, or 1 for errors. `add_commands` adds more commands alongside `train`."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    log.setLevel(logging.INFO)
    arguments = _parser(add_commands).parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        arguments.run(arguments)
    except FeatherweightError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser(add_commands: AddCommands) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch.py lora", description="Trains a LoRA.")
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser(
        "train", parents=[training_arguments()], help="train on a folder of images with captions"
    )
    train.add_argument("folder", type=Path, help="images, and next to each a .txt with its captions, one per line")
    train.add_argument("--output", type=Path, required=True, help="the .safetensors file to write")
    train.add_argument("--side", type=int, default=None, help="side of the images in pixels; the model's unless given")
    train.add_argument("--trigger", default="", help="the word that calls it up, for the model card next to the file")
    train.set_defaults(run=_train)
    add_commands(commands)
    return parser


def common_arguments() -> argparse.ArgumentParser:
    """What every command takes."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's choice")
    return common


def training_arguments() -> argparse.ArgumentParser:
    """What every command that trains takes."""
    training = argparse.ArgumentParser(add_help=False, parents=[common_arguments()])
    training.add_argument("--checkpoint", type=Path, default=SHIPPED, help="what the LoRA is for")
    training.add_argument("--start", type=Path, default=None, help="a LoRA of the same ranks to resume from")
    training.add_argument("--storage", default=None, help="keep the frozen weights in 8 bits: fp8_e4m3fn_row ...")
    training.add_argument("--device", default="cpu")
    training.add_argument("--preview-prompt", default=None, help="makes NAME.png with this prompt and the LoRA")
    training.add_argument("--preview-seed", type=int, default=None)
    _add_options(training)
    return training


def _add_options(parser: argparse.ArgumentParser) -> None:
    """One argument for each field of `LoraOptions`; what is not given stays away from the namespace's options."""
    group = parser.add_argument_group("training", "defaults are those of the example, else: %(prog)s")
    group.description = "An example has its own values; for a folder the defaults in parentheses hold."
    for field in fields(LoraOptions):
        name = f"--{field.name.replace('_', '-')}"
        if field.name == "checkpointing":
            text = "save memory: compute the UNet's blocks again for their gradients: all (where nothing follows), "
            text += "'every 2', 'all but every 3', 'blocks 0, 5, -1', or as few as fit a budget: '1.5 GB'"
            group.add_argument(name, nargs="?", const="all", default=None, metavar="WHICH", help=text)
            continue
        if field.name == "checkpointing_offload":
            text = "where the inputs of those blocks wait: ram (with a GPU), or a folder on a disk"
            group.add_argument(name, default=None, metavar="WHERE", help=text)
            continue
        whole = field.name in ("rank", "text_rank", "conv_rank", "steps", "batch", "warmup_steps", "seed")
        group.add_argument(name, type=int if whole else float, default=None, help=f"({field.default})")


def options_of(arguments: argparse.Namespace, start: LoraOptions) -> LoraOptions:
    """`start` with what the command line gives."""
    given = {f.name: getattr(arguments, f.name) for f in fields(LoraOptions)}
    return replace(start, **{name: value for name, value in given.items() if value is not None})


def _train(arguments: argparse.Namespace) -> None:
    options = options_of(arguments, LoraOptions())
    check_output(arguments.output)
    model = load_model_of(arguments)
    side = arguments.side or model.default_size_px
    step = model.downscale << (model.architecture.unet_sizes.levels - 1)
    if side % step or side <= 0:
        raise InvalidValueError(f"The side {side} is not possible for this model: it must be a multiple of {step}.")
    images = read_images(arguments.folder, side)
    train_and_write(
        arguments, model, images, options, arguments.output, arguments.folder.resolve().name, arguments.trigger
    )
    if arguments.trigger:
        write_card(arguments.output, version_of_family(model.family.label), "", arguments.trigger)
    if arguments.preview_prompt:
        write_preview(arguments, model, arguments.output, arguments.preview_prompt, arguments.preview_seed or 1)


def check_output(path: Path) -> None:
    """Raises `InvalidValueError` for a name that is no .safetensors file."""
    if path.suffix != ".safetensors":
        raise InvalidValueError(f"{path.name}: the output must be a .safetensors file.")


def load_model_of(arguments: argparse.Namespace) -> LoadedModel:
    """The checkpoint to train on. Raises `CheckpointError`."""
    return load_base(arguments.checkpoint, CONFIGS, arguments.storage, torch.device(arguments.device))


def train_and_write(
    arguments: argparse.Namespace,
    model: LoadedModel,
    images: Sequence[CaptionedImage],
    options: LoraOptions,
    output: Path,
    folder: str,
    trigger: str,
) -> None:
    """Train on `images` and write `output`; `folder` is what the file calls the images' origin."""
    started = datetime.now(UTC)
    log.info("encoding %d images", len(images))
    latents = encode_images(model, images)
    trainer = LoraTrainer(model, options)
    if arguments.start is not None:
        take_over(trainer.factors, read_adapter_file(arguments.start), arguments.start.name)
    count = sum(each.down.numel() + each.up.numel() for each in trainer.factors)
    log.info("training %d layers, %d parameters, on %s", len(trainer.factors), count, arguments.checkpoint.name)
    try:
        for step, loss in train_lora(trainer, latents):
            log.info("step %d of %d, loss %.4f, %.1f minutes", step, options.steps, loss, trainer.seconds / 60)
    except KeyboardInterrupt:
        log.warning("Stopped at step %d; what was learnt so far is written.", trainer.step)
    finally:
        trainer.close()
    assert model.family.lora_base is not None, "load_base refuses such models"
    record = TrainingRecord(
        name=output.stem,
        base=model.family.lora_base,
        base_name=arguments.checkpoint.name,
        base_hashes=file_hashes(arguments.checkpoint),
        side_px=images[0].image.width,
        captions=[image.captions for image in images],
        folder=folder,
        steps=trainer.step,
        started=started,
        finished=datetime.now(UTC),
        options=options,
        prediction_type=model.architecture.prediction_type,
        trigger=trigger,
    )
    write_lora(output, trainer.factors, record)
    log.info("wrote %s, %.2f MB", output, output.stat().st_size / 1e6)


def write_preview(arguments: argparse.Namespace, model: LoadedModel, output: Path, prompt: str, seed: int) -> None:
    """Write an image made with the LoRA next to it, NAME.png."""
    renderer = PreviewRenderer(arguments.checkpoint, output.parent, CONFIGS, torch.device(arguments.device))
    try:
        drawing = PreviewSample(prompt=f"{prompt} <lora:{output.stem}:1>", seed=seed, side_px=model.default_size_px)
        renderer.draw(drawing).save(output.with_suffix(".png"))
    finally:
        renderer.close()
