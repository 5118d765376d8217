"""A trained LoRA as a file: kohya's names, fp16, with the metadata that other programs read (`ss_*`, `modelspec.*`)."""

import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from modules.atomic_files import output_error, write_atomic
from modules.models.families.family import LoraBase
from modules.training.base_model import FileHashes
from modules.training.factors import Factors
from modules.training.options import LoraOptions, TrainingError
from modules.version import VERSION


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What a run was: for the file's metadata."""

    name: str
    base: LoraBase
    base_name: str
    base_hashes: FileHashes
    side_px: int
    captions: Sequence[Sequence[str]]
    folder: str
    steps: int
    started: datetime
    finished: datetime
    options: LoraOptions
    prediction_type: str = "epsilon"
    trigger: str = ""


def lora_tensors(factors: Sequence[Factors]) -> dict[str, Tensor]:
    """`NAME.lora_down.weight`, `NAME.lora_up.weight` and `NAME.alpha`, fp16 on the CPU.

    Raises `TrainingError` where a factor is beyond fp16's range.
    """
    tensors: dict[str, Tensor] = {}
    for each in factors:
        pair = {"lora_down.weight": each.down, "lora_up.weight": each.up}
        for end, parameter in pair.items():
            tensor = parameter.detach().to("cpu", torch.float16).contiguous()
            if not torch.isfinite(tensor).all():
                raise TrainingError(f"{each.name} has grown beyond fp16's range. Choose a lower learning rate.")
            tensors[f"{each.name}.{end}"] = tensor
        tensors[f"{each.name}.alpha"] = torch.tensor(each.alpha, dtype=torch.float16)
    return tensors


def metadata_of(record: TrainingRecord) -> dict[str, str]:
    """The record in the words of kohya's trainer, and of Stability's model spec 1.0."""
    options, is_v = record.options, record.prediction_type == "v_prediction"
    alpha = options.alpha if options.alpha is not None else options.rank
    fields: dict[str, object] = {
        "ss_output_name": record.name,
        "ss_network_module": "networks.lora",
        "ss_network_dim": options.rank,
        "ss_network_alpha": alpha,
        "ss_network_args": json.dumps({"conv_dim": options.conv_rank, "text_dim": options.text_rank}),
        "ss_base_model_version": record.base.version,
        "ss_sd_model_name": record.base_name,
        "ss_sd_model_hash": record.base_hashes.old,
        "ss_new_sd_model_hash": record.base_hashes.sha256,
        "ss_v2": is_v,
        "ss_clip_skip": None,
        "ss_resolution": f"({record.side_px}, {record.side_px})",
        "ss_num_train_images": len(record.captions),
        "ss_batch_size_per_device": options.batch,
        "ss_steps": record.steps,
        "ss_max_train_steps": options.steps,
        "ss_learning_rate": options.learning_rate,
        "ss_unet_lr": options.learning_rate,
        "ss_text_encoder_lr": options.text_rate,
        "ss_lr_scheduler": "cosine",
        "ss_lr_warmup_steps": options.warmup_steps,
        "ss_optimizer": "torch.optim.AdamW",
        "ss_min_snr_gamma": options.min_snr,
        "ss_noise_offset": options.offset_noise,
        "ss_caption_dropout_rate": options.empty_prompts,
        "ss_mixed_precision": "no",
        "ss_seed": options.seed,
        "ss_training_started_at": record.started.timestamp(),
        "ss_training_finished_at": record.finished.timestamp(),
        "ss_training_comment": f"Featherweight {VERSION}",
        "ss_tag_frequency": json.dumps({record.folder: tag_frequency(record.captions)}),
        "ss_dataset_dirs": json.dumps({record.folder: {"n_repeats": 1, "img_count": len(record.captions)}}),
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{record.base.architecture}/lora",
        "modelspec.implementation": "diffusers",
        "modelspec.title": record.name,
        "modelspec.date": record.finished.astimezone(UTC).isoformat(timespec="seconds"),
        "modelspec.resolution": f"{record.side_px}x{record.side_px}",
        "modelspec.prediction_type": "v" if is_v else "epsilon",
    }
    if record.trigger:
        fields["modelspec.trigger_phrase"] = record.trigger
    return {name: str(value) for name, value in fields.items()}


def tag_frequency(captions: Sequence[Sequence[str]]) -> dict[str, int]:
    """How many images have a tag: what is between commas in any of their captions; the most frequent first."""
    counter: Counter[str] = Counter()
    for wordings in captions:
        counter.update({tag.strip() for caption in wordings for tag in caption.split(",") if tag.strip()})
    return dict(counter.most_common())


def lora_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file, with the hash of its tensors (`sshs_model_hash`), which changes of the metadata leave alone."""
    plain = save(dict(tensors))
    (length,) = struct.unpack("<Q", plain[:8])
    digest = hashlib.sha256(plain[8 + length :]).hexdigest()
    return save(dict(tensors), {**metadata, "sshs_model_hash": digest})


def write_lora(path: Path, factors: Sequence[Factors], record: TrainingRecord) -> None:
    """Write the file, atomically. Raises `OutputError` and `TrainingError`."""
    data = lora_bytes(lora_tensors(factors), metadata_of(record))
    try:
        write_atomic(path, data)
    except OSError as error:
        raise output_error(path.name, path.parent, error) from error
