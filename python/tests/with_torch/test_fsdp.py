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


def work(rank, ranks, port):
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
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
    for of, by in ((model, optimizer), (expected, other), (resumed, third)):
        train(of, by, range(4, 6), rank)
    for one, two, three in zip(shards(model), shards(expected), shards(resumed)):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
        assert torch.equal(one, three)
    dist.destroy_process_group()


def test_shards_are_updated_saved_and_restored():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(work, (2, port), nprocs=2)
