"""A GPU for tests on machines without one, see README.md here: `fake_gpu` makes it."""

from tests.fake_gpu.card import CardFacts, FakeCard, fake_gpu

__all__ = ("CardFacts", "FakeCard", "fake_gpu")
