"""What a module computes, counted on tensors without memory, and the time that follows from a device's speed."""

from functools import partial

import torch
from torch import nn

from modules.memory.dry_run import DryRun, MetaRun
from modules.memory.work import Speed, Work, WorkCounter, measure_speed

CPU = torch.device("cpu")


def test_products_convolutions_and_attention_are_counted() -> None:
    counter, run = WorkCounter(), MetaRun(CPU)
    linear, convolution = nn.Linear(8, 4, bias=False), nn.Conv2d(3, 5, 3, padding=1, bias=False)
    run.place(linear, torch.float32)
    run.place(convolution, torch.float32)
    run.observe(lambda: linear(run.tensor(2, 8)), counter)
    assert counter.operations == 2 * 2 * 8 * 4
    assert counter.touched_bytes == 4 * (2 * 8 + 8 * 4 + 2 * 4)
    run.observe(lambda: convolution(run.tensor(1, 3, 6, 6)), counter)
    assert counter.operations == 2 * 2 * 8 * 4 + 2 * 3 * 5 * 9 * 36
    before = counter.operations
    query = run.tensor(1, 2, 10, 4)
    run.observe(lambda: counter.attend(query, query, query), counter)
    assert counter.operations - before == 2 * 2 * (2 * 10 * 10 * 4)  # two products of every head


def test_it_counts_the_same_on_both_kinds_of_tensors_without_memory() -> None:
    found = []
    for run in (DryRun(), MetaRun(CPU)):
        module, counter = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)), WorkCounter()
        if isinstance(run, DryRun):
            run.place(module, CPU, torch.float32)
        else:
            run.place(module, torch.float32)
        run.observe(partial(module, run.tensor(3, 8)), counter)
        found.append(counter.work)
    assert found[0] == found[1] and found[0].operations > 0


def test_time_is_computing_and_touching_or_what_is_sent_meanwhile() -> None:
    speed = Speed(operations_per_s=100.0, touched_bytes_per_s=10.0, sent_bytes_per_s=5.0)
    assert Work(200, 30).seconds(speed) == 5.0
    assert Work(200, 30, sent_bytes=20).seconds(speed) == 5.0
    assert Work(200, 30, sent_bytes=50).seconds(speed) == 10.0


def test_this_machine_has_a_speed() -> None:
    speed = measure_speed(CPU, torch.float32)
    assert min(speed.operations_per_s, speed.touched_bytes_per_s, speed.sent_bytes_per_s) > 1e6
