"""penstock.torch.shard beside plain PyTorch."""

import copy
import gc
import math
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from with_torch.interrupted_lines import Interrupt, lines_of  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Positions(torch.nn.Module):
    """Returns its own weight."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(5, width))

    def forward(self):
        return self.weight[None]


class Borrower(torch.nn.Module):
    """Uses the weight of a module that it does not call."""

    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.ModuleList([torch.nn.Linear(width, width)])

    def forward(self, x):
        return x + torch.nn.functional.linear(x, self.inner[0].weight, self.inner[0].bias)


class Model(torch.nn.Module):
    """With a tied weight, a weight that leaves its module, a module that is used twice, and a buffer."""

    def __init__(self, width=32, tokens=11):
        super().__init__()
        self.embedding = torch.nn.Embedding(tokens, width)
        self.positions = Positions(width)
        self.blocks = torch.nn.ModuleList([Block(width) for _ in range(3)])
        self.attention = torch.nn.MultiheadAttention(width, 4, bias=False, batch_first=True)  # its bias of keys has no gradient
        self.borrower = Borrower(width)
        self.norm = torch.nn.LayerNorm(width)
        self.register_buffer("calls", torch.zeros(()))
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.head = torch.nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight
        torch.nn.init.normal_(self.embedding.weight, std=0.2)
        self.checkpoint = None  # use_reentrant

    def forward(self, tokens):
        self.calls += 1
        x = self.embedding(tokens) + self.positions()
        for block in (*self.blocks, self.blocks[1]):
            if self.checkpoint is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.checkpoint)
        x = x + self.attention(x, x, x)[0]
        return self.head(self.norm(self.borrower(x)) * self.scale)


def make_model(seed=0):
    torch.manual_seed(seed)
    return Model()


def batch_of(step, micro_batch=0):
    generator = torch.Generator().manual_seed(100 * step + micro_batch)
    tokens = torch.randint(11, (4, 5), generator=generator)
    return tokens, tokens.roll(1, 1)


def loss_of(model, batch):
    tokens, target = batch
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), target.flatten())


def config_of(directory=None, micro_batches=1, **more):
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": micro_batches,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
              "zero_optimization": {"stage": 3}, "gradient_clipping": 0, **more}
    if directory is not None:
        offload = {"device": "nvme", "nvme_path": str(directory)}
        config["zero_optimization"] |= {"offload_param": offload, "offload_optimizer": offload}
    return config


def train_plainly(model, steps, micro_batches=1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        for micro_batch in range(micro_batches):
            loss = loss_of(model, batch_of(step, micro_batch))
            (loss / micro_batches).backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def train(model, steps, micro_batches=1):
    losses = []
    for step in steps:
        for micro_batch in range(micro_batches):
            loss = loss_of(model, batch_of(step, micro_batch))
            model.backward(loss)
            updated = model.step()
            losses.append(loss.item())
        assert updated
    return losses


@pytest.fixture(params=["memory", "nvme"])
def place(request, directory):
    return None if request.param == "memory" else directory


@pytest.mark.parametrize("whole", [(), (Block,), (Model,)])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_it_trains_as_plain_pytorch(place, whole, micro_batches):
    expected, module = make_model(), make_model()
    losses = train_plainly(expected, range(4), micro_batches)
    model = penstock.torch.shard(module, config_of(place, micro_batches), whole=whole)
    assert train(model, range(4), micro_batches) == pytest.approx(losses, abs=1e-5)
    with model.gathered() as gathered:
        assert gathered is module
        for (name, one), other in zip(gathered.named_parameters(), expected.parameters()):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4, msg=name)
        for one, other in zip(gathered.buffers(), expected.buffers()):
            torch.testing.assert_close(one, other)
    assert all(parameter.isnan().all() for parameter in module.parameters())
    model.close()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("whole", [(), (Block,)])
def test_activations_may_be_checkpointed(reentrant, whole):
    expected, module = make_model(), make_model()
    losses = train_plainly(expected, range(3))
    module.checkpoint = reentrant
    model = penstock.torch.shard(module, config_of(), whole=whole)
    assert train(model, range(3)) == pytest.approx(losses, abs=1e-5)


def test_losses_in_bfloat16_are_those_in_float32_within_its_rounding(place):
    losses = train_plainly(make_model(), range(20))
    model = penstock.torch.shard(make_model(), config_of(place, bf16={"enabled": True}))
    assert train(model, range(20)) == pytest.approx(losses, rel=0.02)
    with model.gathered() as module:
        assert {one.dtype for one in module.parameters()} == {torch.bfloat16}


def test_float16_has_a_loss_scale():
    losses = train_plainly(make_model(), range(4))
    model = penstock.torch.shard(make_model(), config_of(fp16={"enabled": True, "loss_scale": 0,
                                                               "initial_scale_power": 40}))
    step = skipped = 0
    while step < 4 and skipped < 60:
        loss = loss_of(model, batch_of(step))
        assert loss.item() == pytest.approx(losses[step], rel=0.01)  # a skipped step changes nothing
        model.backward(loss)
        if model.step():
            step += 1
        else:
            skipped += 1
            assert model.last_step["skip_reason"]
    assert 10 < skipped < 60 and model.completed_steps == 4 and model.report()["skipped_steps"] == skipped
    assert "host, optimizer tiles" in model.report_text() and "penstock_stall_seconds_total" in model.report_text("prometheus")


class Adapted(torch.nn.Module):
    """A frozen layer with a trained one beside it, as in LoRA."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = torch.nn.Linear(layer.in_features, 4, bias=False)
        self.up = torch.nn.Linear(4, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


@pytest.mark.parametrize("whole", [(), (Block,), (Adapted,), (Model,)])
def test_frozen_parameters_are_not_changed(place, whole):
    def make():
        model = make_model().requires_grad_(False)
        torch.manual_seed(3)
        for block in model.blocks:
            block.up = Adapted(block.up)
        return model
    expected, module = make(), make()
    losses = train_plainly(expected, range(4))
    model = penstock.torch.shard(module, config_of(place), whole=whole)
    assert train(model, range(4)) == pytest.approx(losses, abs=1e-5)
    with model.gathered():
        for (name, one), other in zip(module.named_parameters(), expected.named_parameters()):
            if one.requires_grad:
                torch.testing.assert_close(one, other[1], atol=2e-5, rtol=1e-4, msg=name)
            else:
                assert torch.equal(one, other[1]), name


def test_parameters_without_a_gradient_get_zeros():
    expected, module = make_model(), make_model()
    for model in (expected, module):
        model.unused = torch.nn.Linear(3, 3)
        model.blocks[0].unused = torch.nn.Parameter(torch.ones(3))
    losses = train_plainly(expected, range(3))
    model = penstock.torch.shard(module, config_of(), whole=(Block,))
    assert train(model, range(3)) == pytest.approx(losses, abs=1e-5)


def test_convolutions_in_channels_last():
    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(inplace=True), torch.nn.BatchNorm2d(8),
                                   torch.nn.Conv2d(8, 4, 3, bias=False)).to(memory_format=torch.channels_last)
    expected = make()
    model = penstock.torch.shard(make(), config_of())
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.01)
    values = torch.randn(4, 3, 9, 9).to(memory_format=torch.channels_last)
    for _ in range(3):
        optimizer.zero_grad()
        loss = expected(values).square().mean()
        loss.backward()
        optimizer.step()
        ours = model(values).square().mean()
        model.backward(ours)
        model.step()
        assert ours.item() == pytest.approx(loss.item(), rel=1e-4)


def test_weight_decay_is_of_each_parameter():
    expected, module = make_model(), make_model()
    matrices = [one for one in expected.parameters() if one.dim() > 1]
    others = [one for one in expected.parameters() if one.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.5}, {"params": others, "weight_decay": 0}], lr=1e-3)
    config = config_of()
    config["optimizer"]["params"]["weight_decay"] = 0.5
    model = penstock.torch.shard(module, config, weight_decay_of=lambda name, one: 0.0 if one.dim() <= 1 else None)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(expected, batch_of(step))
        loss.backward()
        optimizer.step()
        assert train(model, [step]) == pytest.approx([loss.item()], abs=1e-5)


def test_learning_rates_may_be_given():
    expected = make_model()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.01)
    model = penstock.torch.shard(make_model(), config_of())
    for step, rate in enumerate((1e-3, 5e-4, 2e-3)):
        optimizer.param_groups[0]["lr"] = model.learning_rate = rate
        optimizer.zero_grad()
        loss = loss_of(expected, batch_of(step))
        loss.backward()
        optimizer.step()
        assert train(model, [step]) == pytest.approx([loss.item()], abs=1e-5)
        assert model.last_step["learning_rate"] == pytest.approx(rate)


def test_evaluation_gathers_and_changes_nothing(place):
    expected, module = make_model(), make_model()
    model = penstock.torch.shard(module, config_of(place))
    train_plainly(expected, range(1))
    train(model, range(1))
    for _ in range(2):
        with torch.no_grad():
            assert loss_of(model, batch_of(7)).item() == pytest.approx(loss_of(expected, batch_of(7)).item(), abs=1e-5)
    assert model.completed_steps == 1


def durable(directory):
    return config_of(directory, penstock={"durable_directory": str(directory / "run")})


client = {"epoch": 3, "seed": torch.arange(3), "names": ["a", None]}


def test_a_run_goes_on_from_its_last_commit(directory):
    losses = train(penstock.torch.shard(make_model(), config_of()), range(6))
    first = penstock.torch.shard(make_model(), durable(directory))
    assert first.resumed is None
    assert train(first, range(3)) == pytest.approx(losses[:3], abs=1e-6)
    first.commit(client)
    digest = first.digest()
    train(first, [9])  # is lost
    first.close()
    second = penstock.torch.shard(make_model(seed=5), durable(directory))
    step, found = second.resumed
    assert step == 3 and found["epoch"] == 3 and found["names"] == ["a", None] and torch.equal(found["seed"], client["seed"])
    assert second.digest() == digest and second.module.calls == 3
    assert train(second, range(3, 6)) == pytest.approx(losses[3:], abs=1e-6)
    second.close()


def test_a_run_goes_on_from_a_checkpoint(directory):
    losses = train(penstock.torch.shard(make_model(), config_of()), range(6))
    first = penstock.torch.shard(make_model(), durable(directory))
    train(first, range(3))
    path = first.save_checkpoint(directory / "checkpoints", client)
    assert path.startswith(str(directory / "checkpoints"))
    digest = first.digest()
    first.close()
    second = penstock.torch.shard(make_model(seed=5), config_of())
    train(second, [7])
    step, found = second.load_checkpoint(directory / "checkpoints")
    assert step == 3 and found["names"] == ["a", None]
    assert second.digest() == digest and second.module.calls == 3
    assert train(second, range(3, 6)) == pytest.approx(losses[3:], abs=1e-6)
    with pytest.raises(penstock.NotFound):
        second.load_checkpoint(directory / "none")


def test_a_step_may_be_abandoned():
    expected = make_model()
    losses = train_plainly(expected, range(3))
    model = penstock.torch.shard(make_model(), config_of())
    assert train(model, [0]) == pytest.approx(losses[:1], abs=1e-5)

    class Failure(RuntimeError):
        pass

    def fail(*_):
        raise Failure
    hook = model.module.blocks[1].up.register_forward_hook(fail)
    with pytest.raises(Failure):
        model(batch_of(1)[0])
    hook.remove()
    model.abandon_step("the forward has failed")
    loss = loss_of(model, batch_of(1))
    handle = model.module.blocks[1].up.register_full_backward_hook(fail)
    with pytest.raises(Failure):
        model.backward(loss_of(model, batch_of(1)))
    handle.remove()
    with pytest.raises(penstock.FailedState, match="(?s)backward has failed.*abandon_step"):
        model(batch_of(1)[0])
    with pytest.raises(penstock.FailedState, match="abandon_step"):
        model.step()
    model.abandon_step()
    del loss
    assert train(model, [1, 2]) == pytest.approx(losses[1:], abs=1e-5)


def test_parameters_have_no_memory_outside_of_their_use():
    module = make_model()
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    model = penstock.torch.shard(module, config_of())
    gathered = []

    def note(*_):
        gathered.append({names[id(one)] for one in module.parameters() if not one.isnan().any()})
    for block in module.blocks:
        block.up.register_forward_pre_hook(note)
    with torch.no_grad():
        model(batch_of(0)[0])
    assert len(gathered) == 4
    for one, number in zip(gathered, (0, 1, 2, 1)):
        assert one - {"positions.weight"} == {f"blocks.{number}.up.weight", f"blocks.{number}.up.bias", "scale"}
    gc.collect()
    assert torch.nn.functional.linear(torch.ones(2, 32), module.blocks[0].up.weight).isnan().all()
    assert module.blocks[0].up.weight.untyped_storage().nbytes() == 4
    with pytest.raises(RuntimeError):
        module.blocks[0].up.weight.data.add_(1)


def test_activations_may_be_offloaded(directory):
    losses = train_plainly(make_model(), range(3))
    model = penstock.torch.shard(make_model(), config_of())
    with penstock.Store(1 << 20, [penstock.Path(directory, 64 << 20)]) as store:
        hooks = penstock.torch.offload_activations(store, min_bytes=256)
        for step in range(3):
            with hooks:
                loss = loss_of(model, batch_of(step))
            assert len(store) > 10
            model.backward(loss)
            model.step()
            assert loss.item() == pytest.approx(losses[step], abs=1e-5)


def test_a_forward_whose_graph_is_dropped_keeps_nothing_in_the_backward(monkeypatch):
    model = penstock.torch.shard(make_model(), config_of(micro_batches=2))
    train(model, [0], 2)
    most = []
    gather = penstock.torch.units.Unit.gather

    def counted(unit, engine):
        gather(unit, engine)
        if model._is_in_backward:
            most[-1] = max(most[-1], sum(one.is_gathered for one in model._units))
    monkeypatch.setattr(penstock.torch.units.Unit, "gather", counted)
    tokens, target = batch_of(1)
    for drops in (False, True):
        for _ in range(2):
            most.append(0)
            old = model(tokens).detach() if drops else torch.zeros(4, 5, 11)
            kept = model(tokens) if drops else None
            del kept
            loss = torch.nn.functional.cross_entropy((model(tokens) - 0 * old).flatten(0, 1), target.flatten())
            model.backward(loss)
        model.step()
    assert max(most) < len(model._units) / 2
    assert most[2:] == most[:2]


def test_what_a_graph_frees_late_is_not_of_the_next_micro_batch():
    model = penstock.torch.shard(make_model(), config_of(micro_batches=2))
    late = loss_of(model, batch_of(0))
    model.backward(loss_of(model, batch_of(0)))
    loss = loss_of(model, batch_of(1))
    counts = [len(unit.saved) for unit in model._units]
    del late
    assert [len(unit.saved) for unit in model._units] == counts and any(counts)
    model.backward(loss)
    model.step()


class Auxiliary(torch.nn.Module):
    """Its loss is in an attribute, an output is changed in place, and a view of a weight is used elsewhere."""

    def __init__(self):
        super().__init__()
        self.router, self.layer, self.late = (torch.nn.Linear(8, 8) for _ in range(3))
        self.frozen = torch.nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(8, 1))
        self.inner = Caches()

    def forward(self, x):
        self.loss = self.router(x).square().mean()
        x = torch.nn.functional.relu(self.layer(x).view(-1, 8), inplace=True)
        x = torch.nn.functional.linear(x, self.frozen.weight[:] * self.scale)
        self.inner(x)
        return {"deep": [type("Output", (), {"values": (self.late(x) @ self.inner.view,)})()]}


class Caches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(8))

    def forward(self, x):
        self.view = self.weight.t()


def loss_of_auxiliary(model, values):
    output = model(values)["deep"][0].values[0]
    return output.square().mean() + getattr(model, "module", model).loss


def test_graphs_that_leave_a_module_by_other_ways_than_its_output():
    def make():
        torch.manual_seed(2)
        return Auxiliary()
    expected = make()
    model = penstock.torch.shard(make(), config_of(micro_batches=2))
    optimizer = torch.optim.AdamW(expected.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(3):
        values = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(step)).requires_grad_()
        theirs, ours = ([loss_of_auxiliary(one, part) for part in values] for one in (expected, model))  # both, then both
        optimizer.zero_grad()
        for one, other in zip(theirs, ours):
            (one / 2).backward()
            model.backward(other)
        optimizer.step()
        assert model.step()
        assert [one.item() for one in ours] == pytest.approx([one.item() for one in theirs], abs=1e-5)


def test_nothing_old_survives_an_update():
    model = penstock.torch.shard(Caches(), config_of())
    values = torch.ones(3, 8)
    with model.gathered() as module:
        before = module.state_dict()
        kept = module.weight.detach()
        for call in (model.step, model.abandon_step, lambda: model.load_checkpoint("none")):
            with pytest.raises(penstock.FailedState):
                call()
    assert torch.equal(before["weight"], torch.eye(8))  # its own memory, after the block too
    model(values)
    loss = (values @ model.module.view).square().mean()
    old = (values @ model.module.view).sum()
    with torch.no_grad():
        model(values)
    model.backward(loss)
    assert model.step()
    with model.gathered() as module:
        assert not torch.equal(module.weight, kept)
    with pytest.raises(penstock.FailedState, match="no forward since the last step"):
        model.backward(old)


def test_changes_in_place_are_refused():
    class Clamps(Caches):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(max=0.5)
            return x @ self.weight
    model = penstock.torch.shard(Clamps(), config_of())
    with pytest.raises(penstock.FailedState, match="changed in place.*weight"):
        model(torch.ones(3, 8))
    model.abandon_step()
    with pytest.raises(penstock.FailedState, match="changed in place"):
        with model.gathered() as module, torch.no_grad():
            module.weight.add_(1)


@pytest.mark.parametrize("change", [
    lambda p: p.fill_(0), lambda p: p.data.zero_(), lambda p: torch.nn.init.zeros_(p), lambda p: p[0].fill_(0),
    lambda p: setattr(p, "data", torch.zeros(p.shape))])
def test_changes_while_the_values_are_elsewhere_are_refused(change):
    losses = train_plainly(make_model(), range(2))
    model = penstock.torch.shard(make_model(), config_of())
    assert train(model, [0]) == pytest.approx(losses[:1], abs=1e-5)
    weight = model.module.blocks[1].up.weight
    with torch.no_grad():
        change(weight)
    with pytest.raises(penstock.FailedState, match="(?s)changed while its values were elsewhere.*blocks.1.up.weight"):
        model(batch_of(1)[0])
    model.abandon_step()
    assert weight.isnan().all()
    assert train(model, [1]) == pytest.approx(losses[1:], abs=1e-5)


def test_an_interrupt_anywhere_leaves_a_module_that_goes_on():
    model = penstock.torch.shard(make_model(), config_of())
    train(model, [0])
    modules = (penstock.torch.units, penstock.torch.gathering, penstock.torch.sharded)

    def lines_of_a_step(interrupted_at):
        return lines_of(lambda: train(model, [1]), modules, interrupted_at)
    for line in range(1, lines_of_a_step(0), 17):
        with pytest.raises(Interrupt):
            lines_of_a_step(line)
        model.abandon_step()
        assert all(parameter.isnan().all() for parameter in model.module.parameters()), line
        assert math.isfinite(train(model, [2])[0]), line
    with pytest.raises(Interrupt):
        lines_of_a_step(100)
    model.close()


def test_requires_grad_is_fixed():
    module = make_model()
    model = penstock.torch.shard(module, config_of())
    module.head.weight.requires_grad_(False)
    with pytest.raises(penstock.InvalidArgument, match="requires_grad.*wanted True, got False"):
        model(batch_of(0)[0])


def test_what_would_be_without_effect_is_refused():
    module = make_model()
    model = penstock.torch.shard(module, config_of())
    state = make_model().state_dict()
    for call in (lambda: model.load_state_dict(state), model.half, lambda: model.to("meta"), module.state_dict,
                 module.blocks[0].state_dict):
        with pytest.raises(penstock.Unsupported):
            call()
    for act in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            act(model)
    with pytest.raises(penstock.InvalidArgument, match="sharded already"):
        penstock.torch.shard(module, config_of())
    for whole in (torch.nn.Linear, "Linear", [3], [torch.nn.Conv2d], [int]):
        with pytest.raises(penstock.InvalidArgument, match="whole"):
            penstock.torch.shard(make_model(), config_of(), whole=whole)
    for act in (copy.deepcopy, pickle.dumps, torch.optim.swa_utils.AveragedModel):
        with pytest.raises(penstock.FailedState, match=r"(?s)no values outside of the forward.*gathered\(\)"):
            act(module)
    with pytest.raises(penstock.InvalidArgument, match="a sharded or a parked"):
        penstock.torch.AdamW(model.parameters())
    model.close()
    with pytest.raises(penstock.InvalidArgument, match="(embedding|positions).weight.*was sharded"):
        penstock.torch.shard(module, config_of())
    with pytest.raises(penstock.InvalidArgument, match="no module"):
        penstock.torch.shard(3, config_of())


def test_an_average_of_weights_is_made_of_gathered_ones():
    model, plain = penstock.torch.shard(make_model(), config_of()), make_model()
    with model.gathered() as module:
        average = torch.optim.swa_utils.AveragedModel(module)
    expected = torch.optim.swa_utils.AveragedModel(plain)
    for step in range(3):
        train(model, [step])
        with model.gathered() as module:
            average.update_parameters(module)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(plain, batch_of(step)).backward()
        optimizer.step()
        expected.update_parameters(plain)
    for one, other in zip(average.parameters(), expected.parameters()):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("change", [
    lambda module: setattr(module.blocks[0].up, "weight", torch.nn.Parameter(torch.ones(64, 32))),
    lambda module: module.blocks.append(Block(32)),
    lambda module: module.blocks.__setitem__(0, Block(32)),
    lambda module: module.blocks.__delitem__(0)])
def test_other_parameters_after_shard_are_refused(change):
    module = make_model()
    model = penstock.torch.shard(module, config_of())
    train(model, range(1))
    change(module)
    with pytest.raises(penstock.FailedState, match="(came into|taken out of) the module.*: blocks"):
        model(batch_of(1)[0])


@pytest.mark.parametrize("large", [False, True])
def test_changes_through_data_are_refused(large):
    class Clamped(torch.nn.Linear):
        def forward(self, x):
            self.weight.data.clamp_(-0.01, 0.01)
            return super().forward(x)
    width = 400 if large else 8
    model = penstock.torch.shard(torch.nn.Sequential(Clamped(width, width)), config_of())
    with pytest.raises(penstock.FailedState, match="changed in place.*0.weight"):
        model(torch.ones(1, width))


def test_all_are_released_where_one_was_changed(directory):
    module = make_model()
    model = penstock.torch.shard(module, durable(directory))
    train(model, range(1))
    model.save_checkpoint(directory / "checkpoints")
    with pytest.raises(penstock.FailedState, match="changed in place"):
        with model.gathered(), torch.no_grad():
            module.scale.add_(1)
    assert not any(unit.is_gathered for unit in model._units)
    train(model, range(1, 2))
    model.close()


def test_a_commit_of_other_buffers_is_refused_before_anything_changes(directory):
    model = penstock.torch.shard(make_model(), durable(directory))
    train(model, range(1))
    model.commit()
    model.close()
    other = make_model()
    other.register_buffer("more", torch.ones(3))
    before = {name: one.clone() for name, one in other.state_dict().items()}
    with pytest.raises(penstock.InvalidArgument, match="other buffers: more"):
        penstock.torch.shard(other, durable(directory))
    assert all(torch.equal(one, before[name]) for name, one in other.state_dict().items())


@pytest.mark.parametrize("given", ["a", -1.0, float("nan"), True, torch.ones(2)])
def test_a_learning_rate_is_checked_where_it_is_given(given):
    model = penstock.torch.shard(make_model(), config_of())
    with pytest.raises(penstock.InvalidArgument, match="learning_rate"):
        model.learning_rate = given
    model.learning_rate = 1
    train(model, range(1))
    assert model.last_step["learning_rate"] == 1.0


def test_a_loss_that_is_not_of_the_module_is_refused():
    model, other = penstock.torch.shard(make_model(), config_of()), torch.nn.Linear(16, 1)
    loss_of(model, batch_of(0))
    for loss in (None, 3.0):
        with pytest.raises(penstock.InvalidArgument, match="it is no tensor: the loss"):
            model.backward(loss)
    with pytest.raises(penstock.FailedState, match="none of the parameters a gradient"):
        model.backward(other(torch.ones(16)).sum())
    model.abandon_step()
    train(model, range(1))


def test_calls_of_two_threads_are_refused():
    model = penstock.torch.shard(make_model(), config_of())
    inside, leave = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        leave.wait()
    hook = model.module.blocks[1].register_forward_hook(wait)
    thread = threading.Thread(target=lambda: model(batch_of(0)[0]))
    thread.start()
    inside.wait()
    with pytest.raises(penstock.FailedState, match=r"another thread is in a call of it: forward\(\)"):
        model(batch_of(0)[0])
    leave.set()
    thread.join()
    hook.remove()
    train(model, range(1))


def test_it_is_freed_with_its_last_reference():
    model = penstock.torch.shard(make_model(), config_of())
    train(model, range(2))
    alive = weakref.ref(model)
    engine = weakref.ref(model._engine) if hasattr(type(model._engine), "__weakref__") else alive
    module = model.module
    del model
    gc.collect()
    assert alive() is None and engine() is None
    for use in (lambda: module(batch_of(0)[0]), lambda: copy.deepcopy(module)):
        with pytest.raises(penstock.FailedState, match="what shard.. has returned is gone"):
            use()


def test_gradients_of_inputs_are_those_of_pytorch():
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    values = torch.randn(3, 8, requires_grad=True)
    expected, = torch.autograd.grad(layer(values).square().sum(), values)
    model = penstock.torch.shard(layer, config_of())
    found, = torch.autograd.grad(model(values).square().sum(), values)
    torch.testing.assert_close(found, expected)


def test_a_copy_is_a_plain_module():
    module = make_model()
    model = penstock.torch.shard(module, config_of())
    train(model, range(1))
    with model.gathered() as gathered:
        copied = copy.deepcopy(gathered)
        with torch.no_grad():
            expected = gathered(batch_of(3)[0])
    train(model, range(1, 3))
    with torch.no_grad():
        assert torch.equal(copied(batch_of(3)[0]), expected)
    train_plainly(copied, range(2))


def test_an_object_that_cannot_be_loaded_is_not_committed(directory):
    model = penstock.torch.shard(make_model(), durable(directory))
    train(model, range(1))
    for client in ({"model": make_model()}, lambda: 0, {"x": object()}):
        with pytest.raises(penstock.InvalidArgument, match="client") as refused:
            model.commit(client)
        assert "\x1b" not in str(refused.value)
    with pytest.raises(penstock.InvalidArgument, match="keep"):
        model.save_checkpoint(directory / "checkpoints", keep=-1)
    model.commit({"loss": 0.5})
    model.close()


@pytest.mark.parametrize("change, kind, text", [
    (lambda model: model.requires_grad_(False), penstock.InvalidArgument, "no parameter that is trained"),
    (lambda model: model.double(), penstock.InvalidArgument, "scale.*float64"),
    (lambda model: model.to("meta"), penstock.Unsupported, "scale.*meta"),
    (lambda model: setattr(model, "empty", torch.nn.Parameter(torch.empty(0, 3))), penstock.Unsupported, "empty"),
    (lambda model: setattr(model.scale, "grad", torch.ones(())), penstock.InvalidArgument, "scale"),
    (lambda model: setattr(model, "lazy", torch.nn.LazyLinear(3)), penstock.InvalidArgument, "lazy.weight"),
    (lambda model: setattr(model.head, "weight", torch.nn.Parameter(model.embedding.weight.detach())),
     penstock.InvalidArgument, "(?s)overlaps.*head.weight.*embedding.weight.*one parameter"),
    (lambda model: setattr(model, "row", torch.nn.Parameter(model.embedding.weight.detach()[3])),
     penstock.InvalidArgument, "(?s)overlaps.*row.*embedding.weight|overlaps.*embedding.weight.*row"),
])
def test_modules_that_cannot_be_sharded_are_refused(change, kind, text):
    model = make_model()
    change(model)
    before = {name: one.clone() for name, one in model.named_parameters()
              if one.device.type == "cpu" and not torch.nn.parameter.is_lazy(one)}
    with pytest.raises(kind, match=text):
        penstock.torch.shard(model, config_of())
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters() if name in before)


@pytest.mark.parametrize("config, kind, text", [
    ({"optimizer": {"type": "AdamW", "params": {"lr": torch.tensor(0.1)}}}, penstock.InvalidConfig, "optimizer.params.lr.*Tensor"),
    ({"optimizer": {"type": "Adamm"}}, penstock.InvalidConfig, "optimizer"),
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, penstock.InvalidConfig, "16"),
    ({"penstock": {"host_budget": "4KB"}}, penstock.Error, "budget"),
])
def test_configurations_are_checked_before_anything_changes(config, kind, text):
    model = make_model()
    before = copy.deepcopy(model)
    with pytest.raises(kind, match=text):
        penstock.torch.shard(model, {**config_of(), **config})
    with pytest.raises(FileNotFoundError):
        penstock.torch.shard(model, "/no/such/file.json")
    with pytest.raises(penstock.InvalidArgument, match="config.*NoneType"):
        penstock.torch.shard(model, None)
    for given in ("a", -1.0):
        with pytest.raises(penstock.InvalidArgument, match="weight decay: scale"):
            penstock.torch.shard(model, config_of(), weight_decay_of=lambda name, parameter: given)  # noqa: B023
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters()))


def test_other_optimizers_of_its_parameters_are_refused():
    model = penstock.torch.shard(make_model(), config_of())
    plain = torch.nn.Linear(3, 3)
    plain(torch.ones(3)).sum().backward()
    for make in (torch.optim.SGD, torch.optim.AdamW):
        both = make([*plain.parameters(), *model.parameters()], lr=0.1)
        before = plain.weight.clone()
        with pytest.raises(penstock.FailedState, match=r"(?s)scale.*model\.step"):
            both.step()
        assert torch.equal(plain.weight, before)
    make(plain.parameters(), lr=0.1).step()
    model.close()
    both.step()  # of what has no gradient


class Samples(torch.utils.data.Dataset):
    def __init__(self, model=None):
        self.model = model

    def __len__(self):
        return 3

    def __getitem__(self, step):
        if self.model is not None:
            self.model(batch_of(step)[0])
        return batch_of(step)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_load_data_do_not_disturb_it(start):
    expected = train_plainly(make_model(), range(3))
    model = penstock.torch.shard(make_model(), config_of())
    batches = torch.utils.data.DataLoader(Samples(), batch_size=None, num_workers=2, multiprocessing_context=start)
    losses = []
    for batch in batches:
        loss = loss_of(model, batch)
        model.backward(loss)
        model.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, abs=1e-5)


def test_a_forked_process_is_refused_the_module():
    model = penstock.torch.shard(make_model(), config_of())
    with pytest.raises(penstock.FailedState, match="forked"):
        list(torch.utils.data.DataLoader(Samples(model), batch_size=None, num_workers=1, multiprocessing_context="fork"))
    train(model, range(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_adamw(place, dtype):
    """One engine, which has the update of a C++ trainer, and the tiles of penstock.torch.AdamW."""
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(96, 80), torch.nn.Linear(80, 11))
        return model.to(dtype)  # masters begin with rounded values
    config = config_of(place, gradient_clipping=0.5, bf16={"enabled": dtype == torch.bfloat16})
    sharded, plain = penstock.torch.shard(make(), config), make()
    optimizer = penstock.torch.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01, max_grad_norm=0.5)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(16, 96, generator=generator, dtype=torch.float32).to(dtype)
        for model in (sharded, plain):
            loss = model(x).float().square().mean()
            (model.backward if model is sharded else torch.Tensor.backward)(loss)
        sharded.step()
        optimizer.step()
        optimizer.zero_grad()
    with sharded.gathered() as gathered:
        for one, other in zip(gathered.parameters(), plain.parameters()):
            assert torch.equal(one, other)
    assert sharded.last_step["gradient_norm"] == pytest.approx(optimizer.grad_norm, rel=1e-12)


def test_misuse_is_refused():
    model = penstock.torch.shard(make_model(), config_of(micro_batches=2))
    with pytest.raises(penstock.FailedState, match="no backward"):
        model.step()
    loss = loss_of(model, batch_of(0))
    with pytest.raises(penstock.FailedState, match=r"wanted model.backward\(loss\)"):
        loss.backward()
    model.abandon_step()
    with pytest.raises(penstock.Unsupported, match="(?s)gathered"):
        model.state_dict()
    for _ in range(2):
        assert not model.step() if model._micro_batches else True
        model.backward(loss_of(model, batch_of(0)))
    with pytest.raises(penstock.FailedState, match=r"(?s)2 a step.*call step\(\)"):
        model.backward(loss_of(model, batch_of(0)))
    with model.gathered():
        with pytest.raises(penstock.FailedState, match="in use"):
            model.step()
    assert model.step()
    model.close()
    with pytest.raises(penstock.FailedState, match="closed"):
        model(batch_of(0)[0])


def test_a_loss_that_is_not_one_number_is_refused_and_the_step_goes_on():
    model = penstock.torch.shard(make_model(), config_of())
    loss = loss_of(model, batch_of(0))
    with pytest.raises(penstock.InvalidArgument, match=r"(?s)not one number.*\(2,\)"):
        model.backward(torch.stack([loss, loss]))
    model.backward(loss)
    assert model.step()


def test_a_configuration_that_is_no_text_is_named(directory):
    file = directory / "config.json"
    file.write_bytes(b"{\xff\xfe")
    with pytest.raises(penstock.InvalidConfig, match="(?s)no text in UTF-8: .*config.json.*0xff at 1"):
        penstock.torch.shard(make_model(), file)
