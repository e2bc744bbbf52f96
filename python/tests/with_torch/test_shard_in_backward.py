"""penstock.torch.shard with updates in the backward."""

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from with_torch.test_shard import Block, Model, batch_of, config_of, loss_of, make_model, place, train  # noqa: E402, F401


def in_backward(config, value=True):
    config["zero_optimization"]["reduce_bucket_size"] = 1  # each gradient is reduced, and its update begins, at once
    return {**config, "penstock": {**config.get("penstock", {}), "update_in_backward": value}}


@pytest.mark.parametrize("whole", [(), (Block,), (Model,)])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_its_bits_are_those_of_updates_after_the_step(place, whole, micro_batches):
    found = []
    for value in (False, True):
        model = penstock.torch.shard(make_model(), in_backward(config_of(place, micro_batches), value), whole=whole)
        found.append((train(model, range(4), micro_batches), model.digest()))
        model.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("first, then", [(True, False), (False, True), (True, True)])
def test_a_run_may_go_on_with_it_or_without(directory, first, then):
    plain = penstock.torch.shard(make_model(), in_backward(config_of(), False))
    losses = train(plain, range(4))
    config = config_of(penstock={"durable_directory": str(directory)})
    model = penstock.torch.shard(make_model(), in_backward(config, first))
    assert train(model, range(2)) == losses[:2]
    model.commit()
    train(model, [9])
    model.close()
    model = penstock.torch.shard(make_model(), in_backward(config, then))
    assert model.resumed[0] == 2 and train(model, [2, 3]) == losses[2:]
    assert model.digest() == plain.digest()


def test_the_parameters_are_not_read_between_backward_and_step():
    plain, model = (penstock.torch.shard(make_model(), in_backward(config_of(), value)) for value in (False, True))
    assert train(plain, range(2)) == train(model, [0]) + [_step_between_refusals(model)]
    assert model.digest() == plain.digest()


def _step_between_refusals(model):
    loss = loss_of(model, batch_of(1))
    model.backward(loss)

    def gather():
        with model.gathered():
            pass
    for call in (model.digest, lambda: model(batch_of(2)[0]), gather):
        with pytest.raises(penstock.FailedState, match=r"(?s)update_in_backward updates.*call step\(\) first"):
            call()
    with pytest.raises(penstock.FailedState, match="update_in_backward"):
        model.abandon_step()
    assert model.step()
    return loss.item()


class Failure(RuntimeError):
    pass


def fail(*_):
    raise Failure


def fail_in_backward(model, step):
    handle = model.module.blocks[0].up.register_full_backward_hook(fail)
    with pytest.raises(Failure):
        model.backward(loss_of(model, batch_of(step)))
    handle.remove()


def test_an_exception_in_the_last_backward_ends_the_run(directory):
    config = in_backward(config_of(penstock={"durable_directory": str(directory)}))
    model = penstock.torch.shard(make_model(), config)
    train(model, [0])
    model.commit()
    digest = model.digest()
    fail_in_backward(model, 1)
    with pytest.raises(penstock.FailedState, match="(?s)backward has failed.*abandon_step"):
        model.step()
    for call in (model.abandon_step, model.step, model.abandon_step):
        with pytest.raises(penstock.FailedState, match=r"(?s)has updated a part of the step.*close\(\).*last commit"):
            call()
    model.close()
    model = penstock.torch.shard(make_model(), config)
    assert model.resumed[0] == 1 and model.digest() == digest
    train(model, [1])


def test_an_exception_before_the_last_backward_does_not():
    plain, model = (penstock.torch.shard(make_model(), in_backward(config_of(micro_batches=2), value)) for value in (False, True))
    fail_in_backward(model, 0)
    model.abandon_step()
    assert train(model, range(2), 2) == train(plain, range(2), 2) and model.digest() == plain.digest()


def test_a_step_that_was_interrupted_at_its_end_is_not_lost():
    plain, model = (penstock.torch.shard(make_model(), in_backward(config_of(), value)) for value in (False, True))
    model.backward(loss_of(model, batch_of(0)))
    assert model._engine.step()["updated"]  # an interrupt comes before the module notes it
    model.abandon_step()
    assert model.completed_steps == 1
    train(plain, [0])
    assert train(plain, [1]) == train(model, [1]) and model.digest() == plain.digest()


class Early(torch.nn.Module):
    """Its weight's gradient is whole before the backward uses the weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x @ self.weight.detach())
        return x + self.weight.sum()


@pytest.mark.parametrize("value", [False, True])
def test_a_weight_that_is_used_after_its_gradient_is_refused(value):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), Early(), torch.nn.Linear(4, 4))
    model = penstock.torch.shard(module, in_backward(config_of(), value))
    loss = model(torch.ones(2, 4)).sum()
    if not value:
        model.backward(loss)
        assert model.step()
        return
    with pytest.raises(penstock.FailedState, match="(?s)its last gradient of this step was reduced.*leave the key out"):
        model.backward(loss)
    model.close()
