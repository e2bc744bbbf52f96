"""penstock._core.Engine: the memory and the traces of one rank, which need no PyTorch."""

import json

import numpy as np
import penstock
import pytest
from penstock._core import Config, Engine, Layout

elements = 1_000_000
budget = 64 << 20


@pytest.fixture
def rank(directory):
    """Two units, whose states, 24 MB, have a place in a swap file and room in memory."""
    layout = Layout()
    for name in ("first", "second"):
        layout.add_parameter(layout.add_unit(name), "weight", [elements])
    config = {"train_batch_size": 1, "optimizer": {"type": "AdamW"},
              "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(directory),
                                                                      "pin_memory": False}},
              "penstock": {"path_weights": [1], "host_budget": budget, "tile_elements": 131072, "tiles_in_flight": 1}}
    engine = Engine(Config(json.dumps(config), "test"), layout)
    values = np.ones(elements, np.float32)
    engine.initialize([[(values.ctypes.data, elements, "float32")]] * 2)
    yield engine
    engine.close()


def step(engine):
    gradients = np.full(elements, 0.5, np.float32)
    engine.begin_step()
    for unit in (1, 0):
        engine.reduce(unit, [(gradients.ctypes.data, elements, "float32")])
    engine.step()
    engine.finish_update()


def test_memory_is_limited_while_it_trains(rank):
    step(rank)
    least = rank.memory_least()
    with pytest.raises(penstock.BudgetTooSmall):
        rank.limit_memory(least - 4096)
    with pytest.raises(penstock.InvalidArgument, match="most"):
        rank.limit_memory(-1)
    rank.limit_memory(least)
    step(rank)  # what was not stored is
    assert rank.limit_memory(least) < least + (4 << 20)
    step(rank)
    assert rank.report()["completed_steps"] == 3
    assert rank.limit_memory(2**64 - 1) == budget


def test_a_step_has_a_trace(rank, tmp_path):
    file = tmp_path / "train.trace"
    with pytest.raises(penstock.FailedState, match="begin_trace"):
        rank.save_trace(file)
    rank.begin_trace()
    step(rank)
    with pytest.raises(penstock.InvalidArgument, match="zero byte"):
        rank.save_trace(file, "a\0b")
    rank.save_trace(file, label="train")
    text = file.read_text()
    assert text.startswith("penstock-trace 1\nlabel train\n") and "optimizer_tiles second optimizer tile 0\n" in text
