"""penstock.torch.AdamW on parameters that FSDP2 has sharded."""

import os
import socket

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp", reason="FSDP2")

import penstock.torch  # noqa: E402

max_norm = 0.02  # of gradients


def make_model(mesh):
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(10, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def train(model, optimizer, steps, rank):
    for step in steps:
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        (model(torch.randn(4, 10)) ** 2).mean().backward()
        if isinstance(optimizer, torch.optim.AdamW):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).full_tensor()
            assert norm > max_norm
        optimizer.step()


def shards(model):
    return [parameter.to_local() for parameter in model.parameters()]


def check_refusals(model, optimizer, plain):
    """Of states that are sharded otherwise than the parameters, before anything changes."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor
    good = optimizer.state_dict()
    before = [parameter.detach().clone().to_local() for parameter in model.parameters()]

    def changed(change):
        state = {number: {**values, "exp_avg": change(number, values["exp_avg"])} for number, values in good["state"].items()}
        return {**good, "state": state}
    whole = list(plain["state"].values()) if dist.get_rank() == 0 else [None] * len(good["state"])
    dist.broadcast_object_list(whole)
    mesh = next(model.parameters()).device_mesh
    for bad, got in ((changed(lambda number, _: whole[number]["exp_avg"]), "a plain tensor"),
                     (changed(lambda _, tensor: tensor.redistribute(placements=[Replicate()])), "Replicate"),
                     (changed(lambda _, tensor: distribute_tensor(tensor.full_tensor(), mesh, [Replicate()])), "Replicate")):
        with pytest.raises(penstock.InvalidArgument, match=f"(?s)sharded otherwise.*got.*{got}.*set_optimizer_state_dict"):
            optimizer.load_state_dict(bad)
    for parameter, values in zip(model.parameters(), before):
        assert torch.equal(parameter.to_local(), values)
    single = torch.nn.Parameter(torch.zeros(next(model.parameters()).shape))
    other = penstock.torch.AdamW([single])
    with pytest.raises(penstock.InvalidArgument, match="(?s)sharded otherwise.*wanted.*a plain tensor"):
        other.load_state_dict({"state": {0: good["state"][0]}, "param_groups": [{**good["param_groups"][0], "params": [0]}]})


def check_versions(model, optimizer, rank):
    """A step, which PyTorch counts as a change of a DTensor and of its local tensor."""
    versions = [(parameter._version, parameter.to_local()._version) for parameter in model.parameters()]
    train(model, optimizer, [4], rank)
    for parameter, (own, local) in zip(model.parameters(), versions):
        assert parameter._version > own and parameter.to_local()._version > local


def work(rank, ranks, port):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_optimizer_state_dict,
                                                             set_optimizer_state_dict)
    from torch.distributed.device_mesh import init_device_mesh
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    model, expected, resumed = (make_model(mesh) for _ in range(3))
    optimizer = penstock.torch.AdamW(model.parameters(), lr=1e-2, max_grad_norm=max_norm)
    other = torch.optim.AdamW(expected.parameters(), lr=1e-2)
    for of, by in ((model, optimizer), (expected, other)):
        train(of, by, range(4), rank)

    resumed.load_state_dict(model.state_dict())
    third = penstock.torch.AdamW(resumed.parameters(), lr=1, max_grad_norm=max_norm)
    set_optimizer_state_dict(resumed, third, get_optimizer_state_dict(model, optimizer))
    check_refusals(resumed, third, plain=get_optimizer_state_dict(model, optimizer,
                                                                  options=StateDictOptions(full_state_dict=True)))
    check_versions(model, optimizer, rank)
    for of, by in ((expected, other), (resumed, third)):
        train(of, by, [4], rank)
    for of, by in ((model, optimizer), (expected, other), (resumed, third)):
        train(of, by, [5], rank)
    for one, two, three in zip(shards(model), shards(expected), shards(resumed)):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
        assert torch.equal(one, three)
    dist.destroy_process_group()


def test_shards_are_updated_saved_and_restored():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(work, (2, port), nprocs=2)
