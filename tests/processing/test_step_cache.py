"""The step cache from the setting to images of a tiny flow model: fewer calls, recorded, restored, and near."""

from pathlib import Path
from typing import Any

import pytest

from lib_workbench.comparison.compare import psnr_db
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.models.dit_files import write_split
from tests.processing.test_z_image import CASE, engine_of, made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("step_cache")
    write_split(root, CASE)
    return root


@pytest.fixture(scope="module")
def engine(root: Path) -> Engine:
    """With outputs that change as slowly as a trained model's do: random weights make of each sigma something else."""
    engine = engine_of(root)
    for name, weight in engine.model(None, PrecisionOptions.of(Settings())).unet.named_parameters():
        if "t_embedder" in name:
            weight.data.mul_(0.1)
    return engine


def counted(engine: Engine, root: Path, threshold: float, **changes: Any) -> tuple[Result, int]:
    """The image, and how often the denoiser was called for it."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    settings = Settings().with_changes({"step_cache_threshold": threshold})
    handle = engine.model(None, PrecisionOptions.of(settings)).unet.register_forward_hook(count)
    try:
        result = made(engine, root, settings, **{"steps": 20, "width": 64, "height": 64, **changes})
    finally:
        handle.remove()
    return result, calls


@pytest.mark.parametrize("sampler", ["Euler", "DPM++ 2M"])
def test_fewer_calls_make_nearly_the_same_image(sampler: str, engine: Engine, root: Path) -> None:
    whole, calls = counted(engine, root, 0.0, sampler=sampler)
    result, fewer = counted(engine, root, 0.05, sampler=sampler)
    least, fewest = counted(engine, root, 0.3, sampler=sampler)
    assert calls == 20 and fewest < fewer < 20
    assert fewest < fewer
    near, far = (psnr_db(one.images[0].image, whole.images[0].image) for one in (result, least))
    assert near > 40 and far > 25 and near > far
    text = result.images[0].infotext
    assert parse_infotext(text)["Step cache"] == "0.05" and "Step cache" not in whole.images[0].infotext
    assert override_settings_from(parse_infotext(text), Settings())["step_cache_threshold"] == 0.05


@pytest.mark.parametrize("changes", [{"sampler": "Euler a"}, {"steps": 5}], ids=["noise", "few steps"])
def test_where_it_would_be_wrong_every_call_is_made(changes: dict[str, object], engine: Engine, root: Path) -> None:
    whole, calls = counted(engine, root, 0.0, **changes)
    result, same = counted(engine, root, 0.3, **changes)
    assert same == calls and result.images[0].image.tobytes() == whole.images[0].image.tobytes()
    assert "Step cache" not in result.images[0].infotext
