"""The buttons below an image: save with its log, zip, delete, hires fix of this image."""

import csv
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.images.encode import encode_image
from modules.jobs.job import Job
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, SourceImage
from modules.services import Services
from modules.ui.form.form import FIELDS
from modules.ui.routes.gallery_routes import LOG_COLUMNS, log_saved

HIRES = {
    **dict.fromkeys(FIELDS),
    **{"hires_upscaler": "Latent", "hires_scale": 2.0, "hires_steps": 3, "hires_denoising_strength": 0.5},
    **{"hires_resize_width": 0, "hires_resize_height": 0, "hires_prompt": "", "hires_negative_prompt": ""},
    **{"hires_checkpoint": "Use same checkpoint", "hires_sampler": "Use same sampler"},
    "hires_scheduler": "Use same scheduler",
}


def finished(services: Services, **values: Any) -> Job:
    common: dict[str, Any] = {"prompt": "x", "width": 64, "height": 64, "steps": 2, "sampler": "Euler", "seed": 11}
    job = services.queue.submit(GenerationRequest(**{**common, **values}))
    assert job.wait(120)
    return job


def saved_to(services: Services, job: Job, folder: Path) -> list[Path]:
    """Give the images of a job files, as the real executor does."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:05}-{image.seed}.png" for number, image in enumerate(job.result().images)]
    images = []
    for path, image in zip(paths, job.result().images, strict=True):
        path.write_bytes(encode_image(image.image, "png", image.infotext))
        images.append(replace(image, path=path))
    job._result = replace(job.result(), images=tuple(images))
    return paths


def post(client: TestClient, what: str, job: Job, index: int = 0, **more: Any) -> Any:
    return client.post(f"/internal/{what}", json={"id_task": job.task_id, "index": index, **more})


def test_the_log_names_what_the_reference_ui_names(client: TestClient, services: Services) -> None:
    job = finished(services, prompt='a "red", cat', negative_prompt="dog")
    path = Path(post(client, "save-image", job).json()["path"])
    with (services.paths.data_dir / "log" / "images" / "log.csv").open(newline="") as stream:
        row = list(csv.DictReader(stream))[-1]
    assert tuple(row) == LOG_COLUMNS
    assert (row["prompt"], row["negative_prompt"], row["filename"]) == ('a "red", cat', "dog", path.name)
    assert (row["width"], row["height"], row["cfgs"], row["steps"]) == ("64", "64", "7.0", "2")
    assert row["sd_model_name"] == "tiny" or row["sd_model_name"]
    assert row["sd_model_hash"] == "f" * 10


def test_an_older_log_gets_the_columns_that_it_lacks_and_keeps_its_own(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("prompt,seed,mine\nold,1,note\n")
    for seed in (2, 3):
        log_saved(file, {"prompt": "new", "seed": seed, "sd_model_name": "m"})
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["prompt"], row["seed"], row["mine"], row["sd_model_name"]) for row in rows] == [
        *(("old", "1", "note", ""), ("new", "2", "", "m"), ("new", "3", "", "m")),
    ]


def test_an_archive_holds_files_as_they_were_saved_and_the_others_as_png(
    client: TestClient, services: Services, tmp_path: Path
) -> None:
    job = finished(services, batch_count=2)
    services.settings.update({"grid_zip_filename_pattern": "all [seed] of [steps]"})
    reply = client.get("/internal/zip-images", params={"id_task": job.task_id})
    assert reply.headers["Content-Disposition"].startswith('attachment; filename="all 11 of 2.zip"')
    assert zipfile.ZipFile(io.BytesIO(reply.content)).namelist() == ["00000-11.png", "00001-12.png"]
    (first, _) = saved_to(services, job, tmp_path)
    first.write_bytes(b"as it was saved")
    (saved_to(services, job, tmp_path / "more")[1]).unlink()
    archive = zipfile.ZipFile(io.BytesIO(client.get("/internal/zip-images", params={"id_task": job.task_id}).content))
    assert sorted(archive.namelist()) == ["00000-11.png", "00001-12.png"]
    assert not list(services.paths.cache_dir.glob("*.zip"))
    services.settings.update({"grid_zip_filename_pattern": ""})


def test_a_deleted_image_lies_in_the_trash_and_leaves_its_job(
    client: TestClient, services: Services, tmp_path: Path
) -> None:
    job = finished(services, batch_count=3)
    paths = saved_to(services, job, tmp_path)
    paths[1].with_suffix(".txt").write_text("infotext")
    moved = Path(post(client, "delete-image", job, 1).json()["trash"])
    assert moved.is_relative_to(services.paths.outputs_dir / "trash") and moved.name == paths[1].name
    assert moved.is_file() and moved.with_suffix(".txt").is_file()
    assert not paths[1].exists() and paths[0].exists()
    reply = client.get("/internal/result", params={"id_task": job.task_id}).json()
    assert [image["seed"] for image in reply["images"]] == ["11", "13"]
    assert all(image["url"].endswith("&v=1") for image in reply["images"])
    record = services.queue.store.get(job.task_id)
    assert record is not None and record.outcome is not None
    assert [image["seed"] for image in record.outcome["images"]] == [11, 13]


def test_deleting_where_a_name_is_taken_or_the_file_is_not_there(
    client: TestClient, services: Services, tmp_path: Path
) -> None:
    names = []
    for _ in range(2):
        job = finished(services)
        saved_to(services, job, tmp_path)
        names.append(Path(post(client, "delete-image", job).json()["trash"]).stem)
    assert names[1] == f"{names[0]}-1"
    job = finished(services)
    saved_to(services, job, tmp_path)[0].unlink()
    assert post(client, "delete-image", job).json() == {"trash": None}
    assert post(client, "delete-image", job).status_code == 404


def test_an_image_of_a_job_that_runs_is_not_deleted(client: TestClient, services: Services) -> None:
    job = services.queue.submit(GenerationRequest(prompt="slow", width=64, height=64, steps=30, batch_count=9))
    while not job.images:
        job.wait(0.05)
    reply = post(client, "delete-image", job)
    services.queue.interrupt(job.task_id)
    assert reply.status_code == 503 and "still runs" in reply.json()["errors"]
    assert job.wait(120)


def test_hires_of_an_image_takes_its_own_seed_and_parameters_and_the_forms_second_pass(
    client: TestClient, services: Services
) -> None:
    job = finished(services, prompt="of its own", batch_count=3, subseed=40, cfg_scale=3.5)
    reply = post(client, "hires-image", job, 2, form={**HIRES, "prompt": "of the form", "seed": 99})
    assert reply.status_code == 200, reply.text
    request = services.queue.known.get(reply.json()["task"]).request
    assert (request.prompt, request.seed, request.subseed) == ("of its own", 13, 42)
    assert (request.cfg_scale, request.width, request.height) == (3.5, 64, 64)
    assert (request.batch_size, request.batch_count) == (1, 1)
    assert request.hires is not None and (request.hires.scale, request.hires.steps) == (2.0, 3)


@pytest.mark.parametrize("form", [{}, {**HIRES, "hires_scale": "large"}])
def test_a_form_without_hires_fields_is_a_sentence(
    client: TestClient, services: Services, form: dict[str, object]
) -> None:
    reply = post(client, "hires-image", finished(services), form=form)
    assert reply.status_code == 422 and reply.json()["errors"]


def test_hires_of_an_image_of_img2img_names_the_way_to_enlarge_it(client: TestClient, services: Services) -> None:
    made = finished(services)
    source = SourceImage.of(made.result().images[0].image)
    job = finished(services, start=FromImage(images=(source,)))
    reply = post(client, "hires-image", job, form=HIRES)
    assert reply.status_code == 422 and "Send this image to img2img" in reply.json()["errors"]
