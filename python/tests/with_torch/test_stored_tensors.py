"""penstock.Store with tensors of PyTorch; penstock.torch.park and offload_activations."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402

park_module = sys.modules["penstock.torch.park"]

mib = 1 << 20


@pytest.fixture
def store(directory):
    with penstock.Store(8 * mib, [penstock.Path(directory, 256 * mib)]) as made:
        yield made


def make_model():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(600, 900), torch.nn.BatchNorm1d(900), torch.nn.ReLU(),
                                torch.nn.Linear(900, 600), torch.nn.Linear(600, 600))
    model.append(torch.nn.Linear(600, 600))
    model[5].weight = model[4].weight  # tied
    return model


@pytest.mark.parametrize("values", [
    torch.arange(24.0).reshape(2, 3, 4), torch.ones(7, dtype=torch.bfloat16), torch.tensor(3), torch.empty(0, 4),
    torch.ones(5, requires_grad=True), torch.arange(12).reshape(3, 4).t(), torch.tensor([True, False]),
    torch.randn(3, dtype=torch.complex64).conj(), torch.ones(4).to(torch.float8_e4m3fn), torch.ones(3, 1).expand(3, 5),
    torch.randn(3 * mib), torch.arange(8.0)[::2], torch.arange(8.0)[::2][:1], torch.tensor([1 + 2j]).imag,
    torch.ones(()).expand(3, 3)])
def test_tensors_keep_their_type_and_shape(store, values):
    store.put("a", values)
    got = store.get("a")
    assert got.dtype == values.dtype and got.shape == values.shape and not got.requires_grad
    assert torch.equal(got.float() if got.dtype == torch.float8_e4m3fn else got,
                       values.float() if got.dtype == torch.float8_e4m3fn else values.detach())
    got.zero_()  # a copy


def test_tensors_are_filled_in_place(store):
    values = torch.randn(5, 7)
    store.put("a", values)
    into = torch.nn.Parameter(torch.zeros(5, 7))
    with torch.no_grad():
        assert store.get("a", into=into) is into
    assert torch.equal(into, values)
    with pytest.raises(penstock.InvalidArgument, match=r"wanted a tensor of torch.float32, shape \(5, 7\)"):
        store.get("a", into=torch.zeros(7, 5))
    with pytest.raises(penstock.InvalidArgument, match="not contiguous"):
        store.get("a", into=torch.zeros(7, 5).t())


@pytest.mark.parametrize("values", [torch.ones(3).to_sparse(), torch.ones(3, device="meta"),
                                    torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)])
def test_tensors_without_bytes_are_refused(store, values):
    with pytest.raises(penstock.InvalidArgument, match="no dense tensor"):
        store.put("a", values)


def test_a_parked_module_has_no_memory_and_comes_back(store):
    model, expected = make_model(), make_model()
    for one in (model, expected):
        one(torch.ones(4, 600))  # changes the buffers
    parameters = list(model.parameters())
    parked = penstock.torch.park(model, store)
    assert all(tensor.untyped_storage().nbytes() <= 8 for tensor in [*model.parameters(), *model.buffers()])
    assert model(torch.ones(4, 600)).isnan().all()  # no crash
    assert len(store) == len({id(one) for one in [*model.parameters(), *model.buffers()]})
    parked.unpark()
    assert len(store) == 0
    assert all(one is other for one, other in zip(model.parameters(), parameters))
    assert model[5].weight is model[4].weight
    for one, other in zip([*model.parameters(), *model.buffers()], [*expected.parameters(), *expected.buffers()]):
        assert torch.equal(one, other)
    parked.unpark()  # does nothing


def test_two_modules_are_parked_in_one_store(store):
    models = make_model(), make_model()
    values = torch.randn(2, 600)
    expected = [model.eval()(values) for model in models]
    with penstock.torch.park(models[0], store, "first."), penstock.torch.park(models[1], store, "second."):
        store.park()
        store.unpark(load=False)
    for model, one in zip(models, expected):
        assert torch.equal(model(values), one)
    with penstock.torch.park(models[0], store):
        with pytest.raises(penstock.InvalidArgument, match="(?s)0.weight.*another prefix"):
            penstock.torch.park(models[1], store)
    assert torch.equal(models[1](values), expected[1])


def test_memory_that_cannot_be_parked_is_refused(store):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
    model[1].weight.data = model[1].weight.data.clone().share_memory_()
    with pytest.raises(penstock.Unsupported, match="(?s)1.weight.*clone"):
        penstock.torch.park(model, store)
    with pytest.raises(penstock.Unsupported, match="meta"):
        penstock.torch.park(torch.nn.Linear(3, 4, device="meta"), store)
    with pytest.raises(penstock.InvalidArgument, match="got list, Store"):
        penstock.torch.park([model], store)
    assert not model[0].weight.isnan().any() and len(store) == 0


def test_views_of_one_memory_are_parked_together(store):
    flat = torch.arange(12.0)
    model = torch.nn.ParameterList([torch.nn.Parameter(flat[:8].view(4, 2).t()), torch.nn.Parameter(flat[8:])])
    model[0].data.numpy()  # memory that numpy shares is not freed, and nothing crashes
    with penstock.torch.park(model, store):
        assert len(store) == 1
        del flat
    assert torch.equal(model[0], torch.arange(8.0).view(4, 2).t()) and torch.equal(model[1], torch.arange(8.0, 12.0))
    with torch.no_grad():
        model[0].add_(1)
    assert model[0].untyped_storage().data_ptr() == model[1].untyped_storage().data_ptr()


def test_a_full_store_leaves_the_module_as_it_was(directory):
    model, expected = make_model(), make_model()
    with penstock.Store(2 * mib, [penstock.Path(directory, 5 * mib)]) as store:
        with pytest.raises(penstock.NoSpace):
            penstock.torch.park(model, store)
        assert len(store) == 0
    for one, other in zip(model.parameters(), expected.parameters()):
        assert torch.equal(one, other)


def test_a_parameter_with_other_memory_is_not_overwritten(store):
    model = torch.nn.Linear(3, 4)
    weight = model.weight.detach().clone()
    parked = penstock.torch.park(model, store)
    absent, model.weight.data = model.weight.data, torch.zeros(4, 3)
    with pytest.raises(penstock.FailedState, match="weight"):
        parked.unpark()
    model.weight.data = absent
    parked.unpark()
    assert torch.equal(model.weight, weight)


def run_step(model, hooks=None):
    torch.manual_seed(5)
    values = torch.randn(500, 600)
    if hooks is None:
        loss = (model(values) ** 2).mean()
    else:
        with hooks:
            loss = (model(values) ** 2).mean()
    loss.backward()
    return loss


def test_activations_are_in_the_store_until_the_backward(store):
    expected, model = make_model(), make_model()
    run_step(expected)
    hooks = penstock.torch.offload_activations(store, min_bytes=1 << 18)
    for _ in range(3):
        model.zero_grad()
        torch.manual_seed(5)
        with hooks:
            loss = (model(torch.randn(500, 600)) ** 2).mean()
        assert len(store) >= 4
        names = store.names()
        loss.backward()
        del loss
        gc.collect()
        hooks.clear()
        assert len(store) == 0
        assert all(name.startswith("activation ") for name in names)
    for one, other in zip(model.parameters(), expected.parameters()):
        assert torch.equal(one.grad, other.grad)
    assert store.report()["bytes_written"] > 0  # 8 MiB do not hold them


def test_activations_are_loaded_for_a_second_backward(store):
    expected, model = make_model(), make_model()
    run_step(expected)
    run_step(expected)
    torch.manual_seed(5)
    values = torch.randn(500, 600)
    with penstock.torch.offload_activations(store, min_bytes=1 << 18):
        loss = (model(values) ** 2).mean()
    loss.backward(retain_graph=True)
    loss.backward()
    for one, other in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(one.grad, other.grad)


def test_small_activations_and_parameters_stay(store):
    model = make_model()
    with penstock.torch.offload_activations(store):
        loss = (model(torch.randn(3, 600)) ** 2).mean()
    assert len(store) == 0
    loss.backward()


def test_a_graph_that_is_dropped_leaves_nothing(store):
    hooks = penstock.torch.offload_activations(store, min_bytes=1 << 18)
    with hooks:
        output = torch.zeros(mib, requires_grad=True).exp().sum().exp()  # autograd saves both results, a large and a small one
    assert len(store) == 1
    kept = weakref.ref(output)
    del output
    hooks.clear()
    assert kept() is None and len(store) == 0


def test_a_full_drive_ends_the_forward(directory):
    model = make_model()
    with penstock.Store(4 * mib, [penstock.Path(directory, 4 * mib)]) as store:
        with pytest.raises(penstock.NoSpace):
            run_step(model, penstock.torch.offload_activations(store, min_bytes=1 << 18))


def test_a_parameter_that_was_parked_is_in_a_forked_process(store):
    model = torch.nn.Linear(1024, 1024)
    before = model.weight.detach().clone()
    with penstock.torch.park(model, store):
        pass
    child = os.fork()
    if child == 0:
        os._exit(0 if memoryview(model.weight.detach().numpy()) == memoryview(before.numpy()) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_unparking_writes_nothing(directory):
    store = penstock.Store(64 << 20, [penstock.Path(directory, capacity=256 << 20)])
    module = torch.nn.ParameterList([torch.randn(4 << 20) for _ in range(12)])  # 192 MiB
    values = [parameter.clone() for parameter in module]
    for _ in range(2):
        parked = penstock.torch.park(module, store)
        store.flush()
        written = store.report()["bytes_written"]
        parked.unpark()
        assert store.report()["bytes_written"] == written
    assert all(torch.equal(parameter, value) for parameter, value in zip(module, values))
    store.close()


def test_a_module_is_unparked_at_the_end_of_the_interpreter():
    program = """
import atexit, penstock, penstock.torch, torch
store = penstock.Store(64 << 20)
module = torch.nn.Linear(1500, 1500)
before = module.weight.detach().clone()
parked = penstock.torch.park(module, store)
atexit.register(lambda: (parked.unpark(), print(torch.equal(module.weight, before))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_unparking_that_fails_is_repeated(store, monkeypatch):
    module = torch.nn.ParameterList([torch.randn(1000) for _ in range(6)])
    values = [parameter.clone() for parameter in module]
    parked = penstock.torch.park(module, store)
    made = []

    def fail(memory):
        made.append(memory)
        if len(made) in (1, 4):
            raise penstock.NoSpace("full")
        return whole(memory)
    target = sys.modules["penstock.torch.park"]
    whole = target._new_memory
    monkeypatch.setattr(target, "_new_memory", fail)
    for _ in range(2):
        with pytest.raises(penstock.NoSpace):
            parked.unpark()
    parked.unpark()
    assert all(torch.equal(parameter, value) for parameter, value in zip(module, values))


def test_parking_twice_is_refused(store):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    before = copy.deepcopy(model.state_dict())
    with penstock.torch.park(model, store, "a"):
        with pytest.raises(penstock.FailedState, match="parked already"):
            penstock.torch.park(model, store, "b")
        scalar = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(()))])
        with penstock.torch.park(scalar, store, "c"), pytest.raises(penstock.FailedState, match="parked already: 0"):
            penstock.torch.park(scalar, store, "d")
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    with penstock.torch.park(model, store):
        pass
    assert len(store) == 0


def test_modules_that_were_lost_while_they_were_parked_stop_none(store):
    for number in range(30):
        penstock.torch.park(torch.nn.Linear(8, 8), store, f"lost {number}.")
        with penstock.torch.park(torch.nn.Linear(8, 8), store):
            pass


def test_expanded_buffers_are_parked(store):
    module = torch.nn.Linear(8, 8)
    module.register_buffer("mask", torch.ones(1).expand(8, 8))
    with penstock.torch.park(module, store):
        pass
    assert module.mask.sum() == 64


def test_a_sharded_module_is_not_parked(store):
    module = torch.nn.Linear(8, 8)
    model = penstock.torch.shard(module, {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3},
                                          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
    for one in (module, model):
        with pytest.raises(penstock.Unsupported, match="it is sharded"):
            penstock.torch.park(one, store)
    with model.gathered(), pytest.raises(penstock.Unsupported, match="it is sharded"):
        penstock.torch.park(module, store)


@pytest.mark.parametrize("given", ["a", -1, True, 1.5])
def test_bytes_of_activations_are_checked(store, given):
    with pytest.raises(penstock.InvalidArgument, match="min_bytes"):
        penstock.torch.offload_activations(store, given)


def test_a_program_ends_well_whose_backward_has_failed():
    """PyTorch frees what the backward has left after the interpreter."""
    program = """
import penstock.torch, torch
store = penstock.Store(1 << 20)
both = [torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)], torch.nn.LayerNorm(64)) for _ in range(2)]
with penstock.torch.offload_activations(store, min_bytes=1):
    loss = sum(model(torch.randn(8, 64)).sum() for model in both)
store.close()
try:
    loss.backward()
except penstock.FailedState as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "it was closed: the store" in ended.stdout


def test_tensors_whose_values_were_removed_do_not_keep_the_others():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    second = model[1].weight.detach().clone()
    with penstock.Store(1 << 22) as store:
        parked = penstock.torch.park(model, store)
        store.remove("0.weight")
        with pytest.raises(penstock.NotFound, match="(?s)removed from the store.*0.weight.*load them"):
            parked.unpark()
        assert torch.equal(model[1].weight, second) and model[0].weight.isnan().all()
        model.load_state_dict({**model.state_dict(), "0.weight": second})
        parked.unpark()
        assert torch.equal(model[0].weight, second)
        with penstock.torch.park(model, store):
            pass
        assert torch.equal(model[0].weight, second)


def test_what_is_filled_is_named():
    with penstock.Store(1 << 22) as store:
        store.put("a", torch.ones(3))
        with pytest.raises(penstock.InvalidArgument, match="no memory: into"):
            store.get("a", into=[0] * 3)


def test_what_is_filled_counts_as_a_change(store):
    store.put("x", torch.full((4,), 7.0))
    x, w = torch.ones(4), torch.ones(4, requires_grad=True)
    product = (w * x).sum()
    store.get("x", into=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    optimizer = penstock.torch.AdamW([parameter], lr=0.1, weight_decay=0, state_format="fp32")
    store.put("p", torch.full((4,), 7.0, dtype=torch.bfloat16))
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if parameter[0] < 0:
            store.get("p", into=parameter)
    assert (parameter > 6.8).all()


@pytest.mark.parametrize("function", ["give_to_tensors", "remove"])
def test_an_unpark_that_was_interrupted_is_repeated(store, monkeypatch, function):
    model = make_model()
    expected = [one.detach().clone() for one in model.parameters()]
    parked = penstock.torch.park(model, store)
    of = park_module._Memory if function == "give_to_tensors" else penstock.Store
    original, calls = getattr(of, function), []

    def interrupted(*arguments):
        result = original(*arguments)
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result
    monkeypatch.setattr(of, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        parked.unpark()
    parked.unpark()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected)) and len(store) == 0


def test_a_park_that_was_interrupted_has_parked_nothing(store, monkeypatch):
    model = make_model()
    expected = [one.detach().clone() for one in model.parameters()]
    of, calls = park_module._Memory, []
    original = of.take_from_tensors

    def interrupted(memory):
        original(memory)
        calls.append(memory)
        if len(calls) == 3:
            raise KeyboardInterrupt
    monkeypatch.setattr(of, "take_from_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        penstock.torch.park(model, store)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected)) and len(store) == 0
    with penstock.torch.park(model, store):
        assert model[0].weight.isnan().all()


def test_a_type_that_cannot_be_absent_is_refused_before_anything_changes(store):
    model = torch.nn.Linear(4, 4)
    kinds = [getattr(torch, name) for name in ("float4_e2m1fn_x2", "uint4") if hasattr(torch, name)]
    for kind in kinds:
        model.register_buffer("b", torch.zeros(4, dtype=torch.uint8).view(kind))
        try:
            parked = penstock.torch.park(model, store)
        except penstock.Unsupported as error:
            assert "b" in str(error) and not model.weight.isnan().any() and len(store) == 0  # noqa: PT017
        else:
            parked.unpark()


def test_a_module_of_inference_mode_is_parked(store):
    with torch.inference_mode():
        model = torch.nn.Sequential(torch.nn.Linear(600, 900), torch.nn.Linear(900, 600))
        expected = model(torch.ones(1, 600))
    with penstock.torch.park(model, store):
        assert model[0].weight.isnan().all()
    with torch.inference_mode():
        assert torch.equal(model(torch.ones(1, 600)), expected)


def test_a_parked_module_that_is_gone_leaves_no_trace(store):
    for number in range(20):
        model = torch.nn.Linear(8, 8)
        penstock.torch.park(model, store, prefix=f"{number} ")
        del model
        gc.collect()
        fresh = torch.nn.Linear(8, 8)
        with penstock.torch.park(fresh, store, prefix="fresh "):
            pass


def test_what_has_no_shape_yet_is_not_parked(store):
    with pytest.raises(penstock.Unsupported, match="no shape yet: weight"):
        penstock.torch.park(torch.nn.LazyLinear(3), store)


def freed():
    values = torch.ones(3)
    values.untyped_storage().resize_(0)
    return values


def fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize("make", [freed, fake])
def test_a_tensor_without_memory_is_refused(store, make):
    store.put("a", torch.ones(3))
    runtime = penstock.Runtime(1 << 16)
    for call in (lambda: store.put("b", make()), lambda: store.get("a", into=make()),
                 lambda: runtime.add("a", 12, in_memory=True).write(make())):
        with pytest.raises(penstock.InvalidArgument, match="no memory|memory was freed|data pointer"):
            call()
    parameter = torch.nn.Parameter(make())
    with pytest.raises(penstock.InvalidArgument, match="have none"):
        penstock.torch.AdamW([parameter])
    module = torch.nn.Module()
    module.weight = parameter
    with pytest.raises(penstock.Error, match="have none"):
        penstock.torch.shard(module, {"train_micro_batch_size_per_gpu": 1})


def test_a_fake_module_is_not_parked(store):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(fake())
    with pytest.raises(penstock.Unsupported, match="no memory: weight"):
        penstock.torch.park(module, store)


def test_what_is_written_to_a_parked_module_is_told(store):
    module = torch.nn.PReLU()
    parked = penstock.torch.park(module, store)
    with torch.no_grad():
        module.weight.fill_(7)
    with pytest.warns(RuntimeWarning, match="written to weight"):
        parked.unpark()
    assert module.weight.item() == 0.25


def test_a_nested_tensor_is_refused(store):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(penstock.InvalidArgument, match="no dense tensor"):
        store.put("a", nested)


@pytest.mark.parametrize("elements", [4, 2 << 20])
def test_arrays_come_back_to_host_memory_whatever_the_default_device_is(store, elements):
    store.put("a", torch.ones(elements))
    with torch.device("meta"):
        values = store.get("a")
    assert values.device.type == "cpu" and (values == 1).all()


def test_a_module_whose_handle_was_lost_is_unparked(store):
    model = make_model()
    expected = [one.detach().clone() for one in model.parameters()]
    penstock.torch.park(model, store)
    gc.collect()
    with pytest.raises(penstock.FailedState, match=r"(?s)parked already.*penstock.torch.unpark\(module\)"):
        penstock.torch.park(model, store)
    penstock.torch.unpark(model)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected)) and len(store) == 0
    with pytest.raises(penstock.FailedState, match="not parked"):
        penstock.torch.unpark(model)


def test_a_parked_module_has_no_state_dict(store):
    model = make_model()
    expected = {name: one.clone() for name, one in model.state_dict().items()}
    with penstock.torch.park(model, store):
        for one in (model, model[0], torch.nn.Sequential(model)):
            with pytest.raises(penstock.FailedState, match=r"(?s)parked.*unpark\(module\)"):
                one.state_dict()
            with pytest.raises(penstock.FailedState, match=r"(?s)parked.*0\.weight|weight.*load_state_dict\(\) after unpark"):
                one.load_state_dict(expected, strict=False)
    assert all(torch.equal(one, expected[name]) for name, one in model.state_dict().items())
    assert not any(one._state_dict_pre_hooks or one._load_state_dict_pre_hooks for one in model.modules())
    model.load_state_dict(expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps, lambda one: torch.save(one, io.BytesIO())])
def test_a_parked_module_is_not_copied(store, copied):
    model = make_model()
    with penstock.torch.park(model, store):
        for one in (model, torch.nn.Sequential(model), model[0].weight, [model[0].bias]):
            with pytest.raises(penstock.FailedState, match=r"(?s)parked.*a copy after unpark"):
                copied(one)
    copied(model)
    assert torch.equal(copy.deepcopy(model)[0].weight, model[0].weight)
    assert not any(vars(one) for one in model.parameters())


def test_an_interrupt_at_any_time_loses_no_module(directory):
    program = """
import random, signal, sys
import penstock, penstock.torch, torch
signal.signal(signal.SIGALRM, signal.default_int_handler)
draw = random.Random(int(sys.argv[2]))
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)])
expected = [one.detach().clone() for one in model.parameters()]
interrupts = 0
with penstock.Store(1 << 20, [penstock.Path(sys.argv[1], capacity=8 << 20)]) as store:
    while interrupts < 150:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 6e-3))
            parked = penstock.torch.park(model, store)
            parked.unpark()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupts += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            penstock.torch.unpark(model)
        except penstock.FailedState as error:
            assert "not parked" in str(error), error
        assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected)), interrupts
        for name in store.names():  # left by an interrupt while park() undid what it had done
            store.remove(name)
"""
    for seed in "12":
        ended = subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(directory), seed], capture_output=True,
                               text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
