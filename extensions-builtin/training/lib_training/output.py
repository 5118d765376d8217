"""A trained adapter or embedding as a file that other programs read, with what they show of it: `ss_*` as kohya's
trainer writes it, `modelspec.*`, and the hash that the reference UI finds adapters by."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from lib_training.base_model import FileHashes, file_hashes
from lib_training.config import TrainingConfig
from lib_training.dataset import Dataset
from lib_training.failures import TrainingError
from lib_training.folders import Sample
from lib_training.names import file_tensors
from lib_training.stepping import Trainer
from lib_training.trained import lora_base
from modules.models.families.family import LoraNaming
from modules.models.files.header import LENGTH_BYTES, header_length
from modules.models.files.other_files import EMBEDDING_TABLES
from modules.models.loading.loaded import LoadedModel
from modules.system.atomic_files import output_error, write_atomic
from modules.version import VERSION

MODULES = {"lora": "networks.lora", "dora": "networks.lora"}
OPTIMIZER_NAMES = {
    "adamw": "torch.optim.AdamW",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "adafactor": "torch.optim.Adafactor",
    "prodigy": "prodigyopt.Prodigy",
}


@dataclass(frozen=True)
class OutputFacts:
    """Facts of its training in a file."""

    name: str
    config: TrainingConfig
    dataset: Dataset
    samples: Sequence[Sample]
    tags: Sequence[tuple[str, int]]
    steps: int
    epochs: int
    started: datetime
    checkpoint: Path


def write_adapter(path: Path, trainer: Trainer, facts: OutputFacts) -> None:
    """Write the file, atomically. Raises `OutputError`, after which the former file is still there, and
    `TrainingError` for values that 16 bits do not hold."""
    metadata = metadata_of(facts, trainer.model)
    if trainer.words:
        tensors = embedding_tensors(trainer)
    else:
        naming = LoraNaming.PEFT if facts.config.output.peft_names else lora_base(trainer.model).naming
        tensors = file_tensors(trainer.layers, naming)
    try:
        write_atomic(path, lora_bytes(tensors, metadata))
    except OSError as error:
        raise output_error(path.name, path.parent, error) from error


def lora_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file, with the hash of its tensors (`sshs_model_hash`), which changes of the metadata leave alone."""
    plain = save(dict(tensors))
    digest = hashlib.sha256(plain[LENGTH_BYTES + header_length(plain) :]).hexdigest()
    return save(dict(tensors), {**metadata, "sshs_model_hash": digest})


def embedding_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Textual inversion's vectors by the names that other programs read."""
    (by_width,) = trainer.words.values()
    names = EMBEDDING_TABLES[len(by_width)]
    vectors = [vector.detach().float().cpu().contiguous() for vector in by_width.values()]
    if not all(bool(torch.isfinite(vector).all()) for vector in vectors):
        raise TrainingError("The embedding holds values that are not finite. Choose a lower learning rate.")
    return dict(zip(names, vectors, strict=True))


def metadata_of(facts: OutputFacts, model: LoadedModel) -> dict[str, str]:
    """All values are text; what is not known is left out."""
    config, base = facts.config, lora_base(model)
    adapter, training, loss, data = config.adapter, config.training, config.loss, config.data
    hashes = _hashes(facts.checkpoint, model.info.mtime_ns)
    finished = datetime.now(UTC)
    is_v = model.architecture.prediction_type == "v_prediction"
    images = [sample for sample in facts.samples if not sample.is_regularization]
    side = facts.dataset.resolution
    arguments: dict[str, object] = {"conv_dim": adapter.conv_rank, "text_dim": adapter.text_rank}
    if adapter.type not in MODULES:
        arguments = {"algo": adapter.type, "factor": adapter.factor, **arguments}
    if adapter.type == "dora":
        arguments["dora_wd"] = True
    fields: dict[str, object] = {
        "ss_output_name": facts.name,
        "ss_network_module": MODULES.get(adapter.type, "lycoris.kohya"),
        "ss_network_dim": adapter.rank,
        "ss_network_alpha": adapter.alpha if adapter.alpha is not None else adapter.rank,
        "ss_network_args": json.dumps(arguments),
        "ss_base_model_version": base.version,
        "ss_sd_model_name": facts.checkpoint.name,
        "ss_sd_model_hash": hashes.old,
        "ss_new_sd_model_hash": hashes.sha256,
        "ss_v2": base.version.startswith("sd_v2"),
        "ss_clip_skip": config.model.clip_skip if config.model.clip_skip > 1 else None,
        "ss_resolution": f"({side}, {side})",
        "ss_enable_bucket": data.buckets,
        "ss_bucket_info": json.dumps(_bucket_info(facts.dataset)),
        "ss_num_train_images": sum(sample.repeats for sample in images),
        "ss_num_reg_images": sum(sample.repeats for sample in facts.samples if sample.is_regularization),
        "ss_num_batches_per_epoch": facts.dataset.epoch_length,
        "ss_num_epochs": facts.epochs + 1,
        "ss_epoch": facts.epochs + 1,
        "ss_batch_size_per_device": training.batch,
        "ss_total_batch_size": training.batch * training.accumulation,
        "ss_gradient_accumulation_steps": training.accumulation,
        "ss_gradient_checkpointing": bool(config.memory.checkpointing),
        "ss_steps": facts.steps,
        "ss_max_train_steps": training.steps,
        "ss_learning_rate": training.learning_rate,
        "ss_unet_lr": training.learning_rate,
        "ss_text_encoder_lr": config.text_rate if adapter.text_rank else None,
        "ss_lr_scheduler": training.schedule,
        "ss_lr_warmup_steps": training.warmup,
        "ss_optimizer": OPTIMIZER_NAMES[training.optimizer],
        "ss_max_grad_norm": training.clip_gradients,
        "ss_loss_type": loss.type,
        "ss_min_snr_gamma": None if loss.debiased else loss.min_snr,
        "ss_debiased_estimation": loss.debiased,
        "ss_noise_offset": loss.noise_offset or None,
        "ss_prior_loss_weight": data.prior_weight,
        "ss_caption_dropout_rate": data.caption_dropout,
        "ss_shuffle_caption": data.shuffle_tags,
        "ss_keep_tokens": data.keep_tokens,
        "ss_flip_aug": data.flip,
        "ss_random_crop": data.crop == "random",
        "ss_cache_latents": True,
        "ss_mixed_precision": "bf16" if model.plan.compute_dtype == torch.bfloat16 else "no",
        "ss_full_bf16": adapter.dtype == "bf16",
        "ss_seed": training.seed,
        "ss_training_started_at": facts.started.timestamp(),
        "ss_training_finished_at": finished.timestamp(),
        "ss_training_comment": f"Featherweight {VERSION}, base in {model.plan.label}",
        "ss_tag_frequency": json.dumps(_by_folder(images)),
        "ss_dataset_dirs": json.dumps(_folders(facts.samples)),
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{base.architecture}/{_spec_word(adapter.type)}",
        "modelspec.implementation": "diffusers",
        "modelspec.title": facts.name,
        "modelspec.date": finished.isoformat(timespec="seconds"),
        "modelspec.resolution": f"{side}x{side}",
    }
    if model.architecture.prediction_type != "flow":
        fields["modelspec.prediction_type"] = "v" if is_v else "epsilon"
    if config.output.trigger:
        fields["modelspec.trigger_phrase"] = config.output.trigger
    return {name: str(value) for name, value in fields.items()}


def _spec_word(kind: str) -> str:
    return "textual-embedding" if kind == "textual_inversion" else "lora"


@lru_cache(maxsize=4)
def _hashes(path: Path, mtime_ns: int) -> FileHashes:
    return file_hashes(path)


def _bucket_info(dataset: Dataset) -> Mapping[str, object]:
    counts: Counter[tuple[int, int]] = Counter()
    for sample in dataset.samples:
        counts[dataset.bucket_of(sample)] += sample.repeats
    return {
        "buckets": {
            str(index): {"resolution": list(size), "count": count} for index, (size, count) in enumerate(counts.items())
        }
    }


def _folders(samples: Sequence[Sample]) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for sample in samples:
        folder = found.setdefault(sample.path.parent.name, {"n_repeats": sample.repeats, "img_count": 0})
        folder["img_count"] += 1
    return found


def _by_folder(samples: Sequence[Sample]) -> Mapping[str, Mapping[str, int]]:
    """Tags by folder, each with the number of images that have it."""
    found: dict[str, Counter[str]] = {}
    for sample in samples:
        tags = {tag.strip() for caption in sample.captions for tag in caption.split(",") if tag.strip()}
        found.setdefault(sample.path.parent.name, Counter()).update(tags)
    return {folder: dict(counter.most_common()) for folder, counter in found.items()}
