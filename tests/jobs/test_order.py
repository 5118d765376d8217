"""Which job comes next: every property of the order, over drawn lines."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from modules.jobs.order import MAX_OVERTAKEN, Waiting, choose, in_order, turns_of_newcomer

LINES = st.lists(
    st.builds(Waiting, user=st.sampled_from(["", "ann", "bob"]), model=st.sampled_from(["", "a", "b", "c"])),
    max_size=60,
)


@dataclass(frozen=True)
class Run:
    """A line worked off: indexes in the order they ran, how often each was overtaken, changes of model."""

    order: list[int]
    overtaken: list[int]
    switches: int


def worked_off(line: list[Waiting], groups: bool = True) -> Run:
    left = list(enumerate(line))
    overtaken, order, turns, loaded, switches = [0] * len(line), [], dict[str, int](), "", 0
    while left:
        choice = choose([replace(item, overtaken=overtaken[i]) for i, item in left], loaded, turns, groups)
        assert choice is not None
        for index in choice.overtaken:
            overtaken[left[index][0]] += 1
        number, item = left.pop(choice.index)
        turns[item.user] = turns.get(item.user, 0) + 1
        switches += bool(item.model) and item.model != loaded
        loaded = item.model or loaded
        order.append(number)
    return Run(order, overtaken, switches)


@given(LINES)
def test_everything_runs_once_and_nothing_is_overtaken_for_ever(line: list[Waiting]) -> None:
    run = worked_off(line)
    assert sorted(run.order) == list(range(len(line)))
    assert max(run.overtaken, default=0) <= MAX_OVERTAKEN


@given(LINES)
def test_users_take_turns(line: list[Waiting]) -> None:
    users = [line[index].user for index in worked_off(line).order]
    for position, user in enumerate(users):
        waiting = set(users[position:])
        done = users[:position]
        assert all(done.count(user) <= done.count(other) for other in waiting), "the one with the fewest turns is next"


@given(LINES)
def test_without_grouping_each_users_work_keeps_its_order(line: list[Waiting]) -> None:
    order = worked_off(line, groups=False).order
    for user in {item.user for item in line}:
        own = [index for index in order if line[index].user == user]
        assert own == sorted(own)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12))
def test_grouping_changes_models_least(models: list[str]) -> None:
    """As long as nothing is overtaken too often, each model is loaded once."""
    run = worked_off([Waiting(model=model) for model in models])
    assert run.switches == len(set(models))


def test_long_lines_change_models_less_than_the_order_of_arrival() -> None:
    line = [Waiting(model="abc"[number % 3]) for number in range(300)]
    assert worked_off(line, groups=False).switches == 300
    assert worked_off(line).switches <= 40


def test_pinned_work_comes_first_and_held_work_never() -> None:
    line = [Waiting(), Waiting(is_held=True, is_pinned=True), Waiting(is_pinned=True)]
    choice = choose(line, "", {})
    assert choice is not None and choice.index == 2
    assert choose([Waiting(is_held=True)], "", {}) is None


def test_a_newcomer_is_not_served_before_all_others_for_long() -> None:
    line = [Waiting(user="ann"), Waiting(user="bob")]
    assert turns_of_newcomer("eve", line, {"ann": 7, "bob": 8}) == 7
    assert turns_of_newcomer("eve", line, {"ann": 7, "bob": 8, "eve": 9}) == 9


def asked_again_and_again(line: list[Waiting], loaded: str, turns: dict[str, int], groups: bool) -> list[int]:
    """What `in_order` is short for."""
    left, order, turns = list(enumerate(line)), [], dict(turns)
    while (choice := choose([item for _, item in left], loaded, turns, groups)) is not None:
        for position in choice.overtaken:
            index, item = left[position]
            left[position] = index, replace(item, overtaken=item.overtaken + 1)
        index, item = left.pop(choice.index)
        turns[item.user] = turns.get(item.user, 0) + 1
        loaded = item.model or loaded
        order.append(index)
    return order


@given(
    st.lists(
        st.builds(
            Waiting,
            user=st.sampled_from(["", "ann", "bob"]),
            model=st.sampled_from(["", "a", "b"]),
            overtaken=st.integers(0, MAX_OVERTAKEN),
            is_pinned=st.sampled_from([False, False, False, True]),
            is_held=st.sampled_from([False, False, True]),
        ),
        max_size=40,
    ),
    st.sampled_from(["", "a", "b"]),
    st.dictionaries(st.sampled_from(["", "ann", "bob"]), st.integers(0, 3)),
    st.booleans(),
)
def test_the_order_of_a_whole_line_is_that_of_its_parts(
    line: list[Waiting], loaded: str, turns: dict[str, int], groups: bool
) -> None:
    order = asked_again_and_again(line, loaded, turns, groups)
    assert in_order(line, loaded, turns, len(line), groups) == order
    assert in_order(line, loaded, turns, 3, groups) == order[:3]
