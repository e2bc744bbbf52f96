"""penstock.Tile: updates of elements in memory of the caller."""

import numpy as np
import penstock
import pytest

count = 50_000


def adamw(parameter, gradient, m, v, step, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0):
    """One step in double precision (Loshchilov and Hutter, arXiv:1711.05101)."""
    parameter = parameter * (1 - learning_rate * weight_decay)
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    step_size = learning_rate / (1 - beta1**step)
    return parameter - step_size * m / (np.sqrt(v / (1 - beta2**step)) + epsilon), m, v


def new(format="fp32", dtype=np.float32, **options):
    parameter = np.zeros(count, dtype)
    state = np.zeros(penstock.state_bytes(format, count, **options), np.uint8)
    return penstock.Tile(state, parameter, format=format, **options), parameter


def test_it_is_adamw():
    random = np.random.default_rng(2)
    expected = random.normal(size=count)
    tile, parameter = new()
    workers = penstock.Workers(2)
    tile.initialize(expected.astype(np.float32), workers)
    m = v = np.zeros(count)
    for number in range(1, 6):
        gradient = random.normal(size=count).astype(np.float32)
        assert tile.step(gradient, number, learning_rate=1e-2, weight_decay=0.1, workers=workers) is None
        expected, m, v = adamw(expected, gradient.astype(float), m, v, number, 1e-2, weight_decay=0.1)
    np.testing.assert_allclose(parameter, expected, atol=2e-6)
    moment = np.zeros(100, np.float32)
    tile.read("first_moment", moment, first=7)
    np.testing.assert_allclose(moment, m[7:107], atol=1e-6)


@pytest.mark.parametrize("format", ["fp32", "split", "split_bf16", "split_q8", "moments", "moments_bf16"])
def test_bits_are_equal_for_any_number_of_threads(format):
    dtype = np.float32 if format in ("fp32", "moments") else np.uint16  # bfloat16
    results = []
    for threads in (1, 2):
        tile, parameter = new(format, dtype)
        tile.initialize(np.linspace(-1, 1, count, dtype=np.float32))
        for number in range(1, 4):
            gradient = np.sin(np.arange(count) * number).astype(np.float32)
            tile.step(gradient, number, learning_rate=1e-3, workers=penstock.Workers(threads))
        results.append(parameter.tobytes())
    assert results[0] == results[1]
    assert penstock.state_bytes(format, count) < 12 * count + 1


def test_states_are_read_and_restored():
    tile, parameter = new()
    tile.initialize(np.ones(count, np.float32))
    tile.step(np.ones(count, np.float32), 1, learning_rate=0.1)
    states = {}
    for kind in ("master", "first_moment", "second_moment"):
        states[kind] = np.zeros(count, np.float32)
        tile.read(kind, states[kind])
    other, copy = new()
    other.restore(**states)
    assert (copy == parameter).all()
    for one in (tile, other):
        one.step(np.ones(count, np.float32), 2, learning_rate=0.1)
    assert (copy == parameter).all()


def test_the_first_block_that_is_not_finite_is_named():
    tile, _ = new()
    tile.initialize(np.zeros(count, np.float32))
    gradient = np.zeros(count, np.float32)
    gradient[20_000] = np.nan
    assert tile.step(gradient, 1, learning_rate=0.1) == 16384


@pytest.mark.parametrize("optimizer", ["lion", "adagrad"])
def test_other_optimizers_keep_one_moment(optimizer):
    tile, parameter = new(optimizer=optimizer)
    tile.initialize(np.zeros(count, np.float32))
    tile.step(np.ones(count, np.float32), 1, learning_rate=0.1)
    assert (parameter < 0).all()
    assert penstock.state_bytes("fp32", count, optimizer=optimizer) < penstock.state_bytes("fp32", count)


def test_states_are_not_the_memory_of_the_tile():
    state, parameter = np.zeros(12 * count, np.uint8), np.zeros(count, np.float32)
    tile = penstock.Tile(state, parameter)
    tile.initialize(np.ones(count, np.float32))
    zeros, own = np.zeros(count, np.float32), state[: 4 * count].view(np.float32)
    before = state.copy()
    for master, first, second in [(parameter, zeros, zeros), (own, zeros, zeros), (zeros, own, zeros), (zeros, zeros, own)]:
        with pytest.raises(penstock.InvalidArgument, match="overlap"):
            tile.restore(master, first, second)
    with pytest.raises(penstock.InvalidArgument, match="overlap"):
        tile.read("master", own)
    assert (state == before).all()
    tile.read("master", parameter)  # which the states in "fp32" do not need


def test_misuse_is_refused():
    state, parameter = np.zeros(12 * count, np.uint8), np.zeros(count, np.float32)
    ones = np.ones(count, np.float32)
    for arguments, options, text in [
        ((state[1:], parameter), {}, "state"), ((state[:-1], parameter), {}, "wanted 600000 bytes"),
        ((state, parameter[::2]), {}, "contiguous"), ((state, parameter.astype(np.float64)), {}, "another type"),
        ((state, parameter), {"format": "fp31"}, "split_q8"), ((state, parameter), {"optimizer": "sgd"}, "lion"),
        ((state, None), {}, "no memory"), ((bytes(12 * count), parameter), {}, "writable"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=text):
            penstock.Tile(*arguments, **options)
    tile = penstock.Tile(state, parameter)
    tile.initialize(ones)
    before = parameter.copy()
    for gradient, number, options in [
        (ones[1:], 1, {}), (ones.astype(np.float64), 1, {}), (ones, 0, {}), (None, 1, {}), (parameter, 1, {}),
        (ones, 1, {"beta1": 1.5}), (ones, 1, {"learning_rate": float("nan")}), (ones, 1, {"gradient_factor": float("inf")}),
    ]:
        with pytest.raises(penstock.InvalidArgument):
            tile.step(gradient, number, **{"learning_rate": 0.1, **options})
    for call in (lambda: tile.read("third_moment", ones), lambda: tile.read("master", ones, first=1),
                 lambda: tile.read("master", np.zeros(4)), lambda: tile.restore(ones[1:]),
                 lambda: tile.restore(ones), lambda: penstock.state_bytes("fp32", 1 << 63),
                 lambda: penstock.Workers(0)):
        with pytest.raises(penstock.Error):
            call()
    assert (parameter == before).all()
