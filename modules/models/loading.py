"""From a checkpoint file to a `LoadedModel`."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from modules.errors import CheckpointError
from modules.memory.formats.expected import expected_error
from modules.memory.int8_matmul import Told, multiply_in_int8, share_inputs
from modules.memory.matmul import multiply_in_8_bits
from modules.models.architecture import LdmArchitecture, read_architecture
from modules.models.budget import plan_budget
from modules.models.families.family import Component, ModelFamily
from modules.models.families.registry import detect_family
from modules.models.layouts.diffusers_config import refined
from modules.models.layouts.header_sizes import sized_by_header
from modules.models.layouts.open_clip_layout import open_checkpoint
from modules.models.loaded import LoadedModel
from modules.models.precision import ComputeMode, PrecisionPlan
from modules.models.reading.catalogue import CheckpointInfo, HashCache
from modules.models.reading.filling import FillReport, Placement, fill, finish_buffers
from modules.models.reading.matching import Assignment, assign_tensors
from modules.models.reading.offloading import ModelRest
from modules.models.reading.tensor_source import TensorSource
from modules.models.vae.files import VaeInfo
from modules.models.vae.source import VaeSource

log = logging.getLogger(__name__)

LISTED_TENSORS = 3
PRODUCTS: dict[ComputeMode, Callable[[], Callable[[nn.Module], bool]]] = {
    ComputeMode.FP8_MATMUL: lambda: multiply_in_8_bits,
    ComputeMode.INT8_MATMUL: lambda: partial(multiply_in_int8, told=Told()),
}
"""What has layers multiply without decoding their weights."""
PROBE = "probe"
"""The prediction type of a file that does not tell."""
PREDICTION = "prediction_type"  # as a remembered fact
PROBE_SIDE = 8  # latents
LAST_TIMESTEP = 999.0
V_BELOW = -1.0


def load_model(
    info: CheckpointInfo,
    configs_dir: Path,
    choose_plan: Callable[[ModelFamily], PrecisionPlan],
    default_yaml: Path | None = None,
    vae: VaeInfo | None = None,
    facts: HashCache | None = None,
) -> LoadedModel:
    """Load a checkpoint, every weight placed once on its device and in its final format.

    `choose_plan` is told the family and says where, in which formats and dtypes. With `vae` the VAE comes from that
    file, and what the checkpoint has of one is not read.

    The architecture comes from the YAML next to the file, else `default_yaml`, else from the file's own tensors and the
    family's constants in `configs_dir` (in a folder of the diffusers layout: what its settings say of them). What only
    a run of the model tells is remembered in `facts`.
    Raises `CheckpointError` for files that are damaged, incomplete, of an unknown family, or at odds with their YAML.
    """
    began = time.monotonic()
    with ExitStack() as files:
        file = files.enter_context(open_checkpoint(info.path, modules=info.modules))
        family = detect_family(file)
        plan = choose_plan(family)
        if plan.with_optional:
            file = files.enter_context(open_checkpoint(info.path, with_optional=True, modules=info.modules))
        architecture = architecture_of(file, info, family, configs_dir, default_yaml)
        known = facts.fact(info.path, PREDICTION) if facts and architecture.prediction_type == PROBE else None
        if known is not None:
            architecture = predicting(architecture, family, known)
        folders = (info.path.parent, info.path.parent.parent, configs_dir.parent)
        try:
            components = family.components(file.entries, architecture, folders)
        except CheckpointError as error:
            raise CheckpointError(f"{info.path.name}: {error}") from error
        except (ValueError, TypeError, ZeroDivisionError) as error:  # diffusers refuses impossible sizes
            raise CheckpointError(f"{info.path.name}: its YAML describes an impossible model: {error}") from error
        optional = family.optional_encoder
        if optional is not None and any(component.name == optional.component for component in components):
            optional.tokenizer(info.path)  # without it the encoder is of no use: better to say so at once

        mixed = None
        if plan.budget_bytes is not None:
            mixed = plan_budget(
                file,
                assign_tensors(file, components, family.is_ignored),
                lambda name: next(c.rules(plan.rules(name)) for c in components if c.name == name),
                plan.budget_bytes,
            )
            log.info("%s: %s", info.name, mixed.explained())
        rest = ModelRest(plan.streaming) if plan.streaming is not None else None
        multiply = PRODUCTS[plan.mode]() if plan.mode in PRODUCTS else None

        def placement(component: Component) -> Placement:
            if component.name == "vae":
                return Placement(plan.device, plan.vae_dtype, plan.vae_dtype, rest=rest, map_files=plan.map_files)
            casts = plan.mode is not ComputeMode.AUTOCAST
            rules = component.rules(plan.rules(component.name))
            if mixed is not None and rules is not None:
                rules = replace(rules, chosen=mixed.chosen.get(component.name, {}))
            tables_in_file = rules is not None or (rest is not None and rest.on_disk)
            return Placement(
                plan.device,
                plan.offload_dtype,
                plan.compute_dtype,
                rules,
                casts,
                multiply=multiply,
                tables_in_file=tables_in_file,
                rest=rest,
                map_files=plan.map_files,
            )

        assignments, report = _fill_from(file, components, family, placement, vae)
    parts = {}
    for component in components:
        finish_buffers(component.module, plan.device)
        parts[component.name] = component.module.eval().requires_grad_(False)
        if plan.mode is ComputeMode.INT8_MATMUL:
            share_inputs(component.module)
    streaming = rest.start(parts, plan.streaming, plan.device) if rest is not None and plan.streaming else None
    seconds = time.monotonic() - began
    log.info("Loaded %s (%s, %s) in %.1f s", info.name, family.label, plan.label, seconds)
    stored_note = " ".join(filter(None, (storage_note(report), mixed.explained() if mixed else "")))
    if stored_note:
        log.info("%s: %s", info.name, stored_note)
    if report.saturated:
        log.warning(
            "%s: %d weights in %d tensors were beyond the range of %s and became its largest number: %s. "
            "A format with scales (fp8_e4m3fn_row) has no such limit.",
            info.name,
            sum(report.saturated.values()),
            len(report.saturated),
            plan.label,
            ", ".join(list(report.saturated)[:LISTED_TENSORS]),
        )
    model = LoadedModel(
        info=info,
        vae_info=vae,
        architecture=architecture,
        text_encoders={name: part for name, part in parts.items() if name.startswith("text_encoder")},
        unet=parts["unet"],
        vae=parts["vae"],
        family=family,
        plan=plan,
        saturated=report.saturated,
        stored_note=stored_note,
        components=tuple(components),
        sources={(item.component.name, item.key): item for item in assignments},
        streaming=streaming,
    )
    if architecture.prediction_type == PROBE:
        found = "v_prediction" if predicts_v(model) else "epsilon"
        log.info("%s: the model predicts %s, as one run of it shows.", info.name, found)
        model.architecture = predicting(architecture, family, found)
        if facts is not None:
            facts.remember(info.path, PREDICTION, found)
    return model


def storage_note(report: FillReport) -> str:
    """What a file has in fewer than 16 bits, in one line: what is kept so, what is stored in another format now and
    with which error. Empty for a file in 16 bits."""
    if not report.kept and not report.encoded:
        return ""
    kept = ", ".join(f"{count} in {name}" for name, count in report.kept.most_common())
    parts = [f"kept as the file has them: {kept}" if kept else "nothing is kept as the file has it"]
    for (before, after), count in report.encoded.most_common():
        error = expected_error(after)
        size = f"expected error of the weights {error:.1%}" if error else "no further error but rounding to 16 bits"
        parts.append(f"{count} from {before} to {after}, {size}")
    if not report.encoded:
        parts.append("no further error")
    return f"Weights in few bits: {'; '.join(parts)}."


@torch.inference_mode()
def predicts_v(model: LoadedModel) -> bool:
    """Whether the UNet predicts v and not eps.

    At the last timestep x is almost pure noise. A model that predicts eps gives x back, one that predicts v gives
    -x0, which for an even input lies far below it.
    """
    x = torch.full((1, model.latent_channels, PROBE_SIDE, PROBE_SIDE), 0.5, device=model.device)
    tokens, width = model.family.context_tokens, model.architecture.unet_sizes.context_width
    context = torch.full((1, tokens, width), 0.5, device=model.device)
    prediction = model.predict(x, torch.tensor([LAST_TIMESTEP], device=model.device), context)
    return float((prediction - x).mean()) < V_BELOW


def predicting(architecture: LdmArchitecture, family: ModelFamily, prediction: str) -> LdmArchitecture:
    """The architecture with this prediction type, and the size of the images that such models are trained on."""
    side = architecture.latent_side
    if prediction == "v_prediction" and family.v_latent_side is not None:
        side = family.v_latent_side
    return replace(architecture, prediction_type=prediction, latent_side=side)


def _fill_from(
    file: TensorSource,
    components: Sequence[Component],
    family: ModelFamily,
    placement: Callable[[Component], Placement],
    vae: VaeInfo | None,
) -> tuple[list[Assignment], FillReport]:
    """Fill all components; the assignments are those of the checkpoint's own tensors."""
    if vae is None:
        assignments = assign_tensors(file, components, family.is_ignored)
        return assignments, fill(file, assignments, placement)
    others = [component for component in components if component.name != "vae"]
    own = tuple(prefix for component in components if component.name == "vae" for prefix in component.prefixes)
    assignments = assign_tensors(file, others, lambda key: key.startswith(own) or family.is_ignored(key))
    with VaeSource(vae.path) as vae_file:
        replacing = [component for component in components if component.name == "vae"]
        vae_assignments = assign_tensors(vae_file, replacing, family.is_ignored)
        report = fill(file, assignments, placement)
        fill(vae_file, vae_assignments, placement)
    return assignments, report


def architecture_of(
    file: TensorSource,
    info: CheckpointInfo,
    family: ModelFamily,
    configs_dir: Path,
    default_yaml: Path | None = None,
) -> LdmArchitecture:
    """From the YAML next to the file, else from `default_yaml`; else the family's, with the sizes of the file's tensors
    and what its names and metadata say of the prediction. `prediction_type` may be `PROBE`."""
    own = info.config_path or default_yaml
    if own is not None:
        return read_architecture(own)
    known = sized_by_header(file.entries, read_architecture(configs_dir / family.config_name))
    if info.is_folder:
        known = refined(info.path, known)
    schedule = replace(known.noise_schedule, zero_terminal_snr=family.has_zero_snr(file.entries))
    prediction = family.prediction_type(file.entries, file.metadata) or known.prediction_type
    known = known if info.is_folder else predicting(known, family, prediction)  # a folder says its own size
    return replace(known, noise_schedule=schedule, prediction_type=prediction)
