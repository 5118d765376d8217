"""The recipe of the bundled model's control net: lessons, training in small, and the file that is shipped."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.control import drawn
from modules.models.files.tensor_source import open_tensors
from recipes.control.__main__ import FILE, SHIPPED
from recipes.control.lessons import Lessons, edges_of, scene_of_seed, shard_path, wordings
from recipes.control.net import layer_names, new_net, write_net
from recipes.control.scoring import ControlCase, control_cases, judged
from recipes.control.training import ControlOptions, ControlTrainer, train_control
from recipes.scenes.forms import drawn_form, form_in, overlap
from recipes.scenes.images import draw
from recipes.scenes.layout import ShapesScene
from recipes.scenes.model import SceneModel, load_model

ROOT = Path(__file__).parents[2]
MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def model() -> SceneModel:
    return load_model(ROOT / SHIPPED)


def test_edges_and_wordings_of_a_scene() -> None:
    scene = next(scene for seed in range(9) if isinstance(scene := scene_of_seed(seed), ShapesScene))
    image = draw(scene)
    for fine in (False, True):
        edges = edges_of(image, fine)
        assert edges.shape == (128, 128) and 0.005 < edges.mean() < 0.1
    texts = wordings(scene, Random(1))
    assert len(texts) == 6 and texts[-1] == ""
    assert all(f"{scene.background} background" in text for text in texts[:3])


def test_the_set_layers_fold_as_training_does(model: SceneModel) -> None:
    net = new_net(model.unet)
    edges = (torch.rand(1, 1, 128, 128, generator=torch.Generator().manual_seed(0)) > 0.9).float()
    with torch.no_grad():
        torch.testing.assert_close(net.full_hint[0](edges.expand(-1, 3, -1, -1)), net.controlnet_cond_embedding(edges))


def test_training_goes_on_where_it_stopped_and_writes_what_the_program_reads(model: SceneModel, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    scenes = [scene_of_seed(seed) for seed in range(2)]
    edges = np.stack([np.packbits(edges_of(draw(scene)), axis=1) for scene in scenes])
    tensors = {"latents": torch.zeros(2, 4, 16, 16, dtype=torch.float16), "edges": torch.from_numpy(edges)}
    save_file(tensors, shard_path(tmp_path, 0), metadata={"captions": '[["a shape"], ["a thing"]]'})
    lessons, state = Lessons(tmp_path), tmp_path / "state.pt"
    trainer = ControlTrainer(model, ControlOptions(steps=1, batch=1, minutes=60))
    assert not list(train_control(trainer, lessons, state)) and trainer.step == 1
    again = ControlTrainer(model, ControlOptions(steps=2, batch=1, minutes=60))
    assert not list(train_control(again, lessons, state)) and again.step == 2
    path = tmp_path / "net.safetensors"
    write_net(again.net, layer_names(again.net), path, {"base": "x"})
    with open_tensors(path) as written, open_tensors(ROOT / FILE) as shipped:
        assert {key: entry.shape for key, entry in written.entries.items()} == {
            key: entry.shape for key, entry in shipped.entries.items()
        }


def test_forms_are_told_apart() -> None:
    case = control_cases()[0]
    right = ShapesScene(background=case.background, shapes=(case.shape,))
    image = Image.new("RGB", (128, 128))
    image.paste(draw(right))
    found = form_in(np.asarray(image))
    assert overlap(found, drawn_form(case.shape)) > 0.95
    assert judged(case, image)["form"] and not judged(case, Image.new("RGB", (128, 128), "white"))["form"]


def test_the_shipped_net_draws_the_form_of_the_edges() -> None:
    """Through the program, as a Control-LoRA; how often is `benchmarks.control`'s to say."""
    assert (ROOT / FILE).stat().st_size < MAX_BYTES
    case: ControlCase = next(each for each in control_cases() if each.shape.kind == "diamond" and each.shape.size)
    (image,) = drawn(ROOT / FILE, [case])
    assert judged(case, image) == {**judged(case, image), "form": True, "colors": True}
