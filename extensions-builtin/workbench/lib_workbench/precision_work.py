"""Precision as page and API ask for it: reports, comparisons and conversions become tasks; what is wrong with a
options is said at once. Imports torch when it works, not before."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lib_workbench.reports import Reports
from modules.errors import InvalidValueError, UnknownNameError
from modules.jobs.computing import Computing
from modules.jobs.line import fix_seeds
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.memory.formats.catalog import FORMAT_SPECS, chosen_formats, wide_formats
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.comparison.series import SeriesReport
from modules.processing.engine.chosen_checkpoint import stored_checkpoint, wanted_checkpoint
from modules.processing.engine.precision import BUDGET_FORMAT, INT8_FORMATS, check_patterns, storage_rules
from modules.processing.record.output import Output
from modules.processing.request.checking import check_names
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.system.file_names import check_name, place_inside
from modules.system.paths import Paths
from modules.system.texts import page_text

if TYPE_CHECKING:
    from lib_workbench.merging.conversion import PrecisionReport

UNSTORED = "16 bit"  # as `processing.comparison` calls fp8 off
EIGHT_BIT = chosen_formats()
SAVED = (*EIGHT_BIT, *wide_formats())  # what files can be saved in
LAYOUTS = ("own", "comfyui", "gguf")
MAX_BUDGET_GB = 1024
INT8_MATMUL = " + int8 matmul"  # as `processing.comparison` calls products in int8
COMPARED_BY_DEFAULT = (UNSTORED, "fp8_e4m3fn_row", "fp8_e4m3fn", "fp8_e5m2", "int8_row")
COMPARED = (UNSTORED, *EIGHT_BIT, *(name + INT8_MATMUL for name in INT8_FORMATS))
REPORT_TYPE, COMPARISON_TYPE, CONVERSION_TYPE = "precision-report", "precision-comparison", "conversion"
GRID_REPORT = "precision-grid"  # reports of grids; not a type of tasks
PRECISION_TYPES = (REPORT_TYPE, COMPARISON_TYPE, CONVERSION_TYPE)
WORST_SHOWN = 10
MAX_PROMPTS = 16
REPORTS_FOLDER = "reports"  # of the outputs
NEEDED = "modules.models.loading.load_model"  # what imports diffusers and transformers


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """A checkpoint in a storage format. None: the checkpoint that is chosen in the settings."""

    checkpoint: str | None = None
    storage: str = "fp8_e4m3fn_row"
    skip: tuple[str, ...] = ()  # regular expressions on names of layers that stay
    text_encoders: bool = True
    budget_gb: float = 0.0  # each layer in a format of its own, so that all weights fit; 0: one format for all
    alone: bool = False  # a denoiser that is a file of its own stays one, whatever parts are near
    layout: str = ""  # of a file that is written: "own", "comfyui", "gguf"; "": as its name says

    @property
    def budget_bytes(self) -> int | None:
        """The budget, if there is one."""
        return round(self.budget_gb * 1e9) or None


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """Request for the same images in several formats; the first is what the others are measured against."""

    prompts: tuple[str, ...]
    storages: tuple[str, ...] = COMPARED_BY_DEFAULT
    checkpoint: str | None = None
    negative_prompt: str = ""
    steps: int = 20
    cfg_scale: float = 7.0
    sampler: str = "DPM++ 2M"
    seed: int = -1
    width: int | None = None  # None: what the model was trained on
    height: int | None = None


def reports_of(paths: Paths) -> Reports:
    """Return the reports of this program, in a folder of the outputs."""
    return Reports(paths.outputs_dir / REPORTS_FOLDER)


@dataclass(frozen=True)
class PrecisionWork:
    """Reports, comparisons and conversions of this program; converted checkpoints go to the first folder of them."""

    computing: Computing

    @property
    def reports(self) -> Reports:
        """Return the reports of this program."""
        return reports_of(self.computing.paths)

    def report(self, options: StorageOptions) -> Task:
        """The dry run: what would be stored how, bytes and errors. Raises what is wrong with the options."""
        return self.computing.queue.submit_spec(self.report_spec(options))

    def report_spec(self, options: StorageOptions) -> TaskSpec:
        """See `report`; not yet in line."""
        info = self._check(options, EIGHT_BIT)

        def work(task: Task) -> Outcome:
            self._import()
            from lib_workbench.merging.conversion import report_precision

            found = report_precision(
                info,
                self.computing.paths.root / "configs",
                _rules(options),
                options.text_encoders,
                _tensors(task),
                options.budget_bytes,
            )
            stem = self.reports.new_stem(REPORT_TYPE)
            self.reports.write(f"{stem}.json", json.dumps(found.as_dict(), indent=1))
            return {**facts_of(found), "json": f"{stem}.json"}

        title = page_text(f"Precision report of {info.name} as {FORMAT_SPECS.get(options.storage).label}")
        if options.budget_bytes:
            title = page_text(f"Precision report of {info.name} within {options.budget_gb:g} GB")
        return TaskSpec(REPORT_TYPE, title, work, asdict(options))

    def convert(self, options: StorageOptions, name: str) -> Task:
        """Save the checkpoint in another precision as `name` in the folder of checkpoints; nothing is replaced."""
        return self.computing.queue.submit_spec(self.convert_spec(options, name))

    def convert_spec(self, options: StorageOptions, name: str) -> TaskSpec:
        """See `convert`; not yet in line."""
        info = self._check(options, SAVED)
        target = self._target(name, options.layout)

        def work(task: Task) -> Outcome:
            self._import()
            from lib_workbench.merging.conversion import save_as

            found = save_as(
                info,
                self.computing.paths.root / "configs",
                _rules(options),
                target,
                options.text_encoders,
                _tensors(task),
                options.budget_bytes,
                options.layout,
                options.alone,
            )
            self.computing.catalogue.refresh()
            return {**facts_of(found), "file": target.name, "size_bytes": target.stat().st_size}

        asked = {"options": asdict(options), "name": name}
        return TaskSpec(CONVERSION_TYPE, page_text(f"Saving {info.name} as {target.name}"), work, asked)

    def compare(self, options: ComparisonRequest) -> Task:
        """Make the images; a page and numbers go into the reports."""
        return self.computing.queue.submit_spec(self.compare_spec(options))

    def compare_spec(self, options: ComparisonRequest) -> TaskSpec:
        """See `compare`; not yet in line."""
        request = self._request(options)
        info = self._default(options.checkpoint)

        def work(task: Task) -> Outcome:
            self._import()
            from lib_workbench.comparison.compare import as_json, compare
            from lib_workbench.comparison.report_page import as_html
            from lib_workbench.comparison.verdict import verdict

            side = self._default_side(request)
            sized = replace(request, width=options.width or side, height=options.height or side)
            try:
                events = _Progress(task, len(options.storages) * len(options.prompts))
                output = Output(self.reports.folder)
                rows = compare(
                    sized, options.prompts, options.storages, self.computing.engine, output, events, events.begin_image
                )
            finally:
                # What the settings say comes back, behind whatever waits.
                self.computing.engine.request_load(self._stored_name())
            made_with = described(sized)
            numbers = {**as_json(rows, options.prompts, info.title), "made_with": made_with, "verdict": verdict(rows)}
            stem = self.reports.new_stem(COMPARISON_TYPE)
            self.reports.write(f"{stem}.html", as_html(rows, options.prompts, info.title, made_with))
            self.reports.write(f"{stem}.json", json.dumps(numbers, indent=1))
            return {**numbers, "page": f"{stem}.html", "json": f"{stem}.json"}

        return TaskSpec(COMPARISON_TYPE, page_text(f"Comparing precisions of {info.name}"), work, asdict(options))

    @property
    def starters(self) -> Mapping[str, Starter]:
        """How work of these types is begun from its record."""
        return {
            REPORT_TYPE: lambda asked: self.report_spec(_storage_options(asked)),
            CONVERSION_TYPE: lambda asked: self.convert_spec(_storage_options(asked["options"]), str(asked["name"])),
            COMPARISON_TYPE: lambda asked: self.compare_spec(
                ComparisonRequest(**{**asked, "prompts": tuple(asked["prompts"]), "storages": tuple(asked["storages"])})
            ),
        }

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check(self, options: StorageOptions, allowed: tuple[str, ...]) -> CheckpointInfo:
        if options.storage not in allowed:
            raise UnknownNameError.of("storage format", options.storage, allowed)
        check_patterns(options.skip)
        if not 0 <= options.budget_gb <= MAX_BUDGET_GB:
            raise InvalidValueError(f"A budget is 0 to {MAX_BUDGET_GB} GB, and {options.budget_gb:g} was given.")
        if options.layout not in ("", *LAYOUTS):
            raise UnknownNameError.of("file layout", options.layout, LAYOUTS)
        return self._default(options.checkpoint)

    def _default(self, name: str | None) -> CheckpointInfo:
        """The checkpoint of that name, else the one that an image would be made with."""
        return self.computing.catalogue.default(name or self._stored_name())

    def _stored_name(self) -> str | None:
        return stored_checkpoint(self.computing.settings.current, self.computing.catalogue).name

    def _target(self, name: str, layout: str) -> Path:
        name = name.strip()
        if name and not name.endswith((".safetensors", ".gguf")):
            name += ".gguf" if layout == "gguf" else ".safetensors"
        stem = name.removesuffix(".safetensors").removesuffix(".gguf")
        try:
            if check_name(stem).startswith("."):
                raise InvalidValueError("It begins with a dot.")
            target = place_inside(self.computing.paths.checkpoint_dirs[0], check_name(name))
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{name[:80]!r} is no name for a checkpoint. Write a file name such as smaller.safetensors. {error}"
            ) from error
        if target.exists():
            raise InvalidValueError(f"{name} is there already. Choose another name, or delete it first.")
        return target

    def _request(self, options: ComparisonRequest) -> GenerationRequest:
        prompts = [prompt for prompt in options.prompts if prompt.strip()]
        if not prompts or len(options.prompts) > MAX_PROMPTS:
            raise InvalidValueError(f"A comparison takes 1 to {MAX_PROMPTS} prompts, {len(prompts)} were given.")
        if len(options.storages) < 2 or len(set(options.storages)) < len(options.storages):
            raise InvalidValueError(f"A comparison takes two or more different formats of: {', '.join(COMPARED)}.")
        for storage in options.storages:
            if storage not in COMPARED:
                raise UnknownNameError.of("storage format", storage, COMPARED)
        for prompt in options.prompts:
            GenerationRequest(prompt=prompt)
        request = GenerationRequest(
            prompt=prompts[0],
            negative_prompt=options.negative_prompt,
            steps=options.steps,
            cfg_scale=options.cfg_scale,
            sampler=options.sampler,
            seed=options.seed,
            width=options.width or 512,
            height=options.height or 512,
            checkpoint=options.checkpoint,
            settings=self.computing.settings.current,
        )
        check_names(request, self.computing.catalogue)
        return fix_seeds(request)

    def _default_side(self, request: GenerationRequest) -> int:
        return self.computing.engine.model(wanted_checkpoint(request, self.computing.catalogue).name).default_size_px

    def _import(self) -> None:
        """Packages are imported under the engine's lock: a load in the background may import the same ones."""
        if hasattr(sys.modules.get(NEEDED), "load_model"):
            return
        with self.computing.engine.lock:
            import modules.processing.pipeline.generate  # noqa: F401


def write_series(reports: Reports, report: SeriesReport) -> str:
    """A page and numbers of images that were made elsewhere; gives the page's name. Raises `OutputError`."""
    from lib_workbench.comparison.compare import as_json, rows_of
    from lib_workbench.comparison.report_page import as_html
    from lib_workbench.comparison.verdict import verdict

    rows = rows_of(report.series)
    numbers = as_json(rows, report.captions, report.model)
    numbers |= {"made_with": report.made_with, "verdict": verdict(rows)}
    stem = reports.new_stem(GRID_REPORT)
    reports.write(f"{stem}.html", as_html(rows, report.captions, report.model, report.made_with))
    reports.write(f"{stem}.json", json.dumps(numbers, indent=1))
    return f"{stem}.html"


def facts_of(found: PrecisionReport) -> dict[str, Any]:
    """A report without its list of all tensors: totals, parts, and the largest errors."""
    whole = found.as_dict()
    del whole["tensors"]
    parts = []
    for component in found.components():
        before, after = found.bytes_of(component)
        tensors = [tensor for tensor in found.tensors if tensor.component == component]
        stored = sum(tensor.storage is not None for tensor in tensors)
        parts.append(
            {
                "component": component,
                "stored": stored,
                "stays": len(tensors) - stored,
                "bytes_16": before,
                "bytes_stored": after,
            }
        )
    worst = [{"name": t.name, "shape": list(t.shape), "error": t.error} for t in found.worst(WORST_SHOWN)]
    return {**whole, "components": parts, "worst": worst}


def described(request: GenerationRequest) -> str:
    """How the images of a comparison were made, for people."""
    width, height = request.size_px
    return (
        f"{request.steps} steps of {request.sampler}, {width}×{height} pixels, CFG scale {request.cfg_scale:g}, "
        f"seed {request.seed}"
    )


def _storage_options(asked: dict[str, Any]) -> StorageOptions:
    return StorageOptions(**{**asked, "skip": tuple(asked["skip"])})


def _rules(options: StorageOptions) -> Any:
    return storage_rules(BUDGET_FORMAT if options.budget_bytes else options.storage, options.skip)


def _tensors(task: Task) -> Any:
    return lambda done, total: task.progress(done, total, page_text(f"{done} of {total} tensors"))


class _Progress(Silent):
    """Events of a comparison as the progress of its task."""

    def __init__(self, task: Task, images: int) -> None:
        self._task = task
        self._images = images
        self._begun = 0
        self._steps = 1
        self._what = ""

    def check(self) -> None:
        self._task.check()

    def begin_image(self, storage: str, number: int) -> None:
        """The next image is made in this format."""
        self._what = f"{storage}, image {number}"

    def plan(self, total_steps: int) -> None:
        self._begun += 1
        self._steps = max(total_steps, 1)

    def step(self, done: int, info: object = None) -> None:
        finished = self._begun - 1 + done / self._steps
        self._task.progress(finished, self._images, page_text(f"{self._what}, step {done} of {self._steps}"))
