"""penstock.torch.AdamW with update="cuda", where host memory stands for a device's: streams do nothing, and the library's
update for devices runs on the host. What only a GPU shows is not here."""

import contextlib
import types

import pytest

torch = pytest.importorskip("torch")

from with_torch.test_adamw import assert_equal, make_model, place, set_gradients, tile_elements, train  # noqa: E402, F401

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import device_update  # noqa: E402


class Stream:
    cuda_stream = 0

    def __init__(self, device):
        pass

    def wait_stream(self, stream):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        pass


@pytest.fixture
def registered(monkeypatch):
    """The memory that is registered with the device."""
    ranges = {}

    def register(address, nbytes, flags):
        ranges[address] = nbytes
        return 0

    def unregister(address):
        del ranges[address]
        return 0

    def check(code):
        assert code == 0
    runtime = types.SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    cuda = types.SimpleNamespace(Stream=Stream, Event=Stream, stream=lambda stream: contextlib.nullcontext(),
                                 current_stream=Stream, cudart=lambda: runtime, check_error=check,
                                 is_available=lambda: True)
    monkeypatch.setattr(device_update, "cuda", cuda)
    for module in (penstock.torch.adamw, penstock.torch.saved_states):
        monkeypatch.setattr(module, "is_on_host", lambda _: False)
    return ranges


def with_room(place, format):  # noqa: F811
    """Four tiles pass through memory at once."""
    return place | {"budget": 4 * penstock.state_bytes(format, tile_elements) + 20_000} if "budget" in place else place


@pytest.mark.parametrize("dtype, format", [
    (torch.float32, "moments"), (torch.float32, "fp32"), (torch.float16, "fp32"), (torch.bfloat16, "split"),
    (torch.bfloat16, "split_bf16"), (torch.bfloat16, "split_q8"), (torch.bfloat16, "moments_bf16"), (torch.bfloat16, "fp32")])
def test_bits_are_those_of_the_cpu(place, dtype, format, registered):  # noqa: F811
    results = []
    for update in ("cpu", "cuda"):
        model = make_model(dtype)
        optimizer = penstock.torch.AdamW(model, lr=1e-2, state_format=format, update=update, max_grad_norm=1.0,
                                         **with_room(place, format))
        train(model, optimizer, range(3))
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
        with torch.no_grad():
            model[0][0] = 0.5  # changed between steps
        train(model, optimizer, range(3, 5))
        results.append([*model, *(values["step"] for values in optimizer.state_dict()["state"].values())])
        assert len(registered) == (1 if update == "cuda" else 0)
        optimizer.close()
        assert not registered
    assert_equal(results[1], results[0])


def test_a_step_that_failed_is_completed(place, registered, monkeypatch):  # noqa: F811
    straight, model = make_model(torch.bfloat16), make_model(torch.bfloat16)
    train(straight, penstock.torch.AdamW(straight, **place), range(3))
    optimizer = penstock.torch.AdamW(model, update="cuda", **with_room(place, "split"))
    train(model, optimizer, range(2))
    set_gradients(model, 2)
    begun = []

    def fail(self, tile, number, enqueue):
        begun.append(tile)
        if len(begun) in (2, 4):
            raise penstock.IoFailed("broken")
        update(self, tile, number, enqueue)
    update = device_update.DeviceUpdate._update
    with monkeypatch.context() as patch:
        patch.setattr(device_update.DeviceUpdate, "_update", fail)
        for _ in range(2):
            with pytest.raises(penstock.IoFailed):
                optimizer.step()
    optimizer.step()
    assert_equal(model, straight)
    optimizer.close()


def test_values_that_are_not_finite_are_warned_of(registered):
    parameter = torch.nn.Parameter(torch.ones(2 * tile_elements))
    parameter.grad = torch.ones(2 * tile_elements)
    parameter.grad[tile_elements + 5] = torch.nan
    optimizer = penstock.torch.AdamW([parameter], update="cuda", tile_elements=tile_elements)
    with pytest.warns(RuntimeWarning, match=f"number 0 of group 0.*near element {tile_elements}"):
        optimizer.step()
    optimizer.close()


def test_memory_is_unregistered_with_the_optimizer(registered):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update="cuda")
    train(model, optimizer, range(1))
    assert len(registered) == 1
    del optimizer
    assert not registered


def test_without_a_gpu_it_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(penstock.Unsupported, match="no CUDA device"):
        penstock.torch.AdamW(make_model(), update="cuda")
    with pytest.raises(penstock.InvalidArgument, match="no such processor"):
        penstock.torch.AdamW(make_model(), update="tpu")
