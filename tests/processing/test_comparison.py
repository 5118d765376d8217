"""The comparison of precisions: its measures, and what it makes of the tiny model."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.processing.comparison import UNSTORED, as_html, as_json, compare, psnr_db, ssim
from modules.processing.events import Silent
from modules.processing.output import Output
from tests.processing.recorded import request_of
from tests.processing.test_fp8_pictures import PLAIN
from tests.recordings import tiny_engine


def picture(level: int, noise: int = 0) -> Image.Image:
    values = np.full((32, 32, 3), level) + np.random.default_rng(0).integers(-noise, noise + 1, (32, 32, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def test_psnr_is_that_of_the_formula() -> None:
    assert psnr_db(picture(100), picture(100)) == float("inf")
    assert psnr_db(picture(100), picture(110)) == pytest.approx(20 * np.log10(255 / 10))


def test_ssim_is_one_for_equal_and_falls_with_noise() -> None:
    base = picture(100, 30)
    assert ssim(base, base) == pytest.approx(1)
    other = Image.fromarray(255 - np.asarray(base))
    assert ssim(base, other) < 0.2


def test_formats_beside_each_other(tmp_path: Path) -> None:
    engine = tiny_engine(tmp_path)
    prompts = ["a red cat", 'a "blue" <dog>']
    storages = [UNSTORED, "int8_row", "fp8_e5m2"]
    wanted = request_of({**PLAIN, "steps": 4})
    rows = compare(wanted, prompts, storages, engine, Output(tmp_path), Silent())
    engine.unload()
    assert [row.storage for row in rows] == storages
    assert rows[0].psnr_db == [float("inf")] * 2
    assert min(rows[1].psnr_db) > max(rows[2].psnr_db)  # int8 is closer than e5m2
    assert rows[1].weight_bytes < rows[0].weight_bytes
    assert len(rows[1].latent_differences[0]) == 4
    assert rows[1].seconds_per_step > 0
    numbers = json.loads(json.dumps(as_json(rows, prompts, "tiny")))
    assert numbers["formats"][2]["ssim"] == rows[2].ssim
    page = as_html(rows, prompts, "tiny")
    assert page.count("data:image/png;base64,") == 6
    assert "a &quot;blue&quot; &lt;dog&gt;" in page
    assert "http" not in page.replace("https://", "").split("<body>")[1].split("data:image")[0]
