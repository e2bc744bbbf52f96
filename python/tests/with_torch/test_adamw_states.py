"""States of penstock.torch.AdamW that follow, or refuse, what a trainer does to its parameters and dictionaries."""

import os
import warnings

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import adamw, host_update, saved_states  # noqa: E402


def one_parameter(dtype=torch.float32, elements=4, **options):
    parameter = torch.nn.Parameter(torch.zeros(elements, dtype=dtype))
    return parameter, penstock.torch.AdamW([parameter], lr=0.1, weight_decay=0, **options)


def step(parameter, optimizer, gradient=1.0):
    parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


@pytest.mark.parametrize("dtype, state_format", [
    (torch.float32, "fp32"), (torch.float32, "moments"), (torch.bfloat16, "fp32"), (torch.bfloat16, "split"),
    (torch.bfloat16, "moments_bf16"), (torch.float16, "fp32")])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_changed_weight_is_taken_as_it_is(dtype, state_format, steps):
    parameter, optimizer = one_parameter(dtype, state_format=state_format)
    if steps == 0:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {
            "step": torch.tensor(0.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4)}}})
    else:
        step(parameter, optimizer)
    with torch.no_grad():
        parameter.fill_(5)
    step(parameter, optimizer)
    torch.testing.assert_close(parameter.detach().float(), torch.full((4,), 4.9), atol=0.04, rtol=0)


@pytest.mark.parametrize("state_format", ["moments", "fp32"])
def test_weights_may_be_loaded_after_the_states(state_format):
    def make(value):
        parameter, optimizer = one_parameter(state_format=state_format)
        with torch.no_grad():
            parameter.fill_(value)
        return parameter, optimizer
    parameter, optimizer = make(3)
    step(parameter, optimizer)
    saved = optimizer.state_dict()
    assert "master" not in saved["state"][0]
    resumed, other = make(0)
    other.load_state_dict(saved)
    with torch.no_grad():
        resumed.copy_(parameter)
    for one, of in ((parameter, optimizer), (resumed, other)):
        step(one, of, 2.0)
    assert torch.equal(parameter, resumed)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, torch.float16])
def test_steps_are_counted_whatever_the_default_type_is(default):
    torch.set_default_dtype(default)
    try:
        parameter, optimizer = one_parameter(torch.float32)
        for _ in range(5):
            step(parameter, optimizer)
        saved = optimizer.state_dict()
        assert saved["state"][0]["step"] == 5
        saved["state"][0]["step"] = torch.tensor(1001.0, dtype=torch.float32)
        optimizer.load_state_dict(saved)
        assert optimizer.state_dict()["state"][0]["step"] == 1001
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_in_host_memory_whatever_the_default_device_is(dtype, directory):
    parameter, optimizer = one_parameter(dtype, path=directory, budget=64 << 20)
    gradients = [torch.full((4,), value, dtype=dtype) for value in (1.0, 2.0)]
    with torch.device("meta"):
        for gradient in gradients:
            parameter.grad = gradient
            optimizer.step()
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
    assert saved["state"][0]["step"] == 2 and saved["state"][0]["exp_avg"].device.type == "cpu"
    assert torch.isfinite(parameter).all() and (parameter < -0.15).all()


def test_masters_that_others_have_carried_along_are_not_those_of_the_weights():
    parameter, optimizer = one_parameter(torch.bfloat16)
    step(parameter, optimizer)
    saved = optimizer.state_dict()
    assert saved["state"][0]["master_step"] == 1
    wide = torch.nn.Parameter(parameter.detach().float())
    theirs = torch.optim.AdamW([wide], lr=0.1, weight_decay=0)
    theirs.load_state_dict(saved)
    for _ in range(10):
        step(wide, theirs)
    again, ours = one_parameter(torch.bfloat16)
    with torch.no_grad():
        again.copy_(wide)
    carried = theirs.state_dict()
    assert carried["state"][0]["master"].dtype == torch.float32
    ours.load_state_dict(carried)
    assert torch.equal(again, wide.detach().to(torch.bfloat16))


def test_a_load_that_was_interrupted_is_repeated(monkeypatch):
    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(3)]
    optimizer = penstock.torch.AdamW(parameters, lr=0.1)
    for one in parameters:
        one.grad = torch.ones(4)
    optimizer.step()
    saved = optimizer.state_dict()
    optimizer.step()
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return saved_states.restore(*arguments)
    monkeypatch.setattr(adamw, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.load_state_dict(saved)
    for call in (optimizer.state_dict, optimizer.step):
        with pytest.raises(penstock.FailedState, match="(?s)failed half-way.*call it again"):
            call()
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert [state["step"].item() for state in optimizer.state_dict()["state"].values()] == [2, 2, 2]


def test_a_load_for_which_there_is_no_memory_changes_nothing(directory):
    big = torch.nn.Parameter(torch.zeros(1 << 21))
    optimizer = penstock.torch.AdamW([big], lr=0.1, path=directory, budget=1 << 20)
    saved = torch.optim.AdamW([big], lr=0.5).state_dict()
    saved["state"] = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(1 << 21), "exp_avg_sq": torch.zeros(1 << 21)}}
    with pytest.raises(penstock.BudgetTooSmall):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_closed_optimizer_loads_nothing(steps):
    parameter, optimizer = one_parameter()
    for _ in range(steps):
        step(parameter, optimizer)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    optimizer.close()
    for call in (lambda: optimizer.load_state_dict(saved), optimizer.state_dict):
        with pytest.raises(penstock.FailedState, match="closed"):
            call()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_forked_process_refuses_it():
    parameter, optimizer = one_parameter()
    step(parameter, optimizer)
    saved = optimizer.state_dict()
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: optimizer.load_state_dict(saved), lambda: optimizer.load_state_dict({**saved, "state": {}}),
                     optimizer.step, optimizer.state_dict):
            try:
                call()
            except penstock.FailedState as error:
                refused += "forked" in str(error)
        os._exit(0 if refused == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_with_the_negative_bit_has_its_values(dtype):
    parameter, optimizer = one_parameter(dtype)
    parameter.grad = torch._neg_view(torch.ones(4, dtype=dtype))
    optimizer.step()
    assert (parameter > 0).all()
    with pytest.raises(penstock.InvalidArgument, match="negative bit"):
        penstock.torch.AdamW([torch.nn.Parameter(torch._neg_view(torch.ones(4)))])


def test_a_second_backward_leaves_no_gradient_for_the_step():
    parameter, optimizer = one_parameter(update_in_backward=True)
    parameter.sum().backward()
    with pytest.raises(penstock.FailedState, match="come twice"):
        parameter.sum().backward()
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((4,), -0.1))
    second = penstock.torch.AdamW([parameter], update_in_backward=True)
    with pytest.raises(penstock.FailedState, match="another optimizer has taken its gradient"):
        parameter.sum().backward()
    del second


def test_a_warning_that_is_an_error_comes_after_the_step():
    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    optimizer = penstock.torch.AdamW(parameters, lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parameters[0].grad, parameters[1].grad = torch.full((4,), torch.inf), torch.ones(4)
        with pytest.raises(RuntimeWarning, match="not finite"):
            optimizer.step()
    before = parameters[1].detach().clone()
    parameters[0].grad = None
    optimizer.step()
    assert (parameters[1] < before).all()


def test_a_state_that_was_cleared_begins_again_as_in_torch():
    results = []
    for kind in (penstock.torch.AdamW, torch.optim.AdamW):
        parameter = torch.nn.Parameter(torch.zeros(4))
        optimizer = kind([parameter], lr=0.1)
        for gradient in (1.0, 2.0):
            step(parameter, optimizer, gradient)
        optimizer.state.clear()
        assert optimizer.state_dict()["state"] == {}
        step(parameter, optimizer, -1.0)
        assert optimizer.state_dict()["state"][0]["step"] == 1
        results.append(parameter.detach())
    torch.testing.assert_close(*results)


def test_what_the_trainer_has_in_the_states_is_kept():
    parameter, optimizer = one_parameter()
    optimizer.state[parameter]["rank"] = 3
    assert optimizer.state_dict()["state"][0] == {"rank": 3}
    step(parameter, optimizer)
    saved = optimizer.state_dict()
    assert saved["state"][0]["rank"] == 3
    _, other = one_parameter()
    other.load_state_dict(saved)
    assert other.state_dict()["state"][0]["rank"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_that_was_parked_between_steps_gives_the_same_bits(directory, dtype):
    def train(parks):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64, dtype=dtype)
        model.scale = torch.nn.Parameter(torch.ones(1, dtype=dtype))
        optimizer = penstock.torch.AdamW(model.parameters(), lr=1e-4, state_format="fp32")
        with penstock.Store(1 << 20, [penstock.Path(directory, 1 << 24)]) as store:
            for number in range(20):
                model(torch.ones(2, 64, dtype=dtype)).mul(model.scale).sum().backward()
                if parks and number % 3 == 1:
                    parked = penstock.torch.park(model, store)
                    with pytest.raises(penstock.FailedState, match="(?s)parked.*unpark"):
                        optimizer.step()
                    parked.unpark()
                    with penstock.torch.park(model, store):
                        pass
                optimizer.step()
                optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]
    for one, other in zip(train(False), train(True)):
        assert torch.equal(one, other)


def test_a_change_after_parking_is_still_seen():
    model = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    optimizer = penstock.torch.AdamW(model.parameters(), lr=0.1, weight_decay=0, state_format="fp32")
    step(model.weight, optimizer)
    with penstock.Store(1 << 20) as store:
        with penstock.torch.park(model, store):
            pass
    with torch.no_grad():
        model.weight.fill_(5)
    step(model.weight, optimizer)
    torch.testing.assert_close(model.weight.detach().float(), torch.full((4, 4), 4.9), atol=0.02, rtol=0)


@pytest.mark.parametrize("state, text", [
    ({"step": 10**400}, "number of steps"), ({"step": 1e30}, r"(?s)number of steps.*2\^53"), ({"master_step": "x"}, "master_step"), ({"step": torch.empty((), device="meta")}, "number of steps"),
    ({"exp_avg_sq": torch.full((4,), -1.0).to(torch.float8_e4m3fn)}, "cannot have")])
def test_states_with_absurd_values_are_refused(state, text):
    _, optimizer = one_parameter()
    given = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4), **state}
    with pytest.raises(penstock.InvalidArgument, match=text):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: given}})


@pytest.mark.parametrize("change", [{"param_groups": None}, {"param_groups": [1]}, {"state": []}, {"state": {0: 5}}])
def test_dictionaries_of_another_form_are_refused(change):
    _, optimizer = one_parameter()
    with pytest.raises(penstock.InvalidArgument, match="the state dictionary"):
        optimizer.load_state_dict({**optimizer.state_dict(), **change})


@pytest.mark.parametrize("lr", [torch.tensor(1j), torch.empty((), device="meta")])
def test_a_learning_rate_without_a_value_is_refused(lr):
    with pytest.raises(penstock.InvalidArgument, match="lr"):
        penstock.torch.AdamW([torch.nn.Parameter(torch.zeros(4))], lr=lr)


@pytest.mark.parametrize("dtype, master, step, text", [
    (torch.float32, torch.ones(4), 1, "float32 is its own"), (torch.bfloat16, torch.ones(4), 0, "of step 0"),
    (torch.bfloat16, torch.ones(4, dtype=torch.bfloat16), 1, "of torch.bfloat16"), (torch.bfloat16, torch.ones(4), 1, None)])
def test_a_master_that_is_not_taken_is_told(dtype, master, step, text):
    _, optimizer = one_parameter(dtype)
    given = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(4), "exp_avg_sq": torch.zeros(4), "master": master,
             "master_step": torch.tensor(float(step))}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: given}})
    assert [str(one.message) for one in caught if text is None or text not in str(one.message)] == []
    assert len(caught) == (text is not None)
    assert all(one.filename == __file__ for one in caught)


@pytest.mark.parametrize("group", [3, [], {"lr": 1.0}])
def test_a_group_that_is_none_is_refused(group):
    _, optimizer = one_parameter()
    with pytest.raises(penstock.InvalidArgument, match=r"(?s)no group: param_group.*dictionary with params"):
        optimizer.add_param_group(group)


def saved_of_steps(make, steps=2):
    """What torch.optim.AdamW saves of a model's parameters."""
    parameters = list(make().parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("is_loaded_twice", [False, True])
def test_states_of_parameters_that_are_frozen_now_are_loaded(is_loaded_twice):
    def make():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 3)
    saved = saved_of_steps(make)
    model = make()
    model.weight.requires_grad_(False)
    optimizer = penstock.torch.AdamW(model.parameters())
    for _ in range(2 if is_loaded_twice else 1):
        optimizer.load_state_dict(saved)
    loaded = optimizer.state_dict()["state"]
    for number, values in saved["state"].items():
        for name, value in values.items():
            torch.testing.assert_close(loaded[number][name], value)
    model.weight.requires_grad_()
    step(model.weight, optimizer)
    assert optimizer.state[model.weight]["step"] == 3


def test_states_of_a_parameter_without_a_shape_are_refused_before_anything_changes():
    saved = saved_of_steps(lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)))
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(2))
    optimizer = penstock.torch.AdamW(model.parameters(), lr=0.2)
    with pytest.raises(penstock.InvalidArgument, match="(?s)no shape yet: parameter number 2 of group 0.*load_state_dict"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.2 and not optimizer.state_dict()["state"]
    model(torch.ones(1, 3))
    optimizer.load_state_dict(saved)
    assert len(optimizer.state_dict()["state"]) == 4


@pytest.mark.parametrize("update_in_backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_backward_after_the_update_of_what_it_needs_is_refused(dtype, update_in_backward):
    weights = [torch.nn.Parameter(torch.ones(4, 4, dtype=dtype)) for _ in range(2)]
    optimizer = penstock.torch.AdamW(weights, update_in_backward=update_in_backward)
    loss = (torch.ones(1, 4, dtype=dtype) @ weights[0] @ weights[1]).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_backward_after_masters_were_loaded_is_refused():
    weight, optimizer = one_parameter(torch.bfloat16)
    step(weight, optimizer)
    saved = optimizer.state_dict()
    loss = (weight * weight).sum()
    optimizer.load_state_dict(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("completed", [0, 1, 3])
@pytest.mark.parametrize("state_format", ["split", "fp32"])
def test_a_step_that_fails_counts_changes_of_what_it_has_written(monkeypatch, completed, state_format):
    """Of two parameters with two tiles each, so many of which make the step before it fails."""
    def make():
        torch.manual_seed(0)
        model = torch.nn.ParameterList([torch.randn(2 * 16384, dtype=torch.bfloat16) for _ in range(2)])
        return model, penstock.torch.AdamW(model, lr=1e-3, tile_elements=16384, state_format=state_format)

    def set_gradients(model):
        for parameter in model:
            parameter.grad = torch.linspace(-1, 1, parameter.numel(), dtype=torch.bfloat16)
    whole = host_update._step_tiles

    def fail(steps, workers, found):
        left = completed
        for tiles, *rest in steps:
            whole([(tiles[:left], *rest)], workers, found)
            left -= min(left, len(tiles))
        raise penstock.NoSpace("full")
    straight, other = make()
    model, optimizer = make()
    for one, by in ((straight, other), (model, optimizer)):
        for _ in range(2):
            set_gradients(one)
            by.step()
    set_gradients(straight)
    other.step()
    set_gradients(model)
    versions = [parameter._version for parameter in model]
    with monkeypatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", fail)
        with pytest.raises(penstock.NoSpace):
            optimizer.step()
    changed = [parameter._version != version for parameter, version in zip(model, versions)]
    assert changed == [completed > 0, completed > 2]
    optimizer.step()
    for one, by in ((straight, other), (model, optimizer)):
        set_gradients(one)
        by.step()
    assert all(torch.equal(one, expected) for one, expected in zip(model, straight))
    masters = [by.state_dict()["state"][0]["master"] for by in (optimizer, other)]
    assert torch.equal(*masters)


@pytest.mark.parametrize("others", [1, 2])
def test_a_parameter_that_is_unfrozen_later_is_updated_in_backward(others):
    def train(**options):
        weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(1 + others)]
        weights[0].requires_grad_(False)
        groups = [{"params": weights[:2]}] + [{"params": [one]} for one in weights[2:]]
        optimizer = penstock.torch.AdamW(groups, lr=0.1, **options)
        for number in range(4):
            if number == 1:
                weights[0].requires_grad_()
            sum(((number + 1) * one).square().sum() for one in weights).backward()
            optimizer.step()
            if options:
                assert all(one.grad is None for one in weights)
            else:
                optimizer.zero_grad()
        return weights
    assert all(torch.equal(*pair) for pair in zip(train(update_in_backward=True), train()))


def test_a_parameter_that_is_listed_twice_is_updated_once_in_backward():
    weight = torch.nn.Parameter(torch.zeros(4))
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = penstock.torch.AdamW([weight, weight], lr=0.1, weight_decay=0, update_in_backward=True)
    weight.sum().backward()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((4,), -0.1))


def test_a_count_that_the_trainer_has_written_is_not_saved():
    parameter, optimizer = one_parameter(torch.bfloat16)
    step(parameter, optimizer)
    optimizer.state[parameter]["step"].fill_(7)
    saved = optimizer.state_dict()["state"][0]
    assert saved["step"] == saved["master_step"] == 1


def test_parameters_may_get_their_shape_later():
    trained = []
    for kind in (penstock.torch.AdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LazyLinear(2))
        optimizer = kind(model.parameters(), lr=0.1)
        model[0](torch.ones(1, 3)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        trained.append([parameter.detach() for parameter in model.parameters()])
    for one, other in zip(*trained):
        torch.testing.assert_close(one, other)
