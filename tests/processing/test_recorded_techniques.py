"""Every recorded request with an extension for regions, tiles or guidance gives the recorded image and infotext."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.processing.recorded_techniques import apart, api, fields_of, make, technique_cases, with_files
from tests.thorough import usually

RECORDS_MORE = {"Init image sha256", "Tiled VAE"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with api(tmp_path_factory.mktemp("data")) as client:
        yield client


PASTED = {
    name: f"test_an_infotext_alone_makes_the_image_again[{name}]"
    for name in technique_cases()
    if name.startswith(
        ("dynthres/mode-power-down", "freeu/dict-three-stages", "kohya/default", "regional/base-two-ratios", "tiled/")
    )
}
PASTED_TWICE = ("tiled/multi-overlap4-batch1",)
"""The same fields as those of `tiled/multi-euler_a`."""
CURVES = "tests/scripts/test_guidance_scripts.py::test_curves_of_a_scale"
HELD_BY = {
    **PASTED,
    "tiled/multi-overlap4-batch1": PASTED["tiled/multi-euler_a"],
    "tiledvae/slow-decoder-8": "test_the_recorded_image_is_made_again[tiledvae/slow-decoder-16]",  # in larger tiles
    "regional/columns-1-3": "test_the_recorded_image_is_made_again[regional/nested]",
    "freeu/positional": PASTED["freeu/dict-three-stages"],
    **dict.fromkeys(("dynthres/mode-linear-up", "dynthres/mode-cosine-down"), CURVES),
}


@pytest.mark.parametrize("name", usually(technique_cases(), lambda name: name not in HELD_BY, HELD_BY.get))
def test_the_recorded_image_is_made_again(client: TestClient, name: str) -> None:
    case = technique_cases()[name]
    images, infotexts = make(client, case["endpoint"], with_files(case["payload"]))
    assert len(images) == len(case["images"])
    for image, infotext, recorded, text in zip(
        images, infotexts, case["images"], case["info"]["infotexts"], strict=True
    ):
        levels = apart(image, recorded["file"])
        assert (levels > 2).mean() <= 0.005, f"{(levels > 2).mean():.2%} differ, by up to {levels.max()}"
        ours, theirs = fields_of(infotext), fields_of(text)
        assert {key: ours.get(key) for key in theirs} == theirs
        assert ours.keys() - theirs.keys() <= RECORDS_MORE


@pytest.mark.parametrize("name", usually(PASTED, lambda name: name not in PASTED_TWICE))
def test_an_infotext_alone_makes_the_image_again(client: TestClient, name: str) -> None:
    case = technique_cases()[name]
    images, infotexts = make(client, case["endpoint"], {"infotext": case["info"]["infotexts"][0]})
    assert (apart(images[0], case["images"][0]["file"]) > 2).mean() <= 0.005
    theirs = fields_of(case["info"]["infotexts"][0])
    assert {key: fields_of(infotexts[0]).get(key) for key in theirs} == theirs
