"""penstock.torch.AdamW beside torch.optim.AdamW."""

import copy
import gc
import io
import pickle
import resource
import shutil
import signal
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import host_update, placement  # noqa: E402

elements = 5 * 16384 + 5  # of the large parameter: six tiles
tile_elements = 16384


def make_model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.ParameterList([torch.randn(elements, dtype=dtype), torch.randn(7, 3, dtype=dtype),
                                   torch.randn(5, dtype=dtype), torch.zeros(0, dtype=dtype)])


def set_gradients(model, step, dtype=None):
    generator = torch.Generator().manual_seed(step)
    for parameter in model:
        values = torch.randn(parameter.shape, generator=generator)
        parameter.grad = values.to(dtype or parameter.dtype)


def train(model, optimizer, steps):
    for step in steps:
        set_gradients(model, step)
        optimizer.step()


@pytest.fixture(params=["memory", "disk"])
def place(request, directory, monkeypatch):
    """Where the states are. On disk, the large parameter's have a budget that does not hold them."""
    if request.param == "memory":
        return {"tile_elements": tile_elements}
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    return {"tile_elements": tile_elements, "path": directory, "budget": 450_000}


def assert_close(model, expected):
    for one, other in zip(model, expected):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def assert_equal(model, expected):
    for one, other in zip(model, expected):
        assert torch.equal(one, other)


def test_it_is_torchs_adamw(place):
    model, expected = make_model(), make_model()

    def groups(of):
        return [{"params": [of[0]], "lr": 1e-2, "weight_decay": 0.1}, {"params": list(of)[1:], "betas": (0.8, 0.95)}]
    optimizer = penstock.torch.AdamW(groups(model), lr=1e-3, eps=1e-7, **place)
    other = torch.optim.AdamW(groups(expected), lr=1e-3, eps=1e-7)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(one, 10) for one in (optimizer, other)]
    for step in range(6):
        train(model, optimizer, [step])
        train(expected, other, [step])
        for scheduler in schedulers:
            scheduler.step()
    assert_close(model, expected)
    assert optimizer.state[model[0]]["step"] == 6
    assert (optimizer.report()["bytes_read"] > 0) == ("path" in place)


def test_maximize_and_closure():
    model, expected = make_model(), make_model()
    optimizer, other = penstock.torch.AdamW(model, maximize=True), torch.optim.AdamW(expected, maximize=True)

    def closure(of):
        of[1].grad = None
        loss = (of[1] ** 2).sum()
        loss.backward()
        return loss
    for _ in range(3):
        losses = [optimizer.step(lambda: closure(model)), other.step(lambda: closure(expected))]
        assert losses[0].item() == pytest.approx(losses[1].item())
    assert_close(model, expected)
    assert len(optimizer.state) == 1  # the others had no gradient


@pytest.mark.parametrize("format", ["split", "split_bf16", "split_q8", "moments_bf16", "fp32"])
def test_formats_of_bfloat16(format, place):
    model, expected = make_model(torch.bfloat16), make_model(torch.bfloat16).float()
    optimizer = penstock.torch.AdamW(model, lr=1e-2, state_format=format, **place)
    other = torch.optim.AdamW(expected, lr=1e-2)
    for step in range(5):
        set_gradients(model, step)
        for one, parameter in zip(expected, model):
            one.grad = parameter.grad.float()
        optimizer.step()
        other.step()
    for one, parameter in zip(expected, model):
        torch.testing.assert_close(parameter.float(), one, atol=0.05, rtol=0.02)
        if format in ("split", "fp32"):  # the parameters are the masters, rounded
            torch.testing.assert_close(parameter, one.bfloat16(), atol=1e-6, rtol=0.008)


def test_bits_are_equal_in_memory_and_on_disk(directory, monkeypatch):
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    results = []
    for place in ({}, {"path": directory, "budget": 200_000},
                  {"path": [directory, penstock.Path(directory, 4 << 20)], "budget": 200_000, "threads": 2},
                  {"path": [directory, penstock.Path(directory, 100_000)], "budget": 200_000}):
        model = make_model(torch.bfloat16)
        train(model, penstock.torch.AdamW(model, lr=1e-2, state_format="split_q8", tile_elements=tile_elements, **place),
              range(4))
        results.append(model)
    for result in results[1:]:
        assert_equal(result, results[0])


@pytest.mark.parametrize("dtype, format", [(torch.bfloat16, "split"), (torch.bfloat16, "split_bf16"),
                                           (torch.bfloat16, "split_q8"), (torch.bfloat16, "moments_bf16"),
                                           (torch.bfloat16, "fp32"), (torch.float16, "fp32"), (torch.float32, "moments")])
@pytest.mark.parametrize("on_host", [True, False])
def test_weights_that_are_changed_between_steps_stay_changed(dtype, format, on_host, monkeypatch):
    for target in (penstock.torch.adamw, penstock.torch.offloaded_states, penstock.torch.saved_states):
        monkeypatch.setattr(target, "is_on_host", lambda _: on_host)
    torch.manual_seed(0)
    model = torch.nn.ParameterList([torch.randn(1000).to(dtype)])
    optimizer = penstock.torch.AdamW(model, lr=1e-3, state_format=format)
    train(model, optimizer, range(3))
    for value in (0.0, -0.0, 7.0, -1e-30):
        with torch.no_grad():
            model[0].fill_(value)
        train(model, optimizer, [4])
        torch.testing.assert_close(model[0].float(), torch.full((1000,), value), atol=0.05, rtol=0)
    model[0].data = torch.full((1000,), 3.0).to(dtype)
    train(model, optimizer, [5])
    torch.testing.assert_close(model[0].float(), torch.full((1000,), 3.0), atol=0.05, rtol=0)


@pytest.mark.parametrize("format", ["split", "split_bf16", "split_q8"])
def test_weights_that_are_zeroed_unseen_are_near_zero(format):
    """What is written through p.data does not count as a change: what is left of a master goes with the new weight."""
    model = make_model(torch.bfloat16)
    optimizer = penstock.torch.AdamW(model, lr=1e-3, weight_decay=0, state_format=format)
    train(model, optimizer, range(2))
    model[0].data[::2] = 0
    model[0].data[1::4] = -0.0
    set_gradients(model, 2)
    optimizer.step()
    assert model[0][::2].abs().max() < 0.01 and model[0][1::4].abs().max() < 0.01


def test_states_that_fit_the_budget_are_not_on_disk(directory):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, path=directory, budget=2 << 20)
    train(model, optimizer, range(2))
    assert optimizer.report()["bytes_written"] == 0
    assert list(directory.iterdir()) == []


def test_a_changed_dtype_is_refused_until_states_are_loaded():
    model = make_model()
    optimizer = penstock.torch.AdamW(model, lr=1e-2)
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()
    model.bfloat16()
    with pytest.raises(penstock.InvalidArgument, match="not the one that its states were made for"):
        optimizer.state_dict()
    optimizer.load_state_dict(saved)
    train(model, optimizer, range(2, 4))
    straight = make_model()
    train(straight, penstock.torch.AdamW(straight, lr=1e-2), range(4))
    for one, other in zip(model, straight):
        torch.testing.assert_close(one.float(), other, atol=0.02, rtol=0.02)


def fail_after(tiles):
    """Instead of host_update._step_tiles: it fails after so many tiles."""
    whole = host_update._step_tiles

    def step(steps, workers, found):
        left = tiles
        for those, *rest in steps:
            whole([(those[:left], *rest)], workers, found)
            left -= min(left, len(those))
        raise penstock.NoSpace("full")
    return step


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_a_half_step_is_not_saved(place, tiles, monkeypatch):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, **place)
    train(model, optimizer, range(2))
    good = optimizer.state_dict()
    set_gradients(model, 2)
    with monkeypatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", fail_after(tiles))
        with pytest.raises(penstock.NoSpace):
            optimizer.step()
    with pytest.raises(penstock.FailedState, match="half-way"):
        optimizer.state_dict()
    optimizer.load_state_dict(good)
    assert optimizer.state_dict()["state"][0]["step"] == 2


def test_a_state_dict_of_half_a_step_is_refused_to_a_signal_handler():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    train(model, optimizer, [0])
    refusals = []

    def save():
        with pytest.raises(penstock.FailedState, match="a step is being made") as raised:
            optimizer.state_dict()
        refusals.append(raised.value)
        with pytest.raises(penstock.FailedState, match="a step is being made"):
            optimizer.load_state_dict({"state": {}, "param_groups": []})
    whole = host_update._step_tiles
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", lambda *arguments: (save(), whole(*arguments), save()))
        optimizer.step()
    assert len(refusals) >= 2
    assert {int(values["step"]) for values in optimizer.state_dict()["state"].values()} == {2}


def test_a_parameter_that_gets_other_memory_before_its_update_has_it_there():
    straight, model = make_model(), make_model()
    train(straight, penstock.torch.AdamW(straight), range(3))
    optimizer = penstock.torch.AdamW(model, tile_elements=tile_elements)
    train(model, optimizer, [0])
    whole = host_update._step_tiles

    def step(*arguments):
        for parameter in model:
            parameter.data = parameter.data.clone()
        whole(*arguments)
    set_gradients(model, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", step)
        optimizer.step()
    train(model, optimizer, [2])
    assert_equal(model, straight)


def test_a_parameter_of_another_device_that_gets_other_memory_during_its_update_is_refused(monkeypatch):
    monkeypatch.setattr(penstock.torch.adamw, "is_on_host", lambda _: False)
    model = make_model()
    optimizer = penstock.torch.AdamW(model, tile_elements=tile_elements)
    set_gradients(model, 0)
    whole = host_update._step_tiles

    def step(*arguments):
        whole(*arguments)
        model[0].data = model[0].data.clone()
    monkeypatch.setattr(host_update, "_step_tiles", step)
    with pytest.raises(penstock.FailedState, match="other memory during its update.*number 0 of group 0"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_interrupted_update_of_another_device_is_completed(monkeypatch, dtype):
    class Interrupt(Exception):
        pass
    monkeypatch.setattr(penstock.torch.adamw, "is_on_host", lambda _: False)
    straight, model = make_model(dtype), make_model(dtype)
    train(straight, penstock.torch.AdamW(straight, tile_elements=tile_elements), range(2))
    optimizer = penstock.torch.AdamW(model, tile_elements=tile_elements)
    train(model, optimizer, [0])
    set_gradients(model, 1)
    whole, calls = host_update._step_tiles, []

    def step(*arguments):
        whole(*arguments)
        calls.append(arguments)
        if len(calls) in (1, 4):
            raise Interrupt  # of a signal handler
    monkeypatch.setattr(host_update, "_step_tiles", step)
    for _ in range(2):
        with pytest.raises(Interrupt):
            optimizer.step()
    optimizer.step()
    assert_equal(model, straight)


def test_a_tile_of_another_device_that_fails_leaves_the_parameter_as_it_was(monkeypatch):
    monkeypatch.setattr(penstock.torch.adamw, "is_on_host", lambda _: False)
    models = [make_model(torch.bfloat16) for _ in range(2)]
    optimizers = [penstock.torch.AdamW(model, tile_elements=tile_elements) for model in models]
    for model, optimizer in zip(models, optimizers):
        train(model, optimizer, [0])
        set_gradients(model, 1)
    versions = [parameter._version for parameter in models[1]]
    with monkeypatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", fail_after(0))
        with pytest.raises(penstock.NoSpace):
            optimizers[1].step()
    assert [parameter._version for parameter in models[1]] == versions
    for optimizer in optimizers:
        optimizer.step()
    masters = [[values["master"] for values in optimizer.state_dict()["state"].values()] for optimizer in optimizers]
    assert_equal(*masters)


def test_warnings_come_although_the_step_fails(monkeypatch):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, tile_elements=tile_elements)
    set_gradients(model, 0)
    model[0].grad[3 * tile_elements + 7] = torch.nan
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(host_update, "_step_tiles", fail_after(5))
        with pytest.raises(penstock.NoSpace):
            optimizer.step()
    with pytest.warns(RuntimeWarning, match=f"number 0 of group 0.*near element {3 * tile_elements}"):
        optimizer.step()


def test_a_failure_before_any_tile_is_no_half_step(monkeypatch):
    model = make_model()  # one of which has no elements
    optimizer = penstock.torch.AdamW(model, tile_elements=tile_elements)
    train(model, optimizer, range(2))
    set_gradients(model, 2)
    with monkeypatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", fail_after(0))
        with pytest.raises(penstock.NoSpace):
            optimizer.step()
    assert {int(values["step"]) for values in optimizer.state_dict()["state"].values()} == {2}


def test_one_copy_of_a_gradient_is_made_at_a_time(monkeypatch):
    model = torch.nn.ParameterList([torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last) for _ in range(5)])
    for parameter in model:
        parameter.grad = torch.ones(4, 3, 8, 8)
    copies, most = weakref.WeakSet(), []
    whole = penstock.torch.offloaded_states.in_order_of

    def copy_of(parameter, gradient):
        copied = whole(parameter, gradient)
        copies.add(copied)
        most.append(len(copies))
        return copied
    monkeypatch.setattr(penstock.torch.offloaded_states, "in_order_of", copy_of)
    penstock.torch.AdamW(model).step()
    assert len(most) == 5 and max(most) <= 2  # the next one is made before the last is let go


def test_a_gradient_that_is_refused_changes_nothing(place):
    model = make_model()
    optimizer = penstock.torch.AdamW(model, **place)
    train(model, optimizer, range(2))
    before, saved = copy.deepcopy(model), optimizer.state_dict()
    model[0].grad = torch.ones_like(model[0])
    model[1].grad = torch.sparse_coo_tensor([[0], [1]], [1.0], (7, 3), check_invariants=False)
    with pytest.raises(penstock.InvalidArgument, match="sparse"):
        optimizer.step()
    assert_equal(model, before)
    after = optimizer.state_dict()
    for key, values in saved["state"].items():
        assert_equal(after["state"][key].values(), values.values())


def test_updates_in_backward_have_the_rates_that_were_loaded():
    model = make_model()
    optimizer = penstock.torch.AdamW(model, lr=0.1, weight_decay=0, update_in_backward=True)
    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.0
    optimizer.load_state_dict(saved)
    before = copy.deepcopy(model)
    sum((parameter ** 2).sum() for parameter in model).backward()
    assert_equal(model, before)
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1  # as a scheduler does
    sum((parameter ** 2).sum() for parameter in model).backward()
    assert not torch.equal(model[1], before[1])


def test_updates_in_backward_take_one_backward_a_step():
    model = make_model()
    optimizer = penstock.torch.AdamW(model, update_in_backward=True)
    sum((parameter ** 2).sum() for parameter in model).backward()
    with pytest.raises(penstock.FailedState, match="twice before step"):
        sum((parameter ** 2).sum() for parameter in model).backward()
    optimizer.step()
    sum((parameter ** 2).sum() for parameter in model).backward()
    optimizer.close()
    before = copy.deepcopy(model)
    sum((parameter ** 2).sum() for parameter in model).backward()
    assert_equal(model, before)


def test_updates_in_backward_are_refused_where_ranks_average_gradients(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    model = make_model()
    penstock.torch.AdamW(model, update_in_backward=True)
    optimizer = penstock.torch.AdamW(model, update_in_backward=True)  # the hooks of the first are gone
    before = copy.deepcopy(model)
    with pytest.raises(penstock.Unsupported, match="FSDP2"):
        sum((parameter ** 2).sum() for parameter in model).backward()
    assert_equal(model, before)
    assert optimizer.state_dict()["state"] == {}


def test_frozen_parameters_may_be_of_any_type():
    frozen = torch.nn.Parameter(torch.ones(5, dtype=torch.int8), requires_grad=False)
    model = torch.nn.Parameter(torch.ones(5))
    optimizer = penstock.torch.AdamW([frozen, model, torch.nn.Parameter(torch.ones(3, 4).t(), requires_grad=False)])
    model.grad = torch.ones(5)
    optimizer.step()
    assert len(optimizer.state) == 1


def test_bits_are_those_of_the_tile():
    model = make_model(torch.bfloat16)
    parameter = model[0].detach().clone()
    state = torch.zeros(penstock.state_bytes("split_q8", elements), dtype=torch.uint8)
    tile = penstock.Tile(state, parameter, format="split_q8")
    tile.initialize(model[0].detach())
    optimizer = penstock.torch.AdamW([model[0]], lr=1e-2, weight_decay=0.01, state_format="split_q8")
    for step in range(3):
        set_gradients(model, step)
        tile.step(model[0].grad, step + 1, learning_rate=1e-2, weight_decay=0.01)
        optimizer.step()
    assert torch.equal(model[0], parameter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_go_on_where_they_were_saved(dtype, place, directory):
    straight = make_model(dtype)
    train(straight, penstock.torch.AdamW(straight, lr=1e-2, **place), range(6))

    model = make_model(dtype)
    optimizer = penstock.torch.AdamW(model, lr=1e-2, **place)
    train(model, optimizer, range(3))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, directory / "saved.pt")
    optimizer.close()
    resumed = make_model(dtype, seed=9)
    optimizer = penstock.torch.AdamW(resumed, lr=1, **place)
    train(resumed, optimizer, range(1))  # what is loaded takes the place of what was there
    saved = torch.load(directory / "saved.pt", mmap=True)
    resumed.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(resumed, optimizer, range(3, 6))
    assert_equal(resumed, straight)


def test_torchs_adamw_loads_what_it_saves_and_back(place):
    expected, model = make_model(), make_model()
    other = torch.optim.AdamW(expected, lr=1e-2)
    train(expected, other, range(3))
    with torch.no_grad():
        for one, parameter in zip(model, expected):
            one.copy_(parameter)
    optimizer = penstock.torch.AdamW(model, lr=1, **place)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-2
    train(model, optimizer, range(3, 5))
    train(expected, other, range(3, 5))
    assert_close(model, expected)

    back = torch.optim.AdamW(model, lr=1)
    back.load_state_dict(optimizer.state_dict())
    torch.testing.assert_close(back.state[model[0]]["exp_avg"], other.state[expected[0]]["exp_avg"])
    train(model, back, range(5, 7))
    train(expected, other, range(5, 7))
    assert_close(model, expected)


def test_an_empty_state_dictionary_is_one():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    assert optimizer.state_dict()["state"] == {}
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, range(1))
    before = copy.deepcopy(model)
    optimizer.load_state_dict(torch.optim.AdamW(model).state_dict())  # makes it new
    other = torch.optim.AdamW(before)
    train(model, optimizer, [1])
    train(before, other, [1])
    assert_close(model, before)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipped_gradients_are_those_of_torch(max_norm, place):
    model, expected = make_model(), make_model()
    optimizer = penstock.torch.AdamW(model, lr=1e-2, max_grad_norm=max_norm, **place)
    other = torch.optim.AdamW(expected, lr=1e-2)
    assert optimizer.grad_norm is None
    for step in range(4):
        set_gradients(model, step)
        set_gradients(expected, step)
        before = [parameter.grad.clone() for parameter in model]
        norm = torch.nn.utils.clip_grad_norm_(expected, max_norm)
        other.step()
        optimizer.step()
        assert optimizer.grad_norm == pytest.approx(float(norm), rel=1e-5)
        assert all(torch.equal(parameter.grad, one) for parameter, one in zip(model, before))
    assert_close(model, expected)


def test_a_norm_that_is_not_finite_clips_nothing():
    model, expected = make_model(), make_model()
    optimizer, other = (penstock.torch.AdamW(one, max_grad_norm=norm) for one, norm in ((model, 1), (expected, None)))
    for one in (model, expected):
        set_gradients(one, 0)
        one[1].grad[0] = float("inf")
    with pytest.warns(RuntimeWarning, match="not finite"):
        optimizer.step()
        other.step()
    assert optimizer.grad_norm == float("inf")
    assert_equal([model[0], model[2]], [expected[0], expected[2]])


def test_the_norm_is_of_gradients_of_every_type_and_stride():
    model = torch.nn.ParameterList([torch.ones(3, 4), torch.ones(8, dtype=torch.bfloat16), torch.ones(5)])
    optimizer = penstock.torch.AdamW(model, max_grad_norm=1)
    model[0].grad = torch.arange(12.0).reshape(4, 3).t()
    model[1].grad = torch.full((8,), 3.0, dtype=torch.bfloat16)
    optimizer.step()  # the last has none
    assert optimizer.grad_norm == pytest.approx((sum(i * i for i in range(12)) + 72) ** 0.5)


def test_hooks_of_state_dictionaries_see_all():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    train(model, optimizer, range(2))
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, saved: seen.append(set(saved["state"][0])))
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: seen.append(set(saved["state"][0])))
    optimizer.register_load_state_dict_post_hook(lambda one: seen.append(float(one.state[model[0]]["step"])))
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [{"step", "exp_avg", "exp_avg_sq"}] * 2 + [2.0]


def test_updates_in_backward_are_those_of_step(place):
    def losses(of):
        return sum(((parameter * (index + 1)) ** 2).sum() for index, parameter in enumerate(of))
    model, expected = make_model(), make_model()
    optimizer = penstock.torch.AdamW(model, update_in_backward=True, **place)
    other = penstock.torch.AdamW(expected, **place)
    for _ in range(3):
        losses(model).backward()
        assert all(parameter.grad is None for parameter in model)
        optimizer.step()
        other.zero_grad()
        losses(expected).backward()
        other.step()
    assert_equal(model, expected)


def test_gradient_scaler_skips_a_step_and_gradients_are_clipped():
    model, expected = make_model(), make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer, other = penstock.torch.AdamW(model), torch.optim.AdamW(expected)
    for of, by in ((model, optimizer), (expected, other)):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(4):
            by.zero_grad()
            factor = float("inf") if step == 1 else 1.0
            scaler.scale(sum((parameter * parameter * factor).sum() for parameter in of)).backward()
            scaler.unscale_(by)
            torch.nn.utils.clip_grad_norm_(of.parameters(), 1.0)
            scaler.step(by)
            scaler.update()
    assert_close(model, expected)
    assert optimizer.state[model[0]]["step"] == 3


def test_parameters_are_added_later(place):
    model, expected = make_model(), make_model()
    optimizer, other = penstock.torch.AdamW([model[1]], **place), torch.optim.AdamW([expected[1]])
    for of, by in ((model, optimizer), (expected, other)):
        train(of, by, range(2))
        by.add_param_group({"params": [of[0]], "lr": 1e-2})
        train(of, by, range(2, 5))
    assert_close(model, expected)


def test_gradients_of_other_types_and_strides():
    model, expected = [torch.nn.Parameter(torch.ones(6, 4)) for _ in range(2)]
    optimizer, other = penstock.torch.AdamW([model]), torch.optim.AdamW([expected])
    values = torch.arange(24.0).reshape(4, 6).t()
    model.grad, expected.grad = values, values.clone()
    optimizer.step()
    other.step()
    torch.testing.assert_close(model, expected)
    half = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    half.grad = torch.ones(4, dtype=torch.float16)
    penstock.torch.AdamW([half], lr=0.5, weight_decay=0).step()
    torch.testing.assert_close(half, torch.full_like(half, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_in_channels_last(dtype, place):
    def make(seed=0):
        torch.manual_seed(seed)
        conv = torch.nn.Conv2d(64, 100, 4, dtype=dtype).to(memory_format=torch.channels_last)
        return torch.nn.ParameterList([conv.weight, conv.bias])
    model, expected = make(), make()
    assert not model[0].is_contiguous()
    optimizer, other = penstock.torch.AdamW(model, lr=1e-2, **place), torch.optim.AdamW(expected, lr=1e-2)
    for step in range(4):
        set_gradients(model, step)  # in another order
        set_gradients(expected, step)
        if step % 2:
            model[0].grad = model[0].grad.to(memory_format=torch.channels_last)
        optimizer.step()
        other.step()
    if dtype == torch.float32:
        assert_close(model, expected)
    saved = optimizer.state_dict()
    assert saved["state"][0]["exp_avg"].stride() == model[0].stride()
    torch.testing.assert_close(saved["state"][0]["exp_avg"], other.state_dict()["state"][0]["exp_avg"].float(),
                               atol=1e-6 if dtype == torch.float32 else 0.02, rtol=1e-5 if dtype == torch.float32 else 0.02)
    resumed = make(seed=3)
    with torch.no_grad():
        for one, values in zip(resumed, model):
            one.copy_(values)
    third = penstock.torch.AdamW(resumed, lr=1, **place)
    third.load_state_dict({**saved, "state": {index: {name: value.contiguous() for name, value in values.items()}
                                              for index, values in saved["state"].items()}})
    train(resumed, third, [4])
    train(model, optimizer, [4])
    assert_equal(resumed, model)
    model[0].data = model[0].data.contiguous()
    with pytest.raises(penstock.InvalidArgument, match="not the one that its states were made for.*strides"):
        train(model, optimizer, [5])


def test_parameters_of_another_device_pass_through_the_host(monkeypatch, place):
    results = []
    for on_host in (True, False):
        for target in (penstock.torch.adamw, penstock.torch.saved_states):
            monkeypatch.setattr(target, "is_on_host", lambda _, on_host=on_host: on_host)
        model = make_model(torch.bfloat16)
        optimizer = penstock.torch.AdamW(model, lr=1e-2, **place)
        train(model, optimizer, range(2))
        optimizer.load_state_dict(optimizer.state_dict())
        train(model, optimizer, range(2, 4))
        results.append(model)
    assert_equal(results[1], results[0])


@pytest.mark.parametrize("tiles", [0, 2, 4])
def test_a_step_that_failed_is_completed(place, tiles, monkeypatch):
    straight, model = make_model(), make_model()
    train(straight, penstock.torch.AdamW(straight, **place), range(3))
    optimizer = penstock.torch.AdamW(model, **place)
    train(model, optimizer, range(2))
    set_gradients(model, 2)
    with monkeypatch.context() as patch:
        patch.setattr(host_update, "_step_tiles", fail_after(tiles))
        for _ in range(2):
            with pytest.raises(penstock.NoSpace):
                optimizer.step()
    optimizer.step()
    assert_equal(model, straight)
    assert {int(values["step"]) for values in optimizer.state_dict()["state"].values()} == {3}


def test_values_that_are_not_finite_are_warned_of():
    parameter = torch.nn.Parameter(torch.ones(8))
    parameter.grad = torch.full((8,), float("nan"))
    with pytest.warns(RuntimeWarning, match="number 0 of group 0 of shape .8,. has values that are not finite"):
        penstock.torch.AdamW([parameter]).step()


@pytest.mark.parametrize("tensor, text", [
    (torch.ones(3, dtype=torch.float64), "its type is not supported"),
    (torch.ones(3, dtype=torch.complex64), "its type is not supported"),
    (torch.ones(3, 4).t(), "its memory is not contiguous"),
    (torch.ones(3, device="meta"), "it has no memory"),
], ids=["float64", "complex64", "transposed", "meta"])
def test_what_cannot_be_updated_is_refused(tensor, text):
    with pytest.raises(penstock.InvalidArgument, match=text):
        penstock.torch.AdamW([torch.nn.Parameter(tensor)])


@pytest.mark.parametrize("options, kind, text", [
    ({"lr": -1.0}, penstock.InvalidArgument, "lr"),
    ({"lr": float("nan")}, penstock.InvalidArgument, "lr"),
    ({"betas": (0.9, 1.0)}, penstock.InvalidArgument, "betas"),
    ({"eps": -1e-8}, penstock.InvalidArgument, "eps"),
    ({"weight_decay": -0.1}, penstock.InvalidArgument, "weight_decay"),
    ({"state_format": "split"}, penstock.InvalidArgument, "wanted auto, moments, fp32, for torch.float32"),
    ({"state_format": "tiny"}, penstock.InvalidArgument, "tiny"),
    ({"update": "cuda"}, penstock.Unsupported, "update"),
    ({"budget": 0}, penstock.InvalidArgument, "budget"),
    ({"tile_elements": 5}, penstock.InvalidArgument, "tile_elements"),
    ({"threads": 5000}, penstock.InvalidArgument, "threads"),
    ({"threads": 0}, penstock.InvalidArgument, "threads"),
    ({"budget": 1e9}, penstock.InvalidArgument, "budget"),
    ({"lr": "1e-3"}, penstock.InvalidArgument, "lr"),
    ({"lr": True}, penstock.InvalidArgument, "lr"),
    ({"betas": 0.9}, penstock.InvalidArgument, "betas"),
    ({"weight_decay": None}, penstock.InvalidArgument, "weight_decay"),
    ({"amsgrad": True}, penstock.Unsupported, "amsgrad"),
    ({"max_grad_norm": 0}, penstock.InvalidArgument, "max_grad_norm"),
    ({"max_grad_norm": float("inf")}, penstock.InvalidArgument, "max_grad_norm"),
    ({"max_grad_norm": "1"}, penstock.InvalidArgument, "max_grad_norm"),
    ({"max_grad_norm": 1.0, "update_in_backward": True}, penstock.Unsupported, "max_grad_norm"),
    ({"update_in_backward": "false"}, penstock.InvalidArgument, "update_in_backward"),
    ({"state_format": {"float32": "fp32"}}, penstock.InvalidArgument, "no dtypes"),
    ({"path": "/no/such"}, penstock.NotFound, "/no/such"),
    ({"path": []}, penstock.InvalidArgument, "path"),
    ({"path": 3}, penstock.InvalidArgument, "path"),
    ({"path": b"/tmp"}, penstock.InvalidArgument, "path"),
    ({"path": "a\0b"}, penstock.NotFound, "no such directory"),
    ({"path": "/proc/self/status"}, penstock.NotFound, "/proc/self/status"),
])
def test_options_are_checked(options, kind, text):
    with pytest.raises(kind, match=text):
        penstock.torch.AdamW(make_model(), **options)


def test_a_budget_that_is_too_small_is_refused_before_anything_changes(directory, monkeypatch):
    for options, small, advice in (({}, 1 << 20, "name a path"), ({"path": directory}, 1024, "lower tile_elements"),
                                   ({"path": directory}, 1 << 20, "1048576 bytes of them stay in memory")):
        monkeypatch.setattr(placement, "_small_bytes", small)
        model, before = make_model(), make_model()
        optimizer = penstock.torch.AdamW(model, budget=8192, **options)
        with pytest.raises(penstock.BudgetTooSmall, match=advice):
            train(model, optimizer, range(1))
        assert_equal(model, before)


def test_changed_parameters_and_gradients_are_refused():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    train(model, optimizer, range(1))
    model[1].grad = torch.sparse_coo_tensor([[0], [1]], [1.0], (7, 3), check_invariants=False)
    with pytest.raises(penstock.InvalidArgument, match="its gradient is sparse: parameter number 1 of group 0"):
        optimizer.step()
    optimizer.zero_grad()
    model[1].data = torch.ones(3, 7)
    model[1].grad = torch.ones(3, 7)
    with pytest.raises(penstock.InvalidArgument, match="not the one that its states were made for"):
        optimizer.step()


def test_states_of_another_model_are_refused_before_anything_changes():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    train(model, optimizer, range(2))
    good, before = optimizer.state_dict(), copy.deepcopy(model)
    for change, text in ((lambda state: state[1].update(exp_avg=torch.ones(5)), "another shape"),
                         (lambda state: state[1].pop("exp_avg_sq"), "lack a moment"),
                         (lambda state: state[1].pop("step"), "number of steps"),
                         (lambda state: state[1].update(step=-1), "number of steps"),
                         (lambda state: state[1].update(step=2.5), "number of steps"),
                         (lambda state: state[1].update(step="7"), "number of steps"),
                         (lambda state: state[1].update(step=float("nan")), "number of steps"),
                         (lambda state: state[1]["exp_avg"].fill_(float("nan")), "exp_avg .* number 1 of group 0"),
                         (lambda state: state[1]["exp_avg_sq"].fill_(-1.0), "exp_avg_sq .* 0 or more"),
                         (lambda state: state[1].update(exp_avg=torch.ones(7, 3, dtype=torch.int64)), "another type"),
                         (lambda state: state[1].update(exp_avg=[1.0]), "no dense tensor"),
                         (lambda state: state[1].update(max_exp_avg_sq=torch.ones(7, 3)), "amsgrad")):
        bad = copy.deepcopy(good)
        change(bad["state"])
        with pytest.raises(penstock.Error, match=text):
            optimizer.load_state_dict(bad)
    with pytest.raises(penstock.InvalidArgument, match="no param_groups"):
        optimizer.load_state_dict({"state": {}})
    bad = copy.deepcopy(good)
    del bad["param_groups"][0]["lr"]
    with pytest.raises(penstock.InvalidArgument, match="lr"):
        optimizer.load_state_dict(bad)
    with pytest.raises(ValueError, match="number of parameter groups"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    train(model, optimizer, [2])
    other = torch.optim.AdamW(before)
    other.load_state_dict(good)
    train(before, other, [2])
    assert_close(model, before)


def test_states_are_placed_by_the_budget():
    mib = 1 << 20

    def place(parameters, budget, paths=("a",)):
        return placement.place(parameters, budget, list(paths))
    tiles = [12 * mib] * 20  # of 20 parameters of one tile, and of one
    for parameters in ([[size] for size in tiles], [tiles]):
        placed = place([[100], *parameters], 150 * mib)
        stays = [stays for of_parameter in placed.in_memory for stays in of_parameter]
        assert stays[0] and sum(stays[1:]) == 8  # (150 - 48) / 12: four tiles pass
        assert all(1 <= sum(stays[i:i + 5]) <= 3 for i in range(1, 16))
        assert placed.budget == 150 * mib and placed.paths[0].capacity == 12 * 12 * mib + 12 * mib
    assert all(all(one) for one in place([tiles], 240 * mib).in_memory) and not place([tiles], 240 * mib).paths
    assert not any(place([tiles], 24 * mib).in_memory[0])
    with pytest.raises(penstock.BudgetTooSmall, match=str(24 * mib)):
        place([tiles], 24 * mib - 1)
    assert sum(place([tiles], 150 * mib, ("a", "b")).in_memory[0]) == 7  # 32 MiB pass to each drive
    assert place([tiles, [100]], None).budget == 240 * mib + 4096
    assert place([4 * tiles], None).budget == 256 * mib
    assert place([], None).budget == 4096


def test_it_is_not_copied():
    optimizer = penstock.torch.AdamW(make_model())
    for act in (copy.deepcopy, pickle.dumps, lambda one: torch.save(one, io.BytesIO())):
        with pytest.raises(TypeError, match="save state_dict"):
            act(optimizer)


def test_two_optimizers_share_a_directory_and_nothing_is_left(directory, monkeypatch):
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    models = [make_model(), make_model()]
    optimizers = [penstock.torch.AdamW(model, path=directory, budget=450_000, tile_elements=tile_elements)
                  for model in models]
    for step in range(3):
        for model, optimizer in zip(models, optimizers):
            train(model, optimizer, [step])
    assert_equal(*models)
    saved = optimizers[0].state_dict()
    for optimizer in optimizers:
        optimizer.close()
    with pytest.raises(penstock.FailedState, match="closed"):
        train(models[0], optimizers[0], [3])
    assert saved["state"][0]["exp_avg"].numel() == elements
    assert list(directory.iterdir()) == []


_of_16_bits = [(torch.bfloat16, "split"), (torch.bfloat16, "fp32"), (torch.bfloat16, "split_q8"), (torch.float16, "fp32")]


@pytest.mark.parametrize("dtype, format", _of_16_bits)
def test_masters_that_torch_has_carried_along_are_not_taken(dtype, format):
    """torch.optim.AdamW keeps what it does not know, in the type of the parameter."""
    model = make_model(dtype)
    ours = penstock.torch.AdamW(model, lr=1e-2, state_format=format)
    train(model, ours, range(2))
    theirs = torch.optim.AdamW(model, lr=1e-2)
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(model, theirs, range(2, 12))
    weights = [parameter.detach().clone() for parameter in model]
    again = penstock.torch.AdamW(model, lr=1e-2, state_format=format)
    again.load_state_dict(theirs.state_dict())
    assert_equal(model, weights)
    for parameter, values in zip(model, again.state_dict()["state"].values()):
        assert torch.equal(values["master"], parameter.float())


@pytest.mark.parametrize("dtype, format", _of_16_bits)
def test_weights_may_be_loaded_before_or_after_the_states(place, dtype, format):
    straight = make_model(dtype)
    optimizer = penstock.torch.AdamW(straight, lr=1e-4, state_format=format, **place)
    train(straight, optimizer, range(3))
    weights, states = copy.deepcopy(straight.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(straight, optimizer, range(3, 5))
    for model_first in (True, False):
        model = make_model(dtype, seed=1)
        resumed = penstock.torch.AdamW(model, lr=1e-4, state_format=format, **place)
        if model_first:
            model.load_state_dict(weights)
        resumed.load_state_dict(copy.deepcopy(states))
        if not model_first:
            model.load_state_dict(weights)
        train(model, resumed, range(3, 5))
        assert_equal(model, straight)
        resumed.close()


def test_other_weights_that_are_loaded_after_the_states_are_taken():
    model = make_model(torch.bfloat16)
    optimizer = penstock.torch.AdamW(model, lr=0.0, weight_decay=0.0)
    train(model, optimizer, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    with torch.no_grad():
        model[0].add_(1)
    changed = model[0].detach().clone()
    train(model, optimizer, range(1, 2))
    assert torch.equal(model[0], changed)
    assert torch.equal(optimizer.state_dict()["state"][0]["master"], changed.float())


def test_what_is_no_state_dictionary_is_refused():
    model = make_model()
    optimizer = penstock.torch.AdamW(model)
    train(model, optimizer, range(1))
    state = optimizer.state_dict()
    with pytest.raises(penstock.InvalidArgument, match="no dictionary.*NoneType"):
        optimizer.load_state_dict(None)
    with pytest.raises(penstock.InvalidArgument, match=r"(?s)none of its groups.*state\[7\]"):
        optimizer.load_state_dict({**state, "state": {**state["state"], 7: {}}})
    assert int(optimizer.state_dict()["state"][0]["step"]) == 1


def test_a_directory_that_is_gone_and_a_limit_of_files_are_named(directory, monkeypatch):
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    states = directory / "states"
    states.mkdir()
    model = make_model()
    optimizer = penstock.torch.AdamW(model, path=states, budget=450_000, tile_elements=tile_elements)
    train(model, optimizer, range(1))
    for runtime in optimizer._runtimes:
        runtime.flush()  # the limit is that of writes to swap files too
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(penstock.NoSpace, match="(?s)RLIMIT_FSIZE.*got 100000.*ulimit -f"):
            optimizer.state_dict()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    shutil.rmtree(states)
    with pytest.raises(penstock.IoFailed, match="(?s)No such file or directory.*states.*make the directory again"):
        optimizer.state_dict()
    states.mkdir()
    assert len(optimizer.state_dict()["state"]) == len(model)


def test_hyperparameters_that_are_several_numbers_or_none_are_refused():
    for changed, name in (({"lr": torch.tensor([1.0, 2.0])}, "lr"), ({"betas": 0.9}, "betas"), ({"betas": (0.9,)}, "betas")):
        with pytest.raises(penstock.InvalidArgument, match=f"(?s){name}.*got "):
            penstock.torch.AdamW(make_model(), **changed)
    optimizer = penstock.torch.AdamW(make_model())
    optimizer.close()
    with pytest.raises(penstock.FailedState, match="(?s)closed.*the optimizer"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
