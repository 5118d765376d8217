"""How well the planner predicts memory: predicted peak of this process over the measured one, after two jobs.

Run `python -m benchmarks.planner`; the jobs run in a fresh process with the shipped model on the CPU. `--full`
uses a checkpoint of SD1's full size with random weights in its place (2.2 GB of disk, about 6 GB of memory).
`--proposals` measures instead how long it takes to find changes with which too large a job fits, for a checkpoint of
SDXL's full size of which there is the header alone; the rest of `results/planner.json` stays.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import print_table, read_result, write_result

GOAL = 0.10
ROOT = Path(__file__).parent.parent
SHIPPED = "featherweight-scenes.safetensors"
STAGES = ("adapters", "text", "denoise", "decode", "save")  # what a job takes alongside loading, which learns nothing
LEARNT = 2  # jobs from which it learns before it is judged
Job = tuple[int, int, dict[str, Any]]  # side in pixels, batch size, settings
JOBS: tuple[Job, ...] = (
    (256, 1, {}),
    (512, 1, {}),
    (384, 1, {}),
    (256, 4, {}),
    (128, 1, {}),
    (512, 2, {}),
    (512, 1, {"fp8_storage": "Enable"}),
    (512, 1, {"vae_tile_size": 256}),
)
FULL_JOBS: tuple[Job, ...] = ((128, 1, {}), (256, 1, {}), (384, 1, {}), (256, 2, {}))


def run_jobs(checkpoint: str, folder: Path | None, jobs: tuple[Job, ...]) -> list[dict[str, Any]]:
    """Plan, run and learn from one job after the other; bytes and times of each."""
    import time

    import torch

    from modules.assembly import build_services
    from modules.flags.flags import Flags
    from modules.processing.memory_estimate.estimate import MemoryEstimator
    from modules.processing.pipeline.generate import generate
    from modules.processing.record.output import Output
    from modules.processing.request.events import Silent
    from modules.processing.request.request import GenerationRequest

    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as data:
        services = build_services(
            Flags(data_dir=data, use_cpu=("all",), ckpt_dir=str(folder) if folder else None, no_hashing=True)
        )
        estimator = MemoryEstimator(services.engine, services.paths.root / "configs")
        for side, batch, settings in jobs:
            request = GenerationRequest(
                prompt="a red circle",
                width=side,
                height=side,
                steps=1,
                batch_size=batch,
                seed=1,
                subseed=1,
                checkpoint=checkpoint,
                save_images=False,
                save_grid=False,
                settings=services.settings.current.with_changes({"return_grid": False, **settings}),
            )
            began = time.monotonic()
            plan = estimator.plan(request)
            planned = time.monotonic()
            result = generate(request, services.engine, Output(Path(data)), Silent())
            assert result.memory is not None
            measured = result.memory.summary()
            of_job = max(peak["rss"] or 0 for stage, peak in measured.items() if stage != "load")
            needs = max(stage.needs_bytes for stage in plan.stages if stage.stage != "load")
            estimator.learn(request, result)
            rows.append(
                {
                    "job": f"{side}x{side}, batch {batch}{''.join(f', {k}={v}' for k, v in settings.items())}",
                    "predicted_bytes": needs,
                    "measured_bytes": of_job,
                    "error": needs / of_job - 1,
                    "plan_s": planned - began,
                    "job_s": time.monotonic() - planned,
                    "stages": {
                        stage.stage: {
                            "predicted_bytes": stage.needs_bytes,
                            "measured_bytes": measured.get(stage.stage, {}).get("rss"),
                        }
                        for stage in plan.stages
                    },
                }
            )
        services.dispatcher.close()
    return rows


TOO_LARGE = ((1024, 8), (2048, 8), (8192, 24), (8192, 4), (8192, 1))  # side in pixels, 10^9 bytes that are there
PROPOSAL_GOAL_S = 1.0


def time_proposals() -> list[dict[str, Any]]:
    """Seconds of the first plan of a job that does not fit, and of the search for changes; whether all of them fit."""
    import time

    from benchmarks.full_size import write_full_size_header
    from modules.assembly import build_services
    from modules.flags.flags import Flags
    from modules.processing.memory_estimate.proposals import propose
    from modules.processing.memory_estimate.words import plan_reply
    from modules.processing.request.request import GenerationRequest

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").mkdir()
        write_full_size_header(Path(folder) / "models" / "xl.safetensors", "sdxl")
        services = build_services(
            Flags(
                data_dir=f"{folder}/data", use_cpu=("all",), ckpt_dir=f"{folder}/models", no_hashing=True, no_half=True
            )
        )
        settings = services.settings.current
        plan = services.estimator.plan
        plan(GenerationRequest(checkpoint="xl.safetensors", settings=settings))  # imports, and reads the header
        for side, available_gb in TOO_LARGE:
            request = GenerationRequest(width=side, height=side, checkpoint="xl.safetensors", settings=settings)
            free = available_gb * 10**9
            began = time.monotonic(), time.process_time()
            found = plan(request, free)
            planned = time.monotonic(), time.process_time()
            proposals = propose(request, found, lambda changed, free=free: plan(changed, free))  # type: ignore[misc]
            ended = time.monotonic(), time.process_time()
            rows.append(
                {
                    "job": f"SDXL, {side}x{side}, {available_gb} GB",
                    "needs_bytes": found.needs_bytes,
                    "plan_s": planned[0] - began[0],
                    "plan_cpu_s": planned[1] - began[1],
                    "proposals_s": ended[0] - planned[0],
                    "proposals_cpu_s": ended[1] - planned[1],
                    "proposals": [item.change.title for item in proposals],
                    "all_fit": all(item.plan.fits for item in proposals),
                    "nothing_fits": plan_reply(found, proposals)["nothing_fits"],
                }
            )
        services.dispatcher.close()
    return rows


def proposals_main() -> None:
    """Measure the proposals, print, and write them next to what the file has."""
    rows = time_proposals()
    print_table(
        ["job", "plan, s", "of CPU", "proposals, s", "of CPU", "proposals"],
        [
            (
                row["job"],
                *(f"{row[name]:.2f}" for name in ("plan_s", "plan_cpu_s", "proposals_s", "proposals_cpu_s")),
                "; or ".join(row["proposals"]) or row["nothing_fits"] or "fits",
            )
            for row in rows
        ],
    )
    before = read_result("planner")
    machine_before = before.pop("machine")
    met = all(row["all_fit"] and row["proposals_cpu_s"] <= PROPOSAL_GOAL_S for row in rows)
    found = {"rows": rows, "goal_s": PROPOSAL_GOAL_S, "met": met}
    write_result("planner", {**before, "machine_of_jobs": machine_before, "proposals": found})


def measure(checkpoint: str, folder: Path | None, which: str) -> list[dict[str, Any]]:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.planner", "--child", checkpoint, str(folder or ""), which]
    reply = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows: list[dict[str, Any]] = json.loads(reply.splitlines()[-1])
    return rows


def main() -> None:
    """Measure, print, write."""
    if "--child" in sys.argv:
        checkpoint, folder, which = sys.argv[-3:]
        jobs = FULL_JOBS if which == "full" else JOBS
        print(json.dumps(run_jobs(checkpoint, Path(folder) if folder else None, jobs)))
        return
    if "--proposals" in sys.argv:
        proposals_main()
        return
    if "--full" in sys.argv:
        from benchmarks.full_size import write_full_size_checkpoint

        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "full.safetensors"
            write_full_size_checkpoint(path)
            rows = measure(path.name, path.parent, "full")
    else:
        rows = measure(SHIPPED, None, "shipped")
    print_table(
        ["job", "predicted, MB", "measured, MB", "error", "plan, s"],
        [
            (
                row["job"],
                f"{row['predicted_bytes'] / 1e6:.0f}",
                f"{row['measured_bytes'] / 1e6:.0f}",
                f"{row['error']:+.1%}",
                f"{row['plan_s']:.2f}",
            )
            for row in rows
        ],
    )
    judged = rows[LEARNT:]
    worst = max(abs(row["error"]) for row in judged)
    by_stage = {stage: max(_errors(judged, stage)) for stage in STAGES if _errors(judged, stage)}
    print(f"largest error after {LEARNT} jobs: {worst:.1%} (goal {GOAL:.0%})")
    print("by stage:", ", ".join(f"{stage} {error:.1%}" for stage, error in by_stage.items()))
    result = {"learnt_jobs": LEARNT, "jobs": rows, "worst_error": worst, "worst_error_by_stage": by_stage, "goal": GOAL}
    met = max(worst, *by_stage.values()) <= GOAL
    write_result("planner_full" if "--full" in sys.argv else "planner", {**result, "met": met})


def _errors(rows: list[dict[str, Any]], stage: str) -> list[float]:
    """How far off each prediction of a stage was."""
    found = (row["stages"].get(stage) for row in rows)
    return [
        abs(item["predicted_bytes"] / item["measured_bytes"] - 1) for item in found if item and item["measured_bytes"]
    ]


if __name__ == "__main__":
    main()
