"""From a checkpoint file to a `LoadedModel`."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from modules.errors import CheckpointError
from modules.memory.int8_matmul import Told, multiply_in_int8, share_inputs
from modules.memory.layer import put_channels_last
from modules.memory.matmul import multiply_in_8_bits
from modules.memory.streaming.streaming import StreamHandle
from modules.models.autoencoders.files import VaeInfo
from modules.models.autoencoders.source import open_vae
from modules.models.families.architecture import LdmArchitecture, read_architecture
from modules.models.families.diffusers_config import refined
from modules.models.families.family import ModelFamily
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import detect_family
from modules.models.files.catalogue import CheckpointInfo, HashCache
from modules.models.files.diffusers_folder import files_read
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.budget import BudgetPlan, plan_budget
from modules.models.loading.filling import FillReport, Placement, fill, finish_buffers
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import Assignment, assign_tensors
from modules.models.loading.offloading import OffloadPlan
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.names.component import Component
from modules.models.opening.checkpoint import open_checkpoint

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


def every(component: str) -> bool:
    """All components."""
    return True


def load_model(
    info: CheckpointInfo,
    configs_dir: Path,
    choose_plan: Callable[[ModelFamily], PrecisionPlan],
    default_yaml: Path | None = None,
    vae: VaeInfo | None = None,
    facts: HashCache | None = None,
    reads: Callable[[str], bool] = every,
) -> LoadedModel:
    """Load a checkpoint, every weight placed once on its device and in its final format.

    `choose_plan` receives the family and says where, in which formats and dtypes. With `vae` the VAE comes from that
    file, and what the checkpoint has of one is not read. Components of which `reads` does not say so are not read
    either: their modules stay on the meta device.

    The architecture comes from the YAML next to the file, else `default_yaml`, else from the file's own tensors and the
    family's constants in `configs_dir` (in a folder of the diffusers layout: what its settings say of them). What only
    a run of the model tells is remembered in `facts`.
    Raises `CheckpointError` for files that are damaged, incomplete, of an unknown family, or at odds with their YAML.
    """
    began = time.monotonic()
    with ExitStack() as files:
        opened = _open(info, configs_dir, choose_plan, default_yaml, facts, files)
        matched = _match(opened, info, configs_dir)
        filled = _fill(matched, vae, reads)
        beside = {entry.file for entry in opened.file.entries.values() if entry.file is not None}
        beside -= set(files_read(info.path))
    streaming = _finish(matched, reads)
    seconds = time.monotonic() - began
    log.info("Loaded %s (%s, %s) in %.1f s", info.name, opened.family.label, opened.plan.label, seconds)
    model = LoadedModel(
        info=info,
        vae_info=vae,
        architecture=opened.architecture,
        text_encoders={name: part for name, part in matched.parts.items() if name.startswith("text_encoder")},
        unet=matched.parts["unet"],
        vae=matched.parts["vae"],
        family=opened.family,
        plan=opened.plan,
        saturated=filled.report.saturated,
        stored_note=_said(filled.report, matched, info),
        components=matched.components,
        sources={(item.component.name, item.key): item for item in filled.assignments},
        streaming=streaming,
        part_files=tuple(sorted(path for path in beside if info.path not in path.parents)),
    )
    if opened.architecture.prediction_type == PROBE:
        found = "v_prediction" if predicts_v(model) else "epsilon"
        log.info("%s: the model predicts %s, as one run of it shows.", info.name, found)
        model.architecture = predicting(opened.architecture, opened.family, found)
        if facts is not None:
            facts.remember(info.path, PREDICTION, found)
    return model


@dataclass(frozen=True)
class HeaderFacts:
    """The facts in the header of a checkpoint, without a weight in memory."""

    info: CheckpointInfo
    family: ModelFamily
    architecture: LdmArchitecture

    @property
    def named(self) -> str:
        """For people."""
        return f"{self.info.name} ({self.family.label})"


def header_facts(info: CheckpointInfo, configs_dir: Path, default_yaml: Path | None = None) -> HeaderFacts:
    """Look into a checkpoint. Raises `CheckpointError` as `load_model` does before it builds anything."""
    with open_checkpoint(info.path, modules=info.modules) as file:
        family = detect_family(file)
        return HeaderFacts(info, family, architecture_of(file, info, family, configs_dir, default_yaml))


@dataclass(frozen=True)
class _Opened:
    """An open file, and what its header says."""

    file: TensorSource
    family: ModelFamily
    plan: PrecisionPlan
    architecture: LdmArchitecture


@dataclass(frozen=True)
class _Matched:
    """The modules, still empty, and how each is to be filled. `mixed`: the formats that a weights budget chose."""

    opened: _Opened
    components: tuple[Component, ...]
    mixed: BudgetPlan | None
    rest: OffloadPlan | None

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules by name."""
        return {component.name: component.module for component in self.components}


@dataclass(frozen=True)
class _Filled:
    """Which of the checkpoint's own tensors went where, and what became of their bits."""

    assignments: list[Assignment]
    report: FillReport


def _open(
    info: CheckpointInfo,
    configs_dir: Path,
    choose_plan: Callable[[ModelFamily], PrecisionPlan],
    default_yaml: Path | None,
    facts: HashCache | None,
    files: ExitStack,
) -> _Opened:
    """Open the file, and choose the plan when its family is known."""
    chosen: list[PrecisionPlan] = []

    def wants_optional(family: ModelFamily) -> bool:
        chosen.append(choose_plan(family))
        return chosen[0].with_optional

    file = files.enter_context(open_checkpoint(info.path, wants_optional, modules=info.modules))
    family = detect_family(file)
    architecture = architecture_of(file, info, family, configs_dir, default_yaml)
    known = facts.fact(info.path, PREDICTION) if facts and architecture.prediction_type == PROBE else None
    told = architecture if known is None else predicting(architecture, family, known)
    return _Opened(file, family, chosen[0] if chosen else choose_plan(family), told)


def _match(opened: _Opened, info: CheckpointInfo, configs_dir: Path) -> _Matched:
    """Build the modules on the meta device; with a weights budget a format is chosen for each layer."""
    family, plan = opened.family, opened.plan
    folders = (info.path.parent, info.path.parent.parent, configs_dir.parent)
    try:
        components = tuple(family.components(opened.file.entries, opened.architecture, folders))
    except CheckpointError as error:
        raise CheckpointError(f"{info.path.name}: {error}") from error
    except (ValueError, TypeError, ZeroDivisionError) as error:  # diffusers refuses impossible sizes
        raise CheckpointError(f"{info.path.name}: its YAML describes an impossible model: {error}") from error
    optional = family.texts.optional
    for component in components:  # without its tokenizer an encoder is of no use: better to say so at once
        if optional is not None and component.name == optional.component:
            optional.tokenizer(info.path, int(component.module.config.vocab_size))  # type: ignore[union-attr, arg-type]
    mixed = None
    if plan.budget_bytes is not None:
        mixed = plan_budget(
            opened.file,
            assign_tensors(opened.file, components, family.is_ignored),
            lambda name: next(c.rules(plan.rules(name)) for c in components if c.name == name),
            plan.budget_bytes,
        )
        log.info("%s: %s", info.name, mixed.explained())
    return _Matched(opened, components, mixed, OffloadPlan(plan.streaming) if plan.streaming is not None else None)


def _fill(matched: _Matched, vae: VaeInfo | None, reads: Callable[[str], bool]) -> _Filled:
    """Place every weight of the components that are read in its final format; those of the VAE come from `vae` if that
    is given."""
    file, family, components = matched.opened.file, matched.opened.family, matched.components
    plan = matched.opened.plan
    multiply = product_of(plan)

    def placement(component: Component) -> Placement:
        return _placement(component, matched, multiply)

    if vae is None or not reads("vae"):
        assignments = [
            item for item in assign_tensors(file, components, family.is_ignored) if reads(item.component.name)
        ]
        return _Filled(assignments, fill(file, assignments, placement))
    others = [component for component in components if component.name != "vae"]
    replaced = [component for component in components if component.name == "vae"]
    own = tuple(prefix for component in replaced for prefix in component.prefixes)
    assignments = [
        item
        for item in assign_tensors(file, others, lambda key: key.startswith(own) or family.is_ignored(key))
        if reads(item.component.name)
    ]
    with open_vae(vae.path) as vae_file:
        vae_assignments = assign_tensors(vae_file, replaced, family.is_ignored)
        report = fill(file, assignments, placement)
        fill(vae_file, vae_assignments, placement)
    return _Filled(assignments, report)


def product_of(plan: PrecisionPlan) -> Callable[[nn.Module], bool] | None:
    """Return what has layers multiply without decoding their weights; None where they decode them."""
    return PRODUCTS[plan.mode]() if plan.mode in PRODUCTS else None


def _placement(component: Component, matched: _Matched, multiply: Callable[[nn.Module], bool] | None) -> Placement:
    """Where and how a component's weights lie; `multiply` has layers compute without decoding theirs."""
    plan, mixed = matched.opened.plan, matched.mixed
    chosen = None if mixed is None else mixed.chosen.get(component.name, {})
    rules = plan.placing(component, has_offsets=True, chosen=chosen)
    is_vae = component.name == "vae"
    return Placement(
        plan.device,
        rules,
        rules.dtype if is_vae else plan.compute_dtype,
        is_vae or plan.mode is not ComputeMode.AUTOCAST,
        multiply=None if is_vae else multiply,
        rest=matched.rest,
        map_files=plan.map_files,
    )


def _finish(matched: _Matched, reads: Callable[[str], bool]) -> StreamHandle | None:
    """Make what no file holds, and begin to stream where the plan wants it."""
    plan = matched.opened.plan
    for component in matched.components:
        if reads(component.name):
            finish_buffers(component.module, plan.device)
        component.module.eval().requires_grad_(False)
        if plan.mode is ComputeMode.INT8_MATMUL:
            share_inputs(component.module)
        if plan.channels_last and plan.streaming is None:
            put_channels_last(component.module)
    if matched.rest is None or plan.streaming is None:
        return None
    parts = {name: part for name, part in matched.parts.items() if reads(name)}
    return matched.rest.start(parts, plan.streaming, plan.device)


def _said(report: FillReport, matched: _Matched, info: CheckpointInfo) -> str:
    """Return what the user should know about the weights; also log it, with what was beyond the range of a format."""
    note = " ".join(filter(None, (storage_note(report), matched.mixed.explained() if matched.mixed else "")))
    if note:
        log.info("%s: %s", info.name, note)
    if report.saturated:
        log.warning(
            "%s: %d weights in %d tensors were beyond the range of %s and became its largest number: %s. "
            "A format with scales (fp8_e4m3fn_row) has no such limit.",
            info.name,
            sum(report.saturated.values()),
            len(report.saturated),
            matched.opened.plan.label,
            ", ".join(list(report.saturated)[:LISTED_TENSORS]),
        )
    return note


def storage_note(report: FillReport) -> str:
    """Describe in one line what a file has in fewer than 16 bits: what is kept so, what is stored in another format now
    and with which error. Empty for a file in 16 bits."""
    if not report.kept and not report.encoded:
        return ""
    kept = ", ".join(f"{count} in {name}" for name, count in report.kept.most_common())
    parts = [f"kept as the file has them: {kept}" if kept else "nothing is kept as the file has it"]
    for (before, after, error), count in report.encoded.most_common():
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
    tokens, width = model.family.texts.tokens, model.architecture.unet_sizes.context_width
    context = torch.full((1, tokens, width), 0.5, device=model.device)
    prediction = model.predict(x, torch.tensor([LAST_TIMESTEP], device=model.device), context)
    return float((prediction - x).mean()) < V_BELOW


def predicting(architecture: LdmArchitecture, family: ModelFamily, prediction: str) -> LdmArchitecture:
    """The architecture with this prediction type, and the size of the images that such models are trained on."""
    side = architecture.latent_side
    if prediction == "v_prediction" and family.noise.v_latent_side is not None:
        side = family.noise.v_latent_side
    return replace(architecture, prediction_type=prediction, latent_side=side)


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
        return read_architecture(own, configs_dir / family.config_name)
    known = sized_by_header(file.entries, read_architecture(configs_dir / family.config_name))
    if info.is_folder:
        known = refined(info.path, known)
    schedule = replace(known.noise_schedule, zero_terminal_snr=family.noise.has_zero_snr(file.entries))
    prediction = family.noise.prediction_type(file.entries, file.metadata) or known.prediction_type
    known = known if info.is_folder else predicting(known, family, prediction)  # a folder says its own size
    told = replace(known, noise_schedule=schedule, prediction_type=prediction)
    return family.noise.told(told, file)
