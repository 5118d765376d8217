"""What `launch.py plan` says of each family in full size at 1024 px with little memory, from files that hold names and
shapes alone.

Run `python -m benchmarks.plan_table`: it writes `results/plan-table.json` and the table of docs/models.md; with names
of families it plans these alone. No weights are needed, and no GPU: the plans are those of a CPU that computes in bf16,
where memory is main memory, with everything that the program holds.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.full_size import write_full_size_header
from benchmarks.report import print_table, read_result, write_result
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import Machine
from modules.processing.memory_estimate.estimate import MemoryEstimate, MemoryEstimator
from modules.processing.memory_estimate.proposals import propose
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.models.dit_files import full_header

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
DOCUMENT = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- plans: python -m benchmarks.plan_table -->", "<!-- /plans -->"
GB = 1_000_000_000
BUDGETS_GB = (4, 6, 8, 12)
SIDE = 1024
DTYPES = {2: "BF16", 4: "F32"}


@dataclass(frozen=True)
class Case:
    """A family: its key lists; and the CFG scale that is usual, above 1 two calls a step. `inside`: what its checkpoint
    has besides the denoiser, with the beginnings of the names there."""

    label: str
    denoiser: str
    encoders: tuple[str, ...] = ()
    vae: str = ""
    cfg_scale: float = 1.0
    inside: tuple[tuple[str, str], ...] = ()


T5_AND_CLIP = ("te-t5xxl", "te-clip-l")
CASES = (
    Case("SDXL", "", cfg_scale=7.0),
    Case("Anima", "anima", ("te-qwen3-0.6b",), "vae-qwen-image", 4.0),
    Case("FLUX.2 klein 4B", "flux2-klein-4b", ("te-qwen3-4b",), "vae-flux2"),
    Case("Z-Image Turbo", "z-image", ("te-qwen3-4b",), "vae-flux1"),
    Case(
        "SD 3.5 Large",
        "sd35-large",
        cfg_scale=4.5,
        inside=(
            ("te-clip-l", "text_encoders.clip_l.transformer."),
            ("te-clip-g", "text_encoders.clip_g.transformer."),
            ("vae-flux1", "first_stage_model."),
        ),
    ),
    Case("ERNIE-Image", "ernie-image", ("te-ministral3-3b",), "vae-flux2", 4.0),
    Case("Qwen-Image-2.1", "qwen-image-2.1", ("te-qwen3-vl-8b",), "vae-qwen-image-2.1"),
    Case("FLUX.3 klein", "flux3-klein", ("te-qwen3-vl-4b",), "vae-flux2"),
    Case("Chroma1", "chroma1", ("te-t5xxl",), "vae-flux1", 4.0),
    Case("FLUX.2 klein 9B", "flux2-klein-9b", ("te-qwen3-8b",), "vae-flux2"),
    Case("FLUX.1 dev", "flux1-dev", T5_AND_CLIP, "vae-flux1"),
    Case("Qwen-Image", "qwen-image", ("te-qwen2.5-vl-7b",), "vae-qwen-image", 4.0),
)


def write_header(path: Path, *parts: tuple[str, str]) -> None:
    """A file of full size on paper: its header, and a hole where the weights would be. `parts` are key lists with the
    beginnings of the names in the file."""
    header: dict[str, Any] = {}
    end = 0
    entries = {key: entry for name, prefix in parts for key, entry in full_header(name, prefix).items()}
    for key, entry in entries.items():
        begin, end = end, end + entry.dtype.itemsize * math.prod(entry.shape)
        header[key] = {"dtype": DTYPES[entry.dtype.itemsize], "shape": list(entry.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def write_case(root: Path, case: Case) -> str:
    """The files of a family in the folders that users keep them in; returns the checkpoint's name."""
    name = f"{case.denoiser or 'sdxl'}.safetensors"
    path = root / "Stable-diffusion" / name
    if case.denoiser:
        write_header(path, (case.denoiser, ""), *case.inside)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_full_size_header(path, "sdxl")
    for encoder in case.encoders:
        write_header(root / "text_encoder" / f"{encoder}.safetensors", (encoder, ""))
    if case.vae:
        write_header(root / "VAE" / f"{case.vae}.safetensors", (case.vae, ""))
    return name


def without_gpu() -> Machine:
    """A CPU that computes in bf16, its VAE too; a dry run on a GPU's behalf needs its driver."""
    return Machine(torch.device("cpu"), torch.bfloat16, torch.bfloat16)


def again(estimator: MemoryEstimator, budget: int, request: GenerationRequest) -> MemoryEstimate:
    """The plan of a changed request."""
    return estimator.plan(request, budget * GB)


def plans(case: Case, root: Path) -> Iterator[dict[str, Any]]:
    """What is planned for a family in each budget: the change that is proposed first, "" where none is needed."""
    name = write_case(root, case)
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
    estimator = MemoryEstimator(Engine(catalogue, CONFIGS, without_gpu, models=ExtraModels(modules=modules)), CONFIGS)
    request = GenerationRequest(
        width=SIDE, height=SIDE, steps=20, cfg_scale=case.cfg_scale, checkpoint=name, settings=Settings()
    )
    for budget in BUDGETS_GB:
        found = estimator.plan(request, budget * GB)
        proposals = propose(request, found, partial(again, estimator, budget), clock=lambda: 0.0)  # not cut short
        chosen = proposals[0].plan if proposals else found
        yield {
            "family": case.label,
            "budget_gb": budget,
            "change": proposals[0].change.title if proposals else "",
            "fits": chosen.fits,
            "needs_gb": round(chosen.needs_bytes / GB, 2),
            "weights_gb": round(found.weights_bytes / GB, 2),
            "as_it_is_gb": round(found.needs_bytes / GB, 2),
            "stages_gb": {stage.stage: round(stage.needs_bytes / GB, 2) for stage in chosen.stages},
        }


def cell(row: dict[str, Any]) -> str:
    """Return a plan in a few words."""
    if not row["fits"]:
        return "does not fit"
    return f"{row['needs_gb']:.1f}, {(row['change'] or 'as it is').removeprefix('stream weights: ')}"


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the document's table."""
    heads = ["family", "weights, 16 bits", *(f"{budget} GB" for budget in BUDGETS_GB)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for family in dict.fromkeys(row["family"] for row in rows):
        own = {row["budget_gb"]: row for row in rows if row["family"] == family}
        weights = f"{next(iter(own.values()))['weights_gb']:.1f}"
        lines.append(f"| {' | '.join([family, weights, *(cell(own[budget]) for budget in BUDGETS_GB)])} |")
    return lines


def main(words: Sequence[str]) -> int:
    """Plan, print, and write; what was planned before of other families stays."""
    known = {(row["family"], row["budget_gb"]): row for row in read_result("plan-table").get("plans", [])}
    for case in CASES:
        if words and case.label not in words:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows = list(plans(case, Path(folder)))
        print_table(("family", "GB", "plan"), [(row["family"], row["budget_gb"], cell(row)) for row in rows])
        known |= {(row["family"], row["budget_gb"]): row for row in rows}
    ordered = [known[case.label, budget] for case in CASES for budget in BUDGETS_GB if (case.label, budget) in known]
    write_result("plan-table", {"side_px": SIDE, "plans": ordered})
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    text = "\n".join([f"{before}{BEGIN}", "", *table(ordered), "", f"{END}{rest.partition(END)[2]}"])
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
