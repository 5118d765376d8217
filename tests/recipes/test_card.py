"""Training on a card, on the CPU with a toy of the SD1 layout: the pool is drawn, and each part learns."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from recipes.card.drawing import PART_IMAGES, DrawnPool, seeded
from recipes.card.running import Learner
from recipes.card.tiny import train_tiny_vae
from recipes.card.unet import train_unet
from recipes.card.vae import encode_pool, train_vae, tune_decoder
from recipes.control.lessons import SHARD_IMAGES
from recipes.scenes.images import draw
from recipes.scenes.model import SceneModel, load_model
from recipes.scenes.pool import scene_of_seed, to_tensor
from recipes.scenes.tokens import tokenize

TINY = Path(__file__).parent.parent / "reference" / "models" / "tiny-sd1.safetensors"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrawnPool]:
    drawn = DrawnPool(tmp_path_factory.mktemp("pool"), PART_IMAGES, 1, CPU)
    drawn.wait(PART_IMAGES)
    yield drawn
    drawn.close()


@pytest.fixture
def model() -> SceneModel:
    return load_model(TINY)


def test_pool_holds_the_images_of_its_seeds_and_their_wordings(pool: DrawnPool) -> None:
    scene, captions = scene_of_seed(7)
    picks = torch.tensor([7, 7])
    assert torch.allclose(pool.pixels(picks)[:1], to_tensor([draw(scene)]))
    worded = pool.wordings(picks, seeded(CPU, 0))
    assert all(any(torch.equal(row, known) for known in tokenize(captions)) for row in worded)


def test_average_is_what_stays_and_nothing_endless() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    learner = Learner("test", layer, seconds=5, learning_rate=0.1, dtype=torch.bfloat16, warmup_steps=1)
    while learner.going() and learner.step < 50:
        learner.learn((layer(torch.ones(1, 1, dtype=layer.weight.dtype)) - 1).float().square().sum())
    assert layer.weight.dtype == torch.bfloat16
    last = float(layer.weight.detach())
    learner.use_average()
    assert layer.weight.dtype == torch.float32
    assert 0 < float(layer.weight.detach()) < last
    learner.learn(layer.weight.sum() * float("nan"))
    with pytest.raises(ArithmeticError, match="not finite"):
        learner.use_average()


def test_each_part_changes_only_what_it_trains(pool: DrawnPool, model: SceneModel, tmp_path: Path) -> None:
    def state(*modules: torch.nn.Module) -> list[torch.Tensor]:
        return [tensor.clone() for module in modules for tensor in module.parameters()]

    def same(*pairs: tuple[list[torch.Tensor], list[torch.Tensor]]) -> list[bool]:
        return [all(torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs]

    vae, unet = state(model.vae), state(model.unet, model.text)
    train_vae(model.vae, pool, seconds=0.1, batch=2)
    assert same((vae, state(model.vae)), (unet, state(model.unet, model.text))) == [False, True]
    latents = torch.cat([model.vae.encode(pool.pixels(torch.arange(8))).latent_dist.mean.detach()] * 32)
    vae = state(model.vae)
    train_unet(model, pool, latents, seconds=0.1, batch=4, pairs=2)
    assert same((vae, state(model.vae)), (unet, state(model.unet, model.text))) == [True, False]
    encoder, decoder, unet = state(model.vae.encoder), state(model.vae.decoder), state(model.unet, model.text)
    tune_decoder(model, pool, latents, seconds=0.1, batch=2)
    after = (encoder, state(model.vae.encoder)), (decoder, state(model.vae.decoder))
    assert same(*after, (unet, state(model.unet, model.text))) == [True, False, True]
    written = train_tiny_vae(model, pool, latents, tmp_path / "tiny", seconds=0.1, batch=2)
    assert [path.name for path in written] == ["tiny_decoder.safetensors", "tiny_encoder.safetensors"]


def test_latents_of_the_pool_are_the_means_of_its_images(pool: DrawnPool) -> None:
    class Means:
        def encode(self, images: torch.Tensor) -> "Means":
            self.latent_dist = self
            self.mean = torch.nn.functional.avg_pool2d(images, 8)
            return self

    found = encode_pool(Means(), pool)
    assert found.shape == (PART_IMAGES, 3, 16, 16)
    assert torch.allclose(found[3], torch.nn.functional.avg_pool2d(pool.pixels(torch.tensor([3])), 8)[0])


def test_lessons_of_the_control_net_are_drawn_by_the_same_processes(pool: DrawnPool) -> None:
    ((number, drawn),) = list(pool.draw_lessons(1))
    assert number == 0 and len(drawn.images) == len(drawn.edges) == len(drawn.texts) == SHARD_IMAGES
