"""POST /sdapi/v1/img2img: what is refused before a job begins, what comes back, and what the record keeps."""

import base64
import io
import json
import struct
import zlib
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from compat.processing import StableDiffusionProcessingTxt2Img
from modules.api.generation.requests import request_from
from modules.api.schema.schemas import Img2ImgBody, Txt2ImgBody
from modules.processing.pipeline.starts.prepared import prepare
from modules.processing.request.request import request_from_json, request_to_json, tab_of
from modules.processing.request.source_images import FromImage, FromNoise, MaskedContent
from modules.services import Services
from tests.api.test_generation import SMALL


def base64_of(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


RED = base64_of(Image.new("RGB", (64, 64), "red"))
BLACK = base64_of(Image.new("L", (64, 64)))
WHITE = base64_of(Image.new("L", (64, 64), 255))


def declared(width: int, height: int) -> str:
    """A PNG of a few bytes that says it has this size: a decompression bomb."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


HUGE = declared(30_000, 30_000)


def body(**changes: Any) -> dict[str, Any]:
    return {**SMALL, "init_images": [RED], **changes}


def start_of(services: Services, **changes: Any) -> FromImage:
    start = request_from(Img2ImgBody.model_validate(body(**changes)), services).start
    assert isinstance(start, FromImage)
    return start


@pytest.mark.parametrize(
    ("changes", "status", "sentence"),
    [
        ({"init_images": None}, 404, "Init image not found"),
        ({"init_images": []}, 404, "Init image not found"),
        ({"init_images": ["!!"]}, 422, "init_images[0] is no base64 text"),
        ({"init_images": [base64.b64encode(b"not an image").decode()]}, 422, "init_images[0] is no image file"),
        ({"init_images": [RED[: len(RED) // 2]]}, 422, "damaged or cut off"),
        ({"init_images": ["http://127.0.0.1/a.png"]}, 422, "images are not fetched"),
        ({"mask": "https://127.0.0.1/a.png"}, 422, "mask is an address; images are not fetched"),
        ({"latent_mask": WHITE}, 422, "give the mask itself in mask"),
        ({"mask": WHITE, "latent_mask": "!!"}, 422, "latent_mask is no base64 text"),
        ({"override_settings": {"upscaler_for_img2img": "Bicubic9"}}, 404, "Unknown upscaler for img2img 'Bicubic9'"),
        ({"init_images": [HUGE]}, 422, "init_images[0] is too large: far too many pixels; allowed are 179 megapixels"),
        ({"mask": HUGE}, 422, "mask is too large"),
        ({"init_images": [RED, RED]}, 422, "2 images to start from and 1 to make"),
        ({"reference_images": ["!!"]}, 422, "reference_images[0] is no base64 text"),
        ({"reference_images": [RED] * 10}, 422, "10 reference images; give at most 9"),
        ({"mask": BLACK}, 422, "The mask is empty"),
        ({"mask": WHITE, "inpainting_mask_invert": 1}, 422, "The mask is empty"),
        ({"mask": WHITE, "inpainting_fill": 9}, 422, "inpainting_fill is 9; allowed are 0, 1, 2, 3"),
        ({"mask": WHITE, "mask_blur": -1}, 422, "mask blur x is -1"),
        ({"resize_mode": 7}, 422, "resize_mode is 7"),
        ({"denoising_strength": 1.5}, 422, "denoising strength is 1.5; allowed is 0 to 1"),
    ],
)
def test_bad_input_gets_a_sentence_before_a_job_begins(
    client: TestClient, services: Services, changes: dict[str, Any], status: int, sentence: str
) -> None:
    before = len(services.queue.store.recent(100))
    reply = client.post("/sdapi/v1/img2img", json=body(**changes))
    assert reply.status_code == status, reply.text
    assert sentence in reply.json()["errors"] + reply.json()["detail"]
    assert len(services.queue.store.recent(100)) == before


def test_reference_images_go_with_txt2img_too(client: TestClient, services: Services) -> None:
    asked = {**SMALL, "reference_images": [RED, WHITE]}
    request = request_from(Txt2ImgBody.model_validate(asked), services)
    assert isinstance(request.start, FromNoise)
    assert [source.image.getpixel((0, 0)) for source in request.start.references] == [(255, 0, 0), 255]
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request
    job = StableDiffusionProcessingTxt2Img(request)
    assert job.to_request().start == request.start, "as scripts see it"
    reply = client.post("/sdapi/v1/txt2img", json=asked)
    assert reply.status_code == 200 and reply.json()["parameters"]["reference_images"] is None, "not sent back"


def test_the_images_that_were_sent_come_back_only_when_asked_for(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/img2img", json=body(mask=WHITE)).json()
    assert len(reply["images"]) == 1 and reply["parameters"]["init_images"] is None
    reply = client.post("/sdapi/v1/img2img", json=body(include_init_images=True)).json()
    assert reply["parameters"]["init_images"] == [RED]


def test_left_out_fields_have_the_reference_uis_defaults(services: Services) -> None:
    start = start_of(services, mask=WHITE)
    assert start.denoising_strength == 0.75 and start.mask is not None
    assert (start.mask.blur_x, start.mask.fill, start.mask.full_resolution) == (4, MaskedContent.FILL, True)
    assert start.mask.padding == 0
    start = start_of(services, mask=WHITE, mask_blur=0, mask_blur_x=9)
    assert start.mask is not None and start.mask.blur_x == start.mask.blur_y == 0


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("I;16", "PNG"), ("P", "PNG"), ("LA", "PNG")])
def test_images_of_all_modes_are_read(services: Services, mode: str, kind: str) -> None:
    source = Image.new("L", (64, 64), 128).convert("RGB") if mode == "CMYK" else Image.new("L", (64, 64), 128)
    image = source.convert(mode) if mode != "I;16" else Image.new("I;16", (64, 64), 128 << 8)
    start = start_of(services, init_images=[base64_of(image, kind)])
    red, green, blue = start.images[0].image.convert("RGB").getpixel((5, 5))  # type: ignore[misc]
    assert abs(red - 128) <= 2 and abs(green - 128) <= 2 and abs(blue - 128) <= 2


def test_an_image_is_turned_upright(services: Services) -> None:
    image = Image.new("RGB", (64, 32))
    exif = image.getexif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    start = start_of(services, init_images=[base64.b64encode(file.getvalue()).decode()])
    assert start.images[0].image.size == (32, 64)


def test_a_waiting_job_keeps_its_images_in_the_record(services: Services) -> None:
    request = request_from(Img2ImgBody.model_validate(body(mask=WHITE)), services)
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request
    assert tab_of(request) == "img2img"


def test_a_side_of_30000_pixels_is_read_where_the_image_is_not_too_large(services: Services) -> None:
    start = start_of(services, init_images=[base64_of(Image.new("L", (30_000, 8)))])
    assert start.images[0].image.size == (30_000, 8)


def test_of_an_animation_the_first_frame_is_taken(services: Services) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ("red", "blue")]
    for kind in ("GIF", "PNG", "WEBP"):
        file = io.BytesIO()
        frames[0].save(file, kind, save_all=True, append_images=frames[1:])
        start = start_of(services, init_images=[base64.b64encode(file.getvalue()).decode()])
        red, green, blue = start.images[0].image.convert("RGB").getpixel((3, 3))  # type: ignore[misc]
        assert red > 240 and green < 16 and blue < 16, kind


def test_a_mask_of_another_size_is_stretched_over_the_image(services: Services) -> None:
    """Left half white, in a quarter of the image's size."""
    small = Image.new("L", (16, 16))
    small.paste(255, (0, 0, 8, 16))
    start = start_of(services, mask=base64_of(small), mask_blur=0, inpaint_full_res=False)
    prepared = prepare(start, (64, 64), services.settings.current)
    assert prepared.mask is not None and prepared.mask.size == (64, 64)
    row = [prepared.mask.getpixel((x, 32)) for x in (0, 16, 47, 63)]
    assert row[:2] == [255, 255] and row[2:] == [0, 0]
    whole = start_of(services, mask=base64_of(small), mask_blur=0)
    found = prepare(whole, (64, 64), services.settings.current)
    assert found.area is not None and found.area.left == 0 and 28 <= found.area.right <= 64


def test_transparent_images_lie_on_the_background_color(services: Services) -> None:
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    start = start_of(services, init_images=[base64_of(image)])
    settings = services.settings.current.changed(img2img_background_color="#00ff00")
    assert prepare(start, (64, 64), settings).images[0].getpixel((9, 9)) == (0, 255, 0)


def test_a_latent_mask_is_kept_in_the_record(services: Services) -> None:
    request = request_from(Img2ImgBody.model_validate(body(mask=WHITE, latent_mask=BLACK)), services)
    assert isinstance(request.start, FromImage) and request.start.mask is not None
    assert request.start.mask.latent is not None and request.start.mask.latent != request.start.mask.image
    assert request_from_json(json.loads(json.dumps(request_to_json(request)))) == request


def test_an_infotext_fills_what_the_caller_leaves_out(client: TestClient, services: Services) -> None:
    text = (
        "a cat\nSteps: 2, Sampler: Euler, Seed: 5, Size: 64x64, Denoising strength: 0.25, Mask blur: 2, "
        "Masked content: latent nothing, Resize mode: Crop and resize, Init image sha256: 0123456789ab, "
        "Mask sha256: ab0123456789"
    )
    start = start_of(services, infotext=text, mask=WHITE, inpainting_fill=1)
    assert start.mask is not None and start.mask.blur == 2 and start.mask.fill is MaskedContent.ORIGINAL
    assert (start.denoising_strength, start.resize_mode, start.mask.full_resolution) == (0.25, 1, False)
    reply = client.post("/sdapi/v1/img2img", json={"infotext": text})
    assert reply.status_code == 404 and "The init image 0123456789ab is not here" in reply.json()["errors"]
