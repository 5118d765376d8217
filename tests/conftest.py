"""How many examples the property tests draw: a few by default, 2,000 with `--hypothesis-profile=thorough`."""

from hypothesis import settings

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")
