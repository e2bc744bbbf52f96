"""penstock.torch.AdamW with update="cuda", where host memory stands for a device's: streams do their work as late as they
may, and the library's update for devices runs on the host. What only a GPU shows is not here."""

import collections
import contextlib
import functools
import threading
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

from with_torch.test_adamw import assert_equal, make_model, place, set_gradients, tile_elements, train  # noqa: E402, F401

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import device_update, placement  # noqa: E402


class Stream:
    """Does what it was given when another one, or the host, waits for it."""

    cuda_stream = 0

    def __init__(self, device=None):
        self.waiting = collections.deque()
        self.given = self.done = 0
        self.is_eager = False

    def give(self, call):
        self.waiting.append(call)
        self.given += 1
        if self.is_eager:
            self.run(self.given)

    def wait_stream(self, stream):
        self.give(functools.partial(stream.run, stream.given))

    def record_event(self):
        return types.SimpleNamespace(synchronize=functools.partial(self.run, self.given))

    def synchronize(self):
        self.run(self.given)

    def run(self, number):
        while self.done < number:
            self.done += 1
            self.waiting.popleft()()


class Device:
    """What device_update uses of torch.cuda."""

    Stream, Event = Stream, object

    def __init__(self):
        self.registered = {}
        self.current = self.active = Stream()
        self.is_refused = False

    def is_available(self):
        return True

    @contextlib.contextmanager
    def stream(self, stream):
        self.active, before = stream, self.active
        yield
        self.active = before

    def current_stream(self, device):
        return self.current

    def cudart(self):
        return self

    def cudaHostRegister(self, address, nbytes, flags):  # noqa: N802
        if self.is_refused:
            return 2
        self.registered[address] = nbytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.registered[address]

    def copy(self, to, source):
        self.active.give(lambda: to.copy_(source))

    def enqueue(self, tile, *arguments):
        self.current.give(lambda: tile.enqueue_step(*arguments))


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(device_update, "cuda", made)
    monkeypatch.setattr(device_update, "_copy", made.copy)
    monkeypatch.setattr(device_update, "_enqueue", made.enqueue)
    for module in (penstock.torch.adamw, penstock.torch.saved_states):
        monkeypatch.setattr(module, "is_on_host", lambda _: False)
    return made


def backward(model, step):
    """In another thread, as PyTorch's for a GPU."""
    generator = torch.Generator().manual_seed(step)
    loss = sum((parameter.float() * torch.randn(parameter.shape, generator=generator)).sum() for parameter in model)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()


@pytest.mark.parametrize("dtype, format", [
    (torch.float32, "moments"), (torch.float32, "fp32"), (torch.float16, "fp32"), (torch.bfloat16, "split"),
    (torch.bfloat16, "split_bf16"), (torch.bfloat16, "split_q8"), (torch.bfloat16, "moments_bf16"), (torch.bfloat16, "fp32")])
def test_bits_are_those_of_the_cpu(place, dtype, format, device):  # noqa: F811
    results = []
    for update in ("cpu", "cuda"):
        model = make_model(dtype)
        optimizer = penstock.torch.AdamW(model, lr=1e-2, state_format=format, update=update, max_grad_norm=1.0, **place)
        train(model, optimizer, range(3))
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
        with torch.no_grad():
            model[0][0] = 0.5  # changed between steps
        train(model, optimizer, range(3, 5))
        results.append([*model, *(values["step"] for values in optimizer.state_dict()["state"].values())])
        assert len(device.registered) == (1 if update == "cuda" else 0)
        optimizer.close()
        assert not device.registered
    assert_equal(results[1], results[0])


def test_a_step_that_failed_is_completed(place, device, monkeypatch):  # noqa: F811
    straight, model = make_model(torch.bfloat16), make_model(torch.bfloat16)
    train(straight, penstock.torch.AdamW(straight, **place), range(3))
    optimizer = penstock.torch.AdamW(model, update="cuda", **place)
    train(model, optimizer, range(2))
    set_gradients(model, 2)
    begun = []

    def fail(self, tile, *arguments):
        begun.append(tile)
        if len(begun) in (2, 4):
            raise penstock.IoFailed("broken")
        update(self, tile, *arguments)
    update = device_update.DeviceUpdate._update
    with monkeypatch.context() as patch:
        patch.setattr(device_update.DeviceUpdate, "_update", fail)
        for _ in range(2):
            with pytest.raises(penstock.IoFailed):
                optimizer.step()
            with pytest.raises(penstock.FailedState, match="half-way"):
                optimizer.state_dict()
    optimizer.step()
    assert_equal(model, straight)
    optimizer.close()


@pytest.mark.parametrize("call", ["step", "state_dict", "load_state_dict"])
def test_tiles_whose_end_was_interrupted_end_before_the_next_call(place, device, monkeypatch, call):  # noqa: F811
    class Interrupt(BaseException):
        pass
    straight, model = make_model(torch.bfloat16), make_model(torch.bfloat16)
    train(straight, penstock.torch.AdamW(straight, **place), range(4))
    optimizer = penstock.torch.AdamW(model, update="cuda", **place)
    train(model, optimizer, range(2))
    saved, before = optimizer.state_dict(), [parameter.detach().clone() for parameter in model]
    set_gradients(model, 2)

    def interrupted(self):
        raise Interrupt
    with monkeypatch.context() as patch:
        patch.setattr(device_update.DeviceUpdate, "_finish_first", interrupted)
        with pytest.raises(Interrupt):
            optimizer.step()
    update = next(iter(optimizer._device_updates.values()))
    assert update._moves
    if call == "state_dict":
        with pytest.raises(penstock.FailedState, match="half-way"):
            optimizer.state_dict()
    elif call == "load_state_dict":
        optimizer.load_state_dict(saved)
        for parameter, values in zip(model, before):
            parameter.data.copy_(values)  # those of 16 bits are its masters rounded
    assert not update._moves or call == "step"
    optimizer.step()
    assert not update._moves
    train(model, optimizer, [3])
    assert_equal(model, straight)
    optimizer.close()


def test_values_that_are_not_finite_are_warned_of(device):
    parameter = torch.nn.Parameter(torch.ones(2 * tile_elements))
    parameter.grad = torch.ones(2 * tile_elements)
    parameter.grad[tile_elements + 5] = torch.nan
    optimizer = penstock.torch.AdamW([parameter], update="cuda", tile_elements=tile_elements)
    with pytest.warns(RuntimeWarning, match=f"number 0 of group 0.*near element {tile_elements}"):
        optimizer.step()
    optimizer.close()


def test_a_warning_as_an_error_comes_after_the_step(device):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update="cuda")
    set_gradients(model, 0)
    model[1].grad[0, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            optimizer.step()
    assert {int(values["step"]) for values in optimizer.state_dict()["state"].values()} == {1}
    set_gradients(model, 1)
    with pytest.warns(RuntimeWarning):
        optimizer.step()
    assert {int(values["step"]) for values in optimizer.state_dict()["state"].values()} == {2}
    optimizer.close()


def test_updates_in_backward_are_those_of_the_cpu(place, device):  # noqa: F811
    results = []
    for update in ("cpu", "cuda"):
        model = make_model(torch.bfloat16)
        optimizer = penstock.torch.AdamW(model, lr=1e-2, update=update, update_in_backward=True, **place)
        for step in range(3):
            backward(model, step)
            assert all(parameter.grad is None for parameter in model)
            saved = optimizer.state_dict()  # between backward and step()
            optimizer.step()
        optimizer.load_state_dict(saved)
        backward(model, 3)
        optimizer.step()
        results.append([*model])
        optimizer.close()
    assert_equal(results[1], results[0])


@pytest.mark.parametrize("update", ["cpu", "cuda"])
def test_threads_may_update_in_backward(device, update):
    """PyTorch has one for each device."""
    for _ in range(10):
        model = make_model()
        optimizer = penstock.torch.AdamW(model, update=update, update_in_backward=True)
        threads = [threading.Thread(target=parameter.sum().backward) for parameter in model]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        optimizer.step()
        assert [int(optimizer.state[parameter]["step"]) for parameter in model] == [1] * len(model)
        assert len(optimizer._runtimes) == 1
        optimizer.close()


def test_the_device_has_done_what_it_had_before_states_come(device):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update="cuda")
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(1))
    done = []
    device.current.give(lambda: done.append(True))
    copy = device.copy
    for update in optimizer._device_updates.values():
        update._to_device.is_eager = True

    def checked(to, source):
        if device.active is not device.current:
            device.active.give(lambda: done[0])
        copy(to, source)
    device_update._copy = checked
    train(model, optimizer, range(1, 2))
    optimizer.close()


def test_the_least_memory_suffices(directory, monkeypatch, device):
    """Two tiles, for any sizes of parameters: what is on its way leaves, where the rest has no range for one more."""
    monkeypatch.setattr(placement, "_small_bytes", 0)
    for seed in range(10):
        torch.manual_seed(seed)
        sizes = torch.randint(1, 4 * tile_elements, (8,)).tolist()
        model = torch.nn.ParameterList([torch.randn(size) for size in sizes])
        largest = -(-penstock.state_bytes("moments", min(tile_elements, max(sizes))) // 4096) * 4096
        optimizer = penstock.torch.AdamW(model, update="cuda", tile_elements=tile_elements, path=directory, budget=2 * largest)
        train(model, optimizer, range(2))
        optimizer.close()


def test_memory_that_is_not_registered_is_an_error_each_time(device):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update="cuda")
    device.is_refused = True
    for _ in range(2):
        with pytest.raises(penstock.Error, match="does not register"):
            train(model, optimizer, range(1))
    device.is_refused = False
    train(model, optimizer, range(1))
    assert len(device.registered) == 1
    optimizer.close()


def test_memory_is_unregistered_with_the_optimizer(device):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update="cuda")
    train(model, optimizer, range(1))
    assert len(device.registered) == 1
    del optimizer
    assert not device.registered


def test_without_a_gpu_it_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(penstock.Unsupported, match="no CUDA device"):
        penstock.torch.AdamW(make_model(), update="cuda")
    with pytest.raises(penstock.InvalidArgument, match="no such processor"):
        penstock.torch.AdamW(make_model(), update="tpu")
