"""What a sharded module does after interrupts and refusals."""

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from with_torch.interrupted_lines import Interrupt, lines_of  # noqa: E402


def config_of(**more):
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "gradient_clipping": 0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0}}, **more}


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))


def train(model, seed=0):
    model.backward(model(torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))).pow(2).sum())
    return model.step()


def test_the_module_of_a_sharded_one_loads_no_state():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    state = {name: torch.full_like(one, 9) for name, one in module.state_dict().items()}
    model = penstock.torch.shard(module, config_of())
    for one in (module, module[1]):
        with pytest.raises(penstock.Unsupported, match=r"(?s)elsewhere: load_state_dict\(\) of .*load_checkpoint"):
            one.load_state_dict(state if one is module else {"running_mean": state["1.running_mean"]}, strict=False)
    assert (module[1].running_mean == 0).all()
    with pytest.raises(penstock.Unsupported, match="elsewhere"):
        model.load_state_dict(state)
    model.close()
    with pytest.raises(penstock.FailedState, match="closed"):
        model.state_dict()


def test_a_backward_that_was_interrupted_leaves_no_gradient():
    module = make_model()
    raises = [False]

    def hook(_):
        if raises[0]:
            raise KeyboardInterrupt
    module[0].weight.register_post_accumulate_grad_hook(hook)  # before that of shard()
    model, plain = penstock.torch.shard(module, config_of()), penstock.torch.shard(make_model(), config_of())
    raises[0] = True
    with pytest.raises(KeyboardInterrupt):
        train(model)
    raises[0] = False
    model.abandon_step()
    assert module[0].weight.grad is None
    assert train(model) and train(plain)
    assert (model.last_step["gradient_norm"], model.digest()) == (plain.last_step["gradient_norm"], plain.digest())


@pytest.mark.parametrize("modules, every", [(("units", "gathering", "sharded"), 7), (("gathering",), 1)])
def test_an_interrupt_anywhere_changes_no_later_step(modules, every):
    traced = [getattr(penstock.torch, name) for name in modules]

    def lines_of_a_step(model, interrupted_at):
        return lines_of(lambda: train(model), traced, interrupted_at)
    plain = penstock.torch.shard(make_model(), config_of())
    count = lines_of_a_step(plain, 0)
    digests = [plain.digest()]
    train(plain, 1)
    digests.append(plain.digest())
    for line in range(1, count, every):
        model = penstock.torch.shard(make_model(), config_of())
        with pytest.raises(Interrupt):
            lines_of_a_step(model, line)
        model.abandon_step()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None, line
        if model.completed_steps == 0:
            train(model)
        assert model.digest() == digests[0], line
        train(model, 1)
        assert model.digest() == digests[1], line
        model.close()


@pytest.mark.parametrize("change", [torch.nn.Module.half, torch.nn.Module.double])
def test_a_type_that_was_changed_is_refused_once(change):
    module = torch.nn.Linear(64, 64, bias=False)
    values = module.weight.detach().clone()
    model = penstock.torch.shard(module, config_of())
    change(module)
    with pytest.raises(penstock.FailedState, match="changed while its values were elsewhere"), torch.no_grad():
        model(torch.ones(1, 64))
    with torch.no_grad():
        torch.testing.assert_close(model(torch.eye(64)), values.t())


def test_it_is_in_host_memory_whatever_the_default_device_is():
    model, plain = (penstock.torch.shard(make_model(), config_of()) for _ in range(2))
    inputs = torch.ones(2, 4)
    with torch.device("meta"):
        model.backward(model(inputs).pow(2).sum())
        model.step()
    plain.backward(plain(inputs).pow(2).sum())
    plain.step()
    assert model.digest() == plain.digest()


def test_the_interrupt_of_a_forward_is_what_is_raised():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
            self.raises = True

        def forward(self, x):
            if self.raises:
                self.weight.data.fill_(3)
                raise KeyboardInterrupt
            return x * self.weight
    inner = Inner()
    outer = torch.nn.Sequential(torch.nn.Linear(4, 4), inner)
    outer.scale = torch.nn.Parameter(torch.ones(()))
    model = penstock.torch.shard(outer, config_of(), whole=(torch.nn.Sequential,))
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(1, 4))
    assert inner.weight.isnan().all()
    inner.raises = False
    with torch.no_grad():
        first = model(torch.ones(1, 4))
    model.backward(model(torch.ones(1, 4)).sum())
    model.step()
    with torch.no_grad():
        assert not torch.equal(model(torch.ones(1, 4)), first)


def test_an_exception_in_gathered_is_what_is_raised():
    model = penstock.torch.shard(make_model(), config_of())
    with pytest.raises(KeyboardInterrupt), model.gathered() as module, torch.no_grad():
        module[0].weight.fill_(3)
        raise KeyboardInterrupt
    assert model.module[0].weight.isnan().all() and train(model)


@pytest.mark.parametrize("happens", ["update", "load"])
def test_a_backward_of_an_earlier_forward_is_refused(directory, happens):
    config = config_of(penstock={"durable_directory": str(directory / "run")},
                       zero_optimization={"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(directory)}})
    model = penstock.torch.shard(torch.nn.Linear(4, 4), config)
    if happens == "load":
        other = penstock.torch.shard(torch.nn.Linear(4, 4), {**config, "penstock": {"durable_directory": str(directory / "other")}})
        train(other)
        saved = other.save_checkpoint(directory / "saved")
    old = model(torch.ones(1, 4)).sum()  # its graph has no parameter
    if happens == "update":
        train(model)
    else:
        model.load_checkpoint(saved)
    model(torch.ones(1, 4))
    with pytest.raises(penstock.FailedState, match="(?s)since the forward of this backward.*before step"):
        model.backward(old)
    model.abandon_step()
    assert train(model)


def test_a_checkpoint_with_other_buffers_is_not_used(directory):
    def make(name, size):
        module = make_model()
        module.register_buffer("b", torch.zeros(size))
        return penstock.torch.shard(module, config_of(
            penstock={"durable_directory": str(directory / name)},
            zero_optimization={"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(directory)}}))
    for name in ("other", "second", "own"):
        (directory / name).mkdir()
    other = make("other", 3)
    train(other)
    theirs = other.save_checkpoint(directory / "saved of other")
    other.close()
    second = make("second", 5)
    train(second, 1)
    own, digest = second.save_checkpoint(directory / "saved of second"), second.digest()
    model = make("own", 5)
    with pytest.raises(penstock.FailedState, match="other buffers: b"):
        model.load_checkpoint(theirs)
    with pytest.raises(penstock.FailedState, match="(?s)not its buffers.*load_checkpoint"):
        model(torch.ones(1, 4))
    model.load_checkpoint(own)
    assert model.digest() == digest and train(model)


@pytest.mark.parametrize("call", [lambda model: model.commit(), lambda model: model.save_checkpoint("x"),
                                  lambda model: model.load_checkpoint("x")])
def test_what_needs_a_whole_step_says_so(call):
    model = penstock.torch.shard(make_model(), config_of(gradient_accumulation_steps=2))
    model.backward(model(torch.ones(1, 4)).sum())
    with pytest.raises(penstock.FailedState, match=r"(?s)in progress.*1 of 2 micro-batches.*after step\(\)"):
        call(model)


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(penstock.Unsupported, match="inference mode: 0.weight"):
        penstock.torch.shard(make_model(), config_of())


def test_a_module_may_have_a_child_with_any_name():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4))
            self.root = torch.nn.Linear(4, 4)
            self.root_ = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.root_(self.root(x @ self.weight))
    assert train(penstock.torch.shard(Model(), config_of()))


def test_files_that_are_no_configuration_are_named(directory):
    with pytest.raises(penstock.NotFound, match="missing.json"):
        penstock.torch.shard(make_model(), directory / "missing.json")
    with pytest.raises(penstock.InvalidArgument, match="directory"):
        penstock.torch.shard(make_model(), directory)
    with pytest.raises(penstock.InvalidArgument, match="null byte"):
        penstock.torch.shard(make_model(), "a\0b")


def test_classes_may_come_from_a_generator():
    model = penstock.torch.shard(make_model(), config_of(), whole=(one for one in [torch.nn.Sequential]))
    assert train(model) and len(model._units) == 1


@pytest.mark.parametrize("directory_given, keep, text", [(b"", 0, "names no directory"), (3, 0, "names no directory"),
                                                         ("x", "a", "keep"), ("x", -1, "keep")])
def test_a_checkpoint_needs_a_directory_and_a_number(directory_given, keep, text):
    model = penstock.torch.shard(make_model(), config_of())
    with pytest.raises(penstock.InvalidArgument, match=text):
        model.save_checkpoint(directory_given, keep=keep)


def test_an_object_that_is_too_deep_is_refused(directory):
    model = penstock.torch.shard(make_model(), config_of(penstock={"durable_directory": str(directory)}))
    client = []
    for _ in range(100_000):
        client = [client]
    with pytest.raises(penstock.InvalidArgument, match="client"):
        model.commit(client)
