"""The conditioning cache: what keys it, what it forgets, how fast it answers."""

import time
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.prompting.cache import AdapterUse, ConditioningCache, ResultIdentity
from modules.prompting.emphasis import Emphasis

numbers = st.integers(0, 4096)
texts = st.text(max_size=8)
adapters = st.builds(
    AdapterUse,
    name=texts,
    file_hash=texts,
    te_multiplier=st.floats(-2, 2),
    unet_multiplier=st.floats(-2, 2),
    dyn_dim=st.none() | numbers,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "checkpoint_hash": texts,
    "plan_fingerprint": texts,
    "prompts": st.lists(texts, min_size=1, max_size=3).map(tuple),
    "steps": numbers,
    "role": st.sampled_from(["positive", "negative"]),
    "hires_steps": st.none() | numbers,
    "old_timelines": st.booleans(),
    "emphasis": st.sampled_from(Emphasis),
    "old_emphasis": st.booleans(),
    "comma_backtrack": numbers,
    "clip_skip": st.integers(1, 12),
    "embeddings": st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    "adapters": st.lists(adapters, max_size=2).map(tuple),
    "lora_mode": texts,
    "settings": st.lists(st.tuples(texts, numbers), max_size=2).map(tuple),
    "facts": st.lists(st.tuples(texts, numbers), max_size=2).map(tuple),
    "cache_version": numbers,
}
identities = st.builds(ResultIdentity, **VALUES)


def test_every_field_is_varied_here() -> None:
    assert set(VALUES) == {field.name for field in fields(ResultIdentity)}


@given(identity=identities, name=st.sampled_from(sorted(VALUES)), data=st.data())
def test_changing_any_field_gives_another_key(identity: ResultIdentity, name: str, data: st.DataObject) -> None:
    cache: ConditioningCache[str] = ConditioningCache()
    cache.put(identity, "kept")
    other = data.draw(VALUES[name].filter(lambda value: value != getattr(identity, name)))
    assert cache.get(replace(identity, **{name: other})) is None
    assert cache.get(replace(identity)) == "kept"


@given(adapter=adapters, data=st.data())
def test_changing_any_fact_of_an_adapter_gives_another_key(adapter: AdapterUse, data: st.DataObject) -> None:
    other = data.draw(adapters.filter(lambda value: value != adapter))
    assert _identity(adapters=(adapter,)) != _identity(adapters=(other,))


def _identity(**changes: Any) -> ResultIdentity:
    return ResultIdentity(
        **{"checkpoint_hash": "c", "plan_fingerprint": "p", "prompts": ("a cat",), "steps": 20, **changes}
    )


def test_the_oldest_goes_first() -> None:
    cache: ConditioningCache[int] = ConditioningCache(capacity=2)
    for steps in (1, 2):
        cache.put(_identity(steps=steps), steps)
    assert cache.get(_identity(steps=1)) == 1
    cache.put(_identity(steps=3), 3)
    assert [cache.get(_identity(steps=steps)) for steps in (1, 2, 3)] == [1, None, 3]
    cache.clear()
    assert len(cache) == 0


def test_what_is_there_is_not_made_again() -> None:
    cache: ConditioningCache[list[int]] = ConditioningCache()
    first = cache.get_or_make(_identity(), lambda: [1])
    assert cache.get_or_make(_identity(), lambda: [2]) is first


def test_no_capacity_keeps_nothing() -> None:
    cache: ConditioningCache[int] = ConditioningCache(capacity=0)
    cache.put(_identity(), 1)
    assert cache.get(_identity()) is None


@pytest.mark.parametrize("length", [1_000, 20_000])
def test_a_hit_takes_less_than_a_fifth_of_a_millisecond(length: int) -> None:
    cache: ConditioningCache[int] = ConditioningCache()
    prompt = "cat " * (length // 4)
    cache.put(_identity(prompts=(prompt,)), 1)
    durations = []
    for _ in range(50):
        fresh = prompt[:-1] + prompt[-1]  # a string of its own, whose hash is not known yet
        start = time.perf_counter()
        assert cache.get(_identity(prompts=(fresh,))) == 1
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.0002
