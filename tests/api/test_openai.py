"""The PyPI client `openai`, unmodified, against a real server."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import openai
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from modules.images.metadata import read_metadata
from modules.jobs.job import Job
from modules.processing.engine.status import EngineState, EngineStatus, ModelFacts
from modules.processing.request.source_images import FromImage
from modules.services import Services

FEW = {"steps": 2}


@pytest.fixture(scope="module")
def api(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=2)


@pytest.fixture
def jobs(services: Services, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are submitted."""
    seen: list[Job] = []
    submit = services.queue.submit

    def noting(*args: Any, **named: Any) -> Job:
        seen.append(submit(*args, **named))
        return seen[-1]

    monkeypatch.setattr(services.queue, "submit", noting)
    return seen


def image_of(text: str | None) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(text or "")))


def png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def test_images_come_as_base64(api: openai.OpenAI, jobs: list[Job]) -> None:
    reply = api.images.generate(prompt="a cat", n=2, size="64x96", extra_body={"seed": 3, **FEW})
    assert reply.size == "64x96" and reply.output_format == "png" and reply.data is not None
    images = [image_of(one.b64_json) for one in reply.data]
    assert [(one.format, one.size) for one in images] == [("PNG", (64, 96))] * 2
    seeds = [
        f"Seed: {seed}" in str(read_metadata(base64.b64decode(one.b64_json or ""))[0])
        for seed, one in zip((3, 4), reply.data, strict=True)
    ]
    assert seeds == [True, True]
    request = jobs[0].request
    assert (request.prompt, request.batch_count, request.batch_size, request.sampler) == ("a cat", 2, 1, "DPM++ 2M")
    assert not request.save_images


@pytest.mark.parametrize("model", ["gpt-image-1", "gpt-image-2.5-flare", "dall-e-2", "tiny-sd1"])
def test_models_of_theirs_and_of_ours_are_drawn_with(api: openai.OpenAI, jobs: list[Job], model: str) -> None:
    api.images.generate(prompt="x", model=model, size="64x64", response_format="b64_json", extra_body=FEW)
    assert (jobs[0].request.checkpoint is not None) == (model == "tiny-sd1")


def test_a_model_that_is_not_here_is_named(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"Unknown checkpoint 'zzz'.*Known: .*tiny-sd1") as caught:
        api.images.generate(prompt="x", model="zzz")
    assert caught.value.code == "model_not_found" and caught.value.type == "invalid_request_error"


def test_models_are_listed(api: openai.OpenAI) -> None:
    found = api.models.list().data
    assert "tiny-sd1" in [one.id for one in found]
    assert api.models.retrieve("tiny-sd1") == next(one for one in found if one.id == "tiny-sd1")
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("zzz")


@pytest.mark.parametrize(("format", "name"), [("jpeg", "JPEG"), ("webp", "WEBP"), ("png", "PNG")])
def test_formats(api: openai.OpenAI, format: Any, name: str) -> None:
    reply = api.images.generate(prompt="x", size="64x64", output_format=format, output_compression=20, extra_body=FEW)
    assert reply.data and image_of(reply.data[0].b64_json).format == name and reply.output_format == format


@pytest.mark.parametrize(("quality", "steps"), [("low", 10), ("standard", 20), ("hd", 30)])
def test_quality_is_a_number_of_steps(api: openai.OpenAI, jobs: list[Job], quality: Any, steps: int) -> None:
    api.images.generate(prompt="x", size="64x64", quality=quality, style="vivid", user="me", moderation="low")
    assert jobs[0].request.steps == steps


def test_a_loaded_model_is_sampled_as_its_family_usually_is(
    api: openai.OpenAI, jobs: list[Job], services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = services.catalogue.get("tiny-sd1")
    usual = "Steps: 4, Sampler: Euler, Schedule type: Simple, CFG scale: 1, Distilled CFG Scale: 2.5"
    facts = ModelFacts(info.title, "toy", 1, 1, 1, "fp32", "cpu", default_size_px=96, usual=usual)
    status = EngineStatus(EngineState.READY, "", facts)
    monkeypatch.setattr(type(services.models), "status", property(lambda self: status))
    api.images.generate(prompt="x")
    api.images.edit(
        prompt="x", image=[png(Image.new("RGB", (64, 64))), png(Image.new("RGB", (32, 64)))], quality="high"
    )
    first, second = (job.request for job in jobs)
    sampling = (first.steps, first.sampler, first.scheduler, first.cfg_scale, first.distilled_cfg_scale, first.size_px)
    assert sampling == (4, "Euler", "Simple", 1.0, 2.5, (96, 96))
    assert isinstance(second.start, FromImage) and second.start.denoising_strength == 1.0 and second.steps == 6
    assert [source.image.size for source in second.start.references] == [(32, 64)]


def test_an_edit_changes_an_image(api: openai.OpenAI, jobs: list[Job]) -> None:
    """Large images are made smaller, to the model's usual number of pixels."""
    image = png(Image.new("RGB", (2048, 1024), "red"))
    reply = api.images.edit(prompt="x", image=("a.png", image), n=2, extra_body={"denoising_strength": 0.4, **FEW})
    assert reply.data is not None and len(reply.data) == 2 and reply.size == "720x368"
    start = jobs[0].request.start
    assert isinstance(start, FromImage) and (start.mask, start.denoising_strength) == (None, 0.4)


def test_what_is_transparent_in_the_mask_is_painted(api: openai.OpenAI, jobs: list[Job]) -> None:
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 32, 64))
    api.images.edit(prompt="x", image=png(Image.new("RGB", (64, 64))), mask=png(mask), size="64x64", extra_body=FEW)
    start = jobs[0].request.start
    assert isinstance(start, FromImage) and start.mask is not None and not start.mask.full_resolution
    painted = start.mask.image.image.convert("L")
    assert (painted.getpixel((0, 0)), painted.getpixel((63, 63)), start.mask.invert) == (255, 0, False)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (Image.new("RGB", (64, 64)), "make what is to be painted transparent"),
        (Image.new("RGBA", (32, 64)), "The mask is 32x64, the image 64x64"),
    ],
)
def test_masks_that_mask_nothing_are_refused(api: openai.OpenAI, mask: Image.Image, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError, match=sentence) as caught:
        api.images.edit(prompt="x", image=png(Image.new("RGB", (64, 64))), mask=png(mask))
    assert caught.value.param == "mask"


@pytest.mark.parametrize(
    ("fields", "param", "code", "sentence"),
    [
        ({"n": 11}, "n", "less_than_equal", "less than or equal to 10"),
        ({"prompt": ""}, "prompt", "string_too_short", "at least 1 character"),
        ({"size": "large"}, "size", "invalid_value", "WIDTHxHEIGHT"),
        ({"size": "7x7"}, None, "invalid_value", "width is 7; allowed is 16"),
        ({"background": "transparent"}, "background", "literal_error", "'auto' or 'opaque'"),
        ({"negativ_prompt": "x"}, "negativ_prompt", "unknown_parameter", "did you mean negative_prompt"),
        ({"sampler_name": "Oiler"}, None, "unknown_name", "Did you mean 'Euler'"),
        ({"init_images": ["x"]}, "init_images", "unknown_parameter", "Unknown parameter"),
    ],
)
def test_refusals_have_their_shape(
    api: openai.OpenAI, fields: dict[str, Any], param: str | None, code: str, sentence: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=sentence) as caught:
        api.images.generate(prompt="x", extra_body=fields)
    error: Any = caught.value
    assert error.response.status_code == (404 if code == "unknown_name" else 400)
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert set(error.response.json()) == {"error"} and set(error.body) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("files", "data", "param"),
    [
        ({}, {"prompt": "x"}, "image"),
        ({"image": b"GIF8"}, {}, "prompt"),
        ({"image": b"no image"}, {"prompt": "x"}, None),
        ({"image": b"x", "markup": b"x"}, {"prompt": "x"}, "markup"),
    ],
)
def test_forms_that_are_no_edit_are_refused(client: TestClient, files: Any, data: Any, param: str | None) -> None:
    reply = client.post("/v1/images/edits", files=files, data=data)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_other_routes_of_theirs_are_not_there(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server makes images"):
        api.chat.completions.create(model="x", messages=[{"role": "user", "content": "hello"}])


def test_a_stream_shows_previews_and_then_the_image(api: openai.OpenAI, jobs: list[Job]) -> None:
    events = list(
        api.images.generate(prompt="slow x", size="64x64", stream=True, partial_images=2, extra_body={"steps": 9})
    )
    kinds = [event.type for event in events]
    assert kinds[-1] == "image_generation.completed" and set(kinds[:-1]) == {"image_generation.partial_image"}
    assert [getattr(event, "partial_image_index", None) for event in events] == [*range(len(events) - 1), None]
    assert image_of(events[-1].b64_json).size == (64, 64) and jobs[0].preview_every == 3
    edited = api.images.edit(prompt="x", image=png(Image.new("RGB", (64, 64))), stream=True, extra_body=FEW)
    assert [event.type for event in edited] == ["image_edit.completed"]


def test_a_stream_says_why_it_ends(api: openai.OpenAI, services: Services) -> None:
    stream = api.images.generate(prompt="slow x", size="64x64", stream=True, partial_images=1, extra_body={"steps": 60})
    next(iter(stream))
    services.queue.interrupt()
    with pytest.raises(openai.APIError, match="interrupted before an image was finished"):
        list(stream)


def test_a_stream_that_nobody_reads_ends_its_job(api: openai.OpenAI, jobs: list[Job]) -> None:
    stream = api.images.generate(prompt="slow x", size="64x64", stream=True, partial_images=3, extra_body={"steps": 99})
    next(iter(stream))
    stream.close()
    assert jobs[0].wait(3) and not jobs[0].images


def test_an_interrupted_job_is_not_begun_again_by_the_client(
    api: openai.OpenAI, jobs: list[Job], services: Services
) -> None:
    """Clients repeat a request after 409 and 5xx."""
    with ThreadPoolExecutor(1) as elsewhere:
        waiting = elsewhere.submit(api.images.generate, prompt="slow x", size="64x64", extra_body={"steps": 90})
        while not jobs or jobs[0].progress().step == 0:
            time.sleep(0.02)
        services.queue.interrupt()
        with pytest.raises(openai.ConflictError, match="interrupted"):
            waiting.result(10)
    assert len(jobs) == 1
