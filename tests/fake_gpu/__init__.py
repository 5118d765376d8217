"""A GPU for tests on machines without one, see docs/fake-gpu.md: `fake_gpu` makes it."""

from tests.fake_gpu.card import FakeCard as FakeCard
from tests.fake_gpu.card import fake_gpu as fake_gpu
from tests.fake_gpu.tensor import is_on_card as is_on_card
from tests.fake_gpu.tensor import on_card as on_card
