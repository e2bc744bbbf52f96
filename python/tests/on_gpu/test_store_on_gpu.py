"""penstock.Store and penstock.torch.park with tensors of a GPU."""

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA device")

mib = 1 << 20


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(8)]).cuda()  # 32 MiB


def test_a_tensor_comes_back_to_the_gpu(directory):
    tensor = torch.randn(3, 5 * mib, device="cuda").bfloat16()
    with penstock.Store(8 * mib, [penstock.Path(directory, capacity=64 * mib)]) as store:
        store.put("a", tensor)
        into = torch.empty_like(tensor)
        store.get("a", into=into)
        assert torch.equal(into, tensor)


def test_a_parked_module_leaves_its_memory(directory):
    model = make_model()
    model.requires_grad_(False)  # a graph would keep the weights
    inputs = torch.randn(4, 1024, device="cuda")
    expected, before = model(inputs), torch.cuda.memory_allocated()
    with penstock.Store(8 * mib, [penstock.Path(directory, capacity=64 * mib)]) as store:
        with penstock.torch.park(model, store):
            scalars = 8 * 512  # what each parameter has while it is parked, in the allocator's units
            assert torch.cuda.memory_allocated() <= before - 32 * mib + scalars
            assert model(inputs).isnan().all()
        assert torch.equal(model(inputs), expected)


def test_activations_are_in_the_store(directory):
    model, inputs = make_model(), torch.randn(512, 1024, device="cuda")
    model(inputs).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with penstock.Store(8 * mib, [penstock.Path(directory, capacity=128 * mib)]) as store:
        with penstock.torch.offload_activations(store):
            loss = model(inputs).sum()
        loss.backward()
    for parameter, gradient in zip(model.parameters(), expected):
        assert torch.equal(parameter.grad, gradient)
