"""The operation Remove background: from a file and an image to its foreground."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError, InvalidValueError, UnknownNameError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.postprocessing.operation import PostprocessedImage
from modules.postprocessing.operations import Operations
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import PrecisionOptions
from modules.scripts.built_in import BUILT_IN
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.settings.values import Settings
from tests.fake_gpu import fake_gpu
from tests.postprocessing.background_files import birefnet, nested_u
from tests.postprocessing.test_background_networks import library, whole_birefnet
from tests.recordings import CONFIGS, cpu_machine

NAME, SIDE = "Remove background", 64


def write(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> Path:
    path = folder / "background_removal" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write(folder, "birefnet", birefnet())
    write(folder, "isnet", {f"net.{key}": tensor for key, tensor in nested_u(is_isnet=True).items()})
    write(folder, "other", {"some.weight": torch.zeros(4, 4)})
    return folder


def operations_of(folder: Path, engine: Engine) -> Operations:
    program = Program(folders=lambda kind: (folder / kind,), compute_alone=engine.compute_alone)
    left_out = [path.name for path in BUILT_IN.iterdir() if path.name != "background"]
    found = ScriptLibrary.load([BUILT_IN], left_out, program)
    assert found.faults == []
    return Operations(found.operations)


@pytest.fixture(scope="module")
def operations(folder: Path, engine: Engine) -> Iterator[Operations]:
    yield operations_of(folder, engine)
    engine.auxiliaries.release()


def picture(width: int = 100, height: int = 80) -> Image.Image:
    values = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height))


def removed(operations: Operations, image: Image.Image, **args: Any) -> PostprocessedImage:
    (found,) = operations.run(PostprocessedImage(image, Settings()), {NAME: {"enable": True, "side": SIDE, **args}})
    return found


def test_what_the_network_says_is_the_alpha(operations: Operations) -> None:
    image = picture()
    found = removed(operations, image, model="birefnet", clean_edges=False)
    networks = library("networks")
    with torch.no_grad():
        shares = whole_birefnet(birefnet(), networks.square_of(image, networks.OF_BIREFNET, SIDE))[0, 0].sigmoid()
    mask = Image.fromarray((shares * 255).round().to(torch.uint8).numpy()).resize(image.size, Image.Resampling.BILINEAR)
    assert found.image.mode == "RGBA"
    assert np.abs(np.asarray(found.image.getchannel("A"), int) - np.asarray(mask, int)).max() <= 1
    assert np.array_equal(np.asarray(found.image.convert("RGB")), np.asarray(image))
    assert found.info == {"Background removed by": "birefnet", "New background": "Transparent", "Clean edges": False}


def test_white_and_masks(operations: Operations) -> None:
    image = picture()
    mask = np.asarray(removed(operations, image, model="isnet", background="Mask").image, int)
    assert mask.shape == (80, 100, 3) and mask.max() > 250 and mask.min() < 5  # between its own extremes
    white = np.asarray(removed(operations, image, model="isnet", background="White", clean_edges=False).image, int)
    expected = 255 + (np.asarray(image, int) - 255) * mask / 255
    assert np.abs(white - expected).max() <= 1


def test_what_was_transparent_stays_so(operations: Operations) -> None:
    image = picture().convert("RGBA")
    image.putalpha(Image.new("L", image.size, 0))
    assert removed(operations, image, model="isnet").image.getchannel("A").getextrema() == (0, 0)


def test_automatic_is_the_largest_file(operations: Operations) -> None:
    assert removed(operations, picture()).info["Background removed by"] == "birefnet"


def test_wrong_arguments_and_files_are_said(operations: Operations, engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"background model 'nobody'.*birefnet"):
        removed(operations, picture(), model="nobody")
    with pytest.raises(CheckpointError, match=r"other.safetensors is no model that removes backgrounds"):
        removed(operations, picture(), model="other")
    with pytest.raises(InvalidValueError, match="Working size is 5000"):
        removed(operations, picture(), side=5000)
    with pytest.raises(CheckpointError, match=r"put one .* into models/background_removal"):
        removed(operations_of(tmp_path, engine), picture())
    tensors = dict(nested_u(is_isnet=False))
    del tensors["stage2.rebnconv3.bn_s1.running_var"]
    write(tmp_path, "half", tensors)
    with pytest.raises(CheckpointError, match=r"half.safetensors: 1 tensors are missing: stage2.rebnconv3.bn_s1"):
        removed(operations_of(tmp_path, engine), picture())
    write(tmp_path, "half", {**nested_u(False), "outconv.weight": torch.full((1, 6, 1, 1), float("nan"))})
    with pytest.raises(CheckpointError, match="computes no numbers"):
        removed(operations_of(tmp_path, engine), picture())


def test_edges_lose_the_color_of_the_background() -> None:
    """A red disk with soft edges on green: its edges are red again."""
    rows, columns = np.mgrid[:200, :200]
    alpha = (40 - np.hypot(rows - 100, columns - 100)).clip(-5, 5) / 10 + 0.5
    mask = Image.fromarray((alpha * 255).round().astype(np.uint8))
    image = Image.new("RGB", (200, 200), (20, 200, 30))
    image.paste((220, 30, 40), mask=mask)
    found = np.asarray(library("edges").decontaminated(image, mask), int)
    before, is_edge = np.asarray(image, int), (alpha > 0.1) & (alpha < 0.9)
    assert np.abs(before - (220, 30, 40))[is_edge].max() > 140
    assert np.abs(found - (220, 30, 40))[is_edge].max() < 25
    assert np.array_equal(found[alpha == 1], before[alpha == 1])


def test_a_long_image_is_worked_on_in_parts(operations: Operations) -> None:
    """An image of 20,000 px: colors at edges are those of the image worked on at once."""
    edges = library("edges")
    image, mask = picture(20_000, 40), Image.linear_gradient("L").rotate(90).resize((20_000, 40))
    found = edges.decontaminated(image, mask)
    part = (1000, 0, 1100, 40)
    near = (part[0] - 600, 0, part[2] + 600, 40)
    alone = edges.decontaminated(image.crop(near), mask.crop(near)).crop((600, 0, 700, 40))
    assert np.abs(np.asarray(found.crop(part), int) - np.asarray(alone, int)).max() <= 1
    assert removed(operations, image, model="isnet").image.size == (20_000, 40)


def test_on_a_card_where_memory_runs_out(folder: Path, tmp_path: Path) -> None:
    """Streamed and at last on the CPU: the same mask, and nothing stays behind."""
    from tests.fake_gpu.jobs import engine_of

    with fake_gpu("cuda", 8) as card:
        engine = engine_of(folder, "sd1", checkpoints=tmp_path)
        networks, seen = library("networks"), []

        def work(net: Any) -> Image.Image:
            seen.append((net.device.type, net.streaming is not None))
            if len(seen) in (2, 3, 4):
                raise RuntimeError("CUDA out of memory")
            found: Image.Image = networks.foreground(net, picture(), SIDE)
            return found

        path = folder / "background_removal" / "birefnet.safetensors"
        masks = [np.asarray(engine.compute_alone(path, networks.build_network, work), int) for _ in range(2)]
        assert seen == [*[("cuda", False)] * 3, ("cuda", True), ("cpu", True)]
        assert np.abs(masks[0] - masks[1]).max() <= 2 and masks[0].std() > 1
        assert card.memory.allocated > 0
        engine.unload()
        assert card.memory.tensors == 0


def test_networks_that_were_used_before_leave_memory(folder: Path, tmp_path: Path) -> None:
    catalogue, source = CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes")), folder / "background_removal"
    engine = Engine(catalogue, CONFIGS, cpu_machine)
    for number in range(4):
        path = tmp_path / f"{number}.safetensors"
        path.symlink_to(source / "birefnet.safetensors")
        engine.compute_alone(path, library("networks").build_network, lambda net: None)
    assert len(engine.auxiliaries.here) == engine.auxiliaries.limit == 2
    engine.close()


def test_a_network_is_stored_and_streamed_as_the_settings_say(folder: Path, tmp_path: Path) -> None:
    settings = {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row", "stream_weights": "Layers"}
    options = PrecisionOptions.of(Settings().with_changes(settings))
    catalogue, networks, seen = CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes")), library("networks"), []
    path = folder / "background_removal" / "birefnet.safetensors"

    def work(net: Any) -> Image.Image:
        weight = net.module.bb.swin.encoder.layers[3].blocks[0].mlp.fc1._parameters["weight"]
        seen.append((weight.dtype, net.streaming is not None))
        found: Image.Image = networks.foreground(net, picture(), SIDE)
        return found

    masks = []
    for precision in (PrecisionOptions, lambda: options):
        engine = Engine(catalogue, CONFIGS, cpu_machine, options=EngineOptions(precision))
        masks.append(np.asarray(engine.compute_alone(path, networks.build_network, work), int))
        engine.close()
    assert seen == [(torch.float32, False), (torch.float8_e4m3fn, True)]
    assert 0 < np.abs(masks[0] - masks[1]).mean() < masks[0].std()


def test_over_http() -> None:
    from modules.api.generation.extras import operations_from
    from modules.api.schema.schemas import ExtrasSingleBody

    asked = {NAME: {"enable": True, "background": "White"}}
    body = ExtrasSingleBody.model_validate({"image": "", "operations": asked})
    assert operations_from(body, ["Upscale", NAME])[NAME] == asked[NAME]
    with pytest.raises(UnknownNameError, match="operation 'Remove background'"):
        operations_from(body, ["Upscale"])


def test_transparency_is_not_lost_in_a_format_without(tmp_path: Path) -> None:
    from modules.images.naming import NameContext
    from modules.images.saving import save_image

    settings = Settings({"samples_format": "jpg"})
    image = picture().convert("RGBA")
    context = NameContext(width=100, height=80)
    assert save_image(image, tmp_path, settings, context).suffix == ".jpg"
    image.putalpha(100)
    path = save_image(image, tmp_path, settings, context)
    assert path.suffix == ".png" and Image.open(path).getchannel("A").getextrema() == (100, 100)
