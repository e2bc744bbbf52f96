"""penstock.torch.AdamW for parameters of a GPU, beside the same on the host and torch's own."""

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402
from penstock.torch import placement  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no CUDA device")

tile_elements = 16384
elements = 5 * tile_elements + 5  # six tiles
formats = [(torch.float32, "moments"), (torch.float32, "fp32"), (torch.float16, "fp32"), (torch.bfloat16, "split"),
           (torch.bfloat16, "split_bf16"), (torch.bfloat16, "split_q8"), (torch.bfloat16, "moments_bf16"),
           (torch.bfloat16, "fp32")]


@pytest.fixture(params=["memory", "disk"])
def place(request, directory, monkeypatch):
    if request.param == "memory":
        return {"tile_elements": tile_elements}
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    return {"tile_elements": tile_elements, "path": directory, "budget": 450_000}


def make_model(dtype, device):
    torch.manual_seed(0)
    return torch.nn.ParameterList([torch.randn(elements, dtype=dtype), torch.randn(7, 3, dtype=dtype),
                                   torch.randn(5, dtype=dtype), torch.zeros(0, dtype=dtype)]).to(device)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in model:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
        optimizer.step()


def assert_equal(model, expected):
    for one, other in zip(model, expected):
        assert torch.equal(one.cpu(), other.cpu())


@pytest.mark.parametrize("dtype, format", formats)
def test_bits_are_those_of_the_host(place, dtype, format):
    models, saved = [], []
    for device, update in (("cpu", "cpu"), ("cuda", "cpu"), ("cuda", "cuda")):
        model = make_model(dtype, device)
        optimizer = penstock.torch.AdamW(model, lr=1e-2, state_format=format, update=update, **place)
        train(model, optimizer, range(3))
        optimizer.load_state_dict(optimizer.state_dict())
        with torch.no_grad():
            model[0][0] = 0.5  # changed between steps
        train(model, optimizer, range(3, 5))
        saved.append([values["exp_avg_sq"] for values in optimizer.state_dict()["state"].values()])
        optimizer.close()
        models.append(model)
    for model, states in zip(models[1:], saved[1:]):
        assert_equal(model, models[0])
        assert_equal(states, saved[0])


@pytest.mark.parametrize("update", ["cpu", "cuda"])
def test_it_is_torchs_fused_adamw(update):
    ours, theirs = make_model(torch.float32, "cuda"), make_model(torch.float32, "cuda")
    train(ours, penstock.torch.AdamW(ours, lr=1e-2, update=update, tile_elements=tile_elements), range(5))
    train(theirs, torch.optim.AdamW(theirs, lr=1e-2, fused=True), range(5))
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("update", ["cpu", "cuda"])
def test_it_works_in_a_stream_of_the_trainers(update, place):
    """Work that is on its way in the current stream is done before its results are used, and used before it is changed."""
    straight, model = make_model(torch.bfloat16, "cpu"), make_model(torch.bfloat16, "cuda")
    train(straight, penstock.torch.AdamW(straight, lr=1e-2, **place), range(4))
    optimizer = penstock.torch.AdamW(model, lr=1e-2, update=update, **place)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for step in range(4):
            generator = torch.Generator().manual_seed(step)
            for parameter in model:
                gradient = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.grad = torch.full_like(parameter, torch.nan)
                torch.cuda._sleep(20_000_000)  # some 10 ms
                parameter.grad.copy_(gradient)
            optimizer.step()
            sums = [parameter.float().sum() for parameter in model]
            with torch.no_grad():
                for gradient in (parameter.grad for parameter in model):
                    gradient.fill_(torch.nan)  # after the step, in the stream
    stream.synchronize()
    assert_equal(model, straight)
    for one, parameter in zip(sums, straight):
        torch.testing.assert_close(one.cpu(), parameter.float().sum())


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("update", ["cpu", "cuda"])
def test_a_model_learns(update, in_backward):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 16)).cuda().bfloat16()
    inputs, classes = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16), torch.arange(64, device="cuda") % 16
    optimizer = penstock.torch.AdamW(model.parameters(), lr=3e-3, update=update, tile_elements=tile_elements,
                                     update_in_backward=in_backward)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(inputs).float(), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_values_that_are_not_finite_are_warned_of():
    model = make_model(torch.bfloat16, "cuda")
    optimizer = penstock.torch.AdamW(model, update="cuda", tile_elements=tile_elements)
    train(model, optimizer, range(1))
    model[0].grad[tile_elements * 2 + 3] = torch.inf
    with pytest.warns(RuntimeWarning, match=f"number 0 of group 0.*near element {tile_elements * 2}"):
        optimizer.step()
