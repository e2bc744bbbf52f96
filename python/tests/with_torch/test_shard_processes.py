"""penstock.torch.shard with several processes, as torchrun starts them."""

import os
import signal
import socket

import pytest

torch = pytest.importorskip("torch")

from with_torch.test_shard import batch_of, config_of, loss_of, make_model, train_plainly  # noqa: E402

import penstock.torch  # noqa: E402

ranks = 2


def join(rank, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def work(rank, port, directory, results):
    join(rank, port)
    config = config_of(directory, penstock={"durable_directory": f"{directory}/run"})
    config["train_micro_batch_size_per_gpu"] = 2
    model = penstock.torch.shard(make_model(), config)
    assert (model.rank, model.ranks) == (rank, ranks)
    losses = []
    for step in range(len(model.resumed or ()) and model.resumed[0], 6):
        tokens, target = batch_of(step)
        half = slice(2 * rank, 2 * rank + 2)
        loss = loss_of(model, (tokens[half], target[half]))
        model.backward(loss)
        model.step()
        losses.append(loss.item())
        if step == 2 and model.resumed is None:
            model.commit({"step": 3})
            break
    results.put((rank, losses, model.digest()))
    model.close()


def work_with_two(rank, port, directory, results):
    join(rank, port)
    models = [penstock.torch.shard(make_model(), config_of()) for _ in range(2)]
    for step in range(3):
        for model in models:
            model.backward(loss_of(model, batch_of(step)))
            model.step()
    torch.manual_seed(rank)
    try:
        penstock.torch.shard(torch.nn.Linear(3, 3), config_of())
    except penstock.InvalidArgument as error:
        results.put((rank, [model.digest() for model in models], str(error)))


def work_until_killed(rank, port, directory, results):
    if port is not None:
        join(rank, port)
    model = penstock.torch.shard(make_model(), config_of(directory))
    try:
        for step in range(3):
            loss = loss_of(model, batch_of(step))
            if rank == ranks - 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            model.backward(loss)
            model.step()
        results.put("nothing was noticed")
    except penstock.Error as error:
        results.put(f"{type(error).__name__}: {error}")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1] - 1  # rank 0 listens on the next one


def run(directory, work=work):
    port = free_port()
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(work, (port, str(directory), results), nprocs=ranks)
    return sorted(results.get() for _ in range(ranks))


def test_two_processes_train_as_one_and_go_on_from_their_commit(directory):
    expected = train_plainly(make_model(), range(6))
    first, second = run(directory), run(directory)
    for results in (first, second):
        assert results[0][2] == results[1][2]  # one model
    losses = [sum(values) / ranks for results in (first, second) for values in zip(results[0][1], results[1][1])]
    assert losses == pytest.approx(expected, abs=1e-5)


def test_a_process_may_have_several_and_ranks_begin_alike(directory):
    results = run(directory, work_with_two)
    assert len({digest for _, digests, _ in results for digest in digests}) == 1
    assert all("others on rank 1" in error for _, _, error in results)


def test_a_killed_process_ends_the_others_with_an_error_and_leaves_nothing(directory):
    context, port = torch.multiprocessing.get_context("spawn"), free_port()
    results = context.SimpleQueue()
    processes = [context.Process(target=work_until_killed, args=(rank, port, str(directory), results))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    assert results.get().startswith("PeerFailed: rank 1")
    assert list(directory.iterdir()) == []


def test_a_killed_trainer_leaves_nothing(directory):
    context = torch.multiprocessing.get_context("spawn")
    process = context.Process(target=work_until_killed, args=(ranks - 1, None, str(directory), None))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list(directory.iterdir()) == []
