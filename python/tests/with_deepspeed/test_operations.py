"""penstock.deepspeed: DeepSpeed's operations on the host, without DeepSpeed's own."""

import os

import penstock
import pytest

torch = pytest.importorskip("torch")

from penstock.deepspeed import async_io, cpu_adam, pin_memory  # noqa: E402


def test_files_are_written_and_read(directory):
    handle = async_io.aio_handle(1024, 2, True, False, 2)
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_intra_op_parallelism()) == (1024, 2, 2)
    values = torch.arange(10_007, dtype=torch.bfloat16)
    name = str(directory / "values")
    assert handle.sync_pwrite(values, name) == 1
    assert handle.async_pwrite(values, name, 20_014) == 0
    assert handle.wait() == 1
    assert os.path.getsize(name) == 40_028
    back = handle.new_cpu_locked_tensor(10_007, values)
    assert handle.async_pread(back, name, 20_014) == 0
    assert handle.async_pread(torch.empty_like(values), name) == 0
    assert handle.wait() == 2
    assert torch.equal(back, values)
    assert handle.write(values, name, True) == 0
    assert handle.read(back, name, True) == 0


def test_a_descriptor_is_written_to(directory):
    handle = async_io.aio_handle()
    name = directory / "values"
    descriptor = os.open(name, os.O_CREAT | os.O_WRONLY)
    handle.async_pwrite(buffer=torch.ones(5), fd=descriptor, file_offset=4)
    handle.wait()
    os.close(descriptor)
    assert name.read_bytes() == bytes(4) + torch.ones(5).numpy().tobytes()


def test_errors_name_the_file_and_the_offset(directory):
    handle = async_io.aio_handle()
    with pytest.raises(penstock.NotFound, match="/no/such"):
        handle.async_pread(torch.empty(4), "/no/such/file")
    short = directory / "short"
    short.write_bytes(bytes(10))
    with pytest.raises(penstock.Truncated, match=str(short)):
        handle.sync_pread(torch.empty(4), str(short))
    with pytest.raises(penstock.InvalidArgument, match="not contiguous"):
        handle.sync_pwrite(torch.ones(4, 4).t(), str(short))
    assert handle.wait() == 0
    assert short.read_bytes() == bytes(10)


@pytest.mark.parametrize("buffer", [b"bytes", None, memoryview(bytearray(8))])
def test_a_buffer_that_is_no_tensor_is_refused(directory, buffer):
    handle = async_io.aio_handle()
    for call in (handle.sync_pwrite, handle.sync_pread, handle.async_pwrite):
        with pytest.raises(penstock.InvalidArgument, match="no tensor"):
            call(buffer, str(directory / "file"))


def test_pinned_tensors_are_known_to_all_handles():
    handle, pins = async_io.aio_handle(), pin_memory.pin_handle()
    tensor = handle.new_cpu_locked_tensor(1000, torch.empty(0, dtype=torch.float16))
    assert tensor.dtype == torch.float16
    assert tensor.data_ptr() % 4096 == 0
    assert torch.count_nonzero(tensor) == 0
    assert pins.is_pinned(tensor[10:20])
    assert not pins.is_pinned(torch.ones(5))
    assert pins.free_cpu_locked_tensor(tensor)
    assert not pins.free_cpu_locked_tensor(tensor)
    assert not handle.is_pinned(tensor)
    tensor.fill_(1)  # the memory lives as long as the tensor


@pytest.mark.parametrize("dtype, state", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                          (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)])
@pytest.mark.parametrize("decoupled", [True, False])
def test_adam_is_torchs(dtype, state, decoupled):
    torch.manual_seed(0)
    cpu_adam.create_adam(7, adamw_mode=decoupled, should_log=False)
    parameter = torch.randn(20_000).to(dtype)
    expected = torch.nn.Parameter(parameter.float())
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    other = make([expected], lr=1e-2, weight_decay=0.1)
    m, v = torch.zeros(20_000, dtype=state), torch.zeros(20_000, dtype=state)
    for step in range(1, 6):
        gradient = torch.randn(20_000).to(dtype)
        expected.grad = gradient.float()
        other.step()
        cpu_adam.adam_update(7, step, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, parameter, gradient, m, v)
    close = {"atol": 2e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.03}
    torch.testing.assert_close(parameter.float(), expected.detach(), **close)
    cpu_adam.destroy_adam(7)
    with pytest.raises(penstock.InvalidArgument, match="no such optimizer"):
        cpu_adam.adam_update(7, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, parameter, gradient, m, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_is_undone(dtype):
    torch.manual_seed(0)
    cpu_adam.create_adam(8, should_log=False)
    values = [torch.randn(1000).to(dtype), torch.randn(1000).to(dtype), torch.randn(1000), torch.rand(1000)]
    before = [tensor.clone() for tensor in values]
    arguments = (8, 3, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, *values)
    cpu_adam.adam_update(*arguments)
    cpu_adam.adam_rollback(*arguments)
    for one, other in zip(values, before):
        close = {"atol": 1e-5, "rtol": 1e-4} if one.dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
        torch.testing.assert_close(one, other, **close)


def test_tensors_that_cannot_be_updated_are_refused():
    cpu_adam.create_adam(9, should_log=False)
    good = [torch.ones(6) for _ in range(4)]
    for index, bad, text in ((0, torch.ones(3, 2).t(), "params"), (2, torch.ones(5), "exp_avg"),
                             (3, torch.ones(6, dtype=torch.float64), "exp_avg_sq"), (1, torch.ones(7), "grads")):
        tensors = [tensor.clone() for tensor in good]
        tensors[index] = bad
        with pytest.raises(penstock.InvalidArgument, match=text):
            cpu_adam.adam_update(9, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, *tensors)
    with pytest.raises(penstock.InvalidArgument, match="different types.*exp_avg_sq.*bfloat16.*float32 of exp_avg"):
        cpu_adam.adam_update(9, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, *good[:3], torch.ones(6, dtype=torch.bfloat16))
    with pytest.raises(penstock.InvalidArgument, match="overlap"):
        cpu_adam.adam_update(9, 1, 1e-2, 0.9, 0.999, 1e-8, 0.1, True, good[0], good[1], good[2], good[2])
