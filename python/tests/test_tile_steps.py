"""penstock._core._step_tiles: steps of many tiles in one call."""

import functools
import signal

import numpy as np
import penstock
import pytest
from penstock._core import TileState, _step_tiles

count = 20_000
adamw = (1e-2, 0.9, 0.999, 1e-8, 0.1, 1.0)


@pytest.fixture
def runtime():
    made = penstock.Runtime(4 << 20)
    yield made
    made.close()


class Memory:
    """What a tensor of PyTorch has. As there, no code of Python runs in its methods, where signal handlers would run."""

    def __init__(self, values):
        self.nbytes = values.nbytes
        self.set(values)

    def set(self, values):
        self.values = values
        self.data_ptr = functools.partial(int, values.ctypes.data)


class Parameter:
    def __init__(self, runtime, index):
        self.values = np.linspace(-1, index + 1, count, dtype=np.float32)
        self.gradient = np.sin(np.arange(count) * (index + 1)).astype(np.float32)
        self.tile = TileState(runtime, f"parameter {index}", count, "float32", "moments", 0, True)

    def step(self, number, hyperparameters=adamw):
        return [self.tile], Memory(self.values), Memory(self.gradient), "float32", number, hyperparameters, self, 100


def expected(index, steps, hyperparameters=adamw):
    """Of a penstock.Tile, whose updates are tested beside formulas."""
    values = np.linspace(-1, index + 1, count, dtype=np.float32)
    tile = penstock.Tile(np.zeros(penstock.state_bytes("moments", count), np.uint8), values, format="moments")
    tile.initialize(values.copy())
    rate, beta1, beta2, epsilon, decay, factor = hyperparameters
    for number in range(1, steps + 1):
        tile.step(np.sin(np.arange(count) * (index + 1)).astype(np.float32), number, learning_rate=rate, beta1=beta1, beta2=beta2,
                  epsilon=epsilon, weight_decay=decay, gradient_factor=factor)
    return values


def test_each_tile_has_its_hyperparameters(runtime):
    parameters = [Parameter(runtime, index) for index in range(3)]
    other = (1e-3, 0.8, 0.99, 1e-6, 0.0, 0.5)
    for number in (1, 2):
        steps = [parameters[0].step(number), parameters[1].step(number, other), parameters[2].step(number)]
        found = []
        _step_tiles(steps, penstock.Workers(2), found)
        assert not found
    for index, of_index in enumerate((adamw, other, adamw)):
        np.testing.assert_array_equal(parameters[index].values, expected(index, 2, of_index))


def test_a_call_that_failed_is_repeated(runtime):
    parameters = [Parameter(runtime, index) for index in range(3)]
    bad = (float("nan"), *adamw[1:])
    with pytest.raises(penstock.InvalidArgument, match="learning_rate"):
        _step_tiles([parameters[0].step(1), parameters[1].step(1, bad), parameters[2].step(1)], None, [])
    assert [parameter.tile.completed for parameter in parameters] == [1, 0, 0]
    _step_tiles([parameter.step(1) for parameter in parameters], None, [])
    for index, parameter in enumerate(parameters):
        np.testing.assert_array_equal(parameter.values, expected(index, 1))


def test_values_that_are_not_finite_are_found(runtime):
    parameters = [Parameter(runtime, index) for index in range(3)]
    parameters[0].gradient[5] = np.nan
    parameters[2].gradient[16384 + 5] = np.inf
    steps = [parameter.step(1) for parameter in parameters]
    steps[1] = parameters[1].step(1, (float("nan"), *adamw[1:]))
    found = ["earlier"]
    with pytest.raises(penstock.InvalidArgument):
        _step_tiles(steps, None, found)
    assert found == ["earlier", (parameters[0], 100)]  # not lost with the error
    _step_tiles([parameter.step(1) for parameter in parameters], None, found)
    assert found[2:] == [(parameters[2], 100 + 16384)]


def test_a_signal_ends_it_between_tiles(runtime):
    class Rang(Exception):
        pass

    def ring(*_):
        raise Rang
    parameter = Parameter(runtime, 0)
    steps = [parameter.step(number) for number in range(1, 200_001)]  # many seconds
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(Rang):
            _step_tiles(steps, None, [])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0 < parameter.tile.completed < 200_000
    np.testing.assert_array_equal(parameter.values, expected(0, parameter.tile.completed))


def test_a_closed_runtime_is_refused_before_any_step(runtime):
    other = penstock.Runtime(1 << 20)
    parameters = [Parameter(runtime, 0), Parameter(other, 1)]
    other.close()
    with pytest.raises(penstock.FailedState, match="closed"):
        _step_tiles([parameter.step(1) for parameter in parameters], None, [])
    assert parameters[0].tile.completed == 0


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_tensor_with_less_than_the_elements_of_its_tiles_is_refused_before_any_step(runtime, tensor):
    parameters = [Parameter(runtime, 0), Parameter(runtime, 1)]
    short = list(parameters[1].step(1))
    short[tensor] = Memory(short[tensor].values[:-1])
    with pytest.raises(penstock.InvalidArgument, match=f"wanted {4 * count} bytes or more, got {4 * count - 4}"):
        _step_tiles([parameters[0].step(1), tuple(short)], None, [])
    assert parameters[0].tile.completed == 0


def test_the_tiles_of_a_parameter_follow_each_other(runtime):
    tiles = [TileState(runtime, "parameter", elements, "float32", "moments", 0, True) for elements in (16384, count - 16384)]
    parameter = Parameter(runtime, 0)
    for number in (1, 2):
        _step_tiles([(tiles, *parameter.step(number)[1:])], None, [])
    np.testing.assert_array_equal(parameter.values, expected(0, 2))
    parameter.gradient[17000] = np.nan
    found = []
    _step_tiles([(tiles, *parameter.step(3)[1:])], None, found)
    assert found == [(parameter, 100 + 16384)]


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_tensor_that_a_signal_handler_gives_other_memory_is_refused(runtime, tensor):
    first, last = Parameter(runtime, 0), Parameter(runtime, 1)
    steps = [first.step(number) for number in range(1, 20_001)] + [last.step(1)]  # more than 50 ms
    former = steps[-1][tensor].values

    def replace(*_):
        steps[-1][tensor].set(former.copy())
    before = signal.signal(signal.SIGALRM, replace)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(penstock.FailedState, match="other memory during its update: parameter 1"):
            _step_tiles(steps, None, [])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert 0 < first.tile.completed < 20_000 and last.tile.completed == 0
