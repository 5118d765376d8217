"""The comparison of precisions: its measures, and what it makes of the tiny model."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lib_workbench.comparison.compare import UNSTORED, Row, as_json, check_storages, compare, psnr_db, ssim
from lib_workbench.comparison.report_page import as_html
from lib_workbench.comparison.verdict import verdict
from modules.errors import Interrupted, UnknownNameError
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from tests.processing.recorded import request_of
from tests.processing.test_fp8_images import PLAIN
from tests.recordings import tiny_engine


def image(level: int, noise: int = 0) -> Image.Image:
    values = np.full((32, 32, 3), level) + np.random.default_rng(0).integers(-noise, noise + 1, (32, 32, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def test_psnr_is_that_of_the_formula() -> None:
    assert psnr_db(image(100), image(100)) == float("inf")
    assert psnr_db(image(100), image(110)) == pytest.approx(20 * np.log10(255 / 10))


def test_ssim_is_one_for_equal_and_falls_with_noise() -> None:
    base = image(100, 30)
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
    assert all(row.peak_memory_bytes and row.peak_memory_bytes > row.weight_bytes for row in rows)
    numbers = json.loads(json.dumps(as_json(rows, prompts, "tiny")))
    assert numbers["formats"][2]["ssim"] == rows[2].ssim
    assert numbers["formats"][2]["peak_memory_bytes"] == rows[2].peak_memory_bytes
    page = as_html(rows, prompts, "tiny")
    assert "<th>Peak memory</th>" in page
    assert page.count("data:image/png;base64,") == 6 + 4  # and the differences
    assert "a &quot;blue&quot; &lt;dog&gt;" in page
    assert "http" not in page.replace("https://", "").split("<body>")[1].split("data:image")[0]


def row(storage: str, level: int, weight_bytes: int, step_s: float) -> Row:
    made = Row(storage, storage, [image(level)], step_seconds=[step_s], weight_bytes=weight_bytes, fp16_bytes=2000)
    made.psnr_db = [psnr_db(made.images[0], image(100))]
    made.ssim = [ssim(made.images[0], image(100))]
    made.latent_differences = [[0.5, 0.25, 0.1]]
    return made


def test_the_verdict_says_what_is_won_and_lost() -> None:
    rows = [row("fp16", 100, 2_000_000, 0.1), row("a", 101, 1_000_000, 0.12), row("b", 130, 1_000_000, 0.1)]
    assert verdict(rows) == (
        "a comes closest to fp16: its weights need 1.0 MB instead of 2.0 MB, 50% less; no difference to be seen "
        "(PSNR 48.1 dB); a step takes 20% longer. b differs most: another image (PSNR 18.6 dB)."
    )
    assert "nothing to compare" in verdict(rows[:1])
    assert "No other format is smaller" in verdict([rows[1], rows[0]])


def test_the_page_has_units_no_scripts_and_escapes() -> None:
    rows = [row("fp16", 100, 2_000_000, 0.1), row("a", 101, 1_000_000, 0.12)]
    page = as_html(rows, ["</script><b>"], "a <model>", "20 steps, 64x64 px")
    assert page.index('class="verdict"') < page.index("<table>") < page.index("<figure>")
    assert "20 steps, 64x64 px" in page
    assert "<b>120 ms" not in page and "120 ms <small>1.20 ×" in page
    assert page.count("<script") == 2 and "</script><b>" not in page
    numbers = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert numbers["prompts"] == ["</script><b>"]


def test_a_format_that_there_is_not_and_a_stop(tmp_path: Path) -> None:
    class Stop(Silent):
        def check(self) -> None:
            raise Interrupted("enough")

    with pytest.raises(UnknownNameError, match="16 bit"):
        check_storages(["fp7"])
    engine = tiny_engine(tmp_path)
    with pytest.raises(Interrupted, match="nothing was kept"):
        compare(request_of(PLAIN), ["a"], [UNSTORED], engine, Output(tmp_path), Stop())
    engine.unload()
