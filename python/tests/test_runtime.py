"""penstock.Runtime: tensors in host memory under a budget and in swap files."""

import gc
import json
import os
import pickle
import threading
import time

import numpy as np
import penstock
import pytest

size = 1 << 20


@pytest.fixture
def runtime(directory):
    """With room for four tensors in memory, and for 16 on disk."""
    with penstock.Runtime(4 * size, [penstock.Path(directory, 16 * size)]) as made:
        yield made


def fill(tensor, value):
    with tensor.lease("overwrite") as lease:
        np.frombuffer(lease, np.uint8)[:] = value


def test_tensors_beyond_the_budget_come_back_from_the_disk(runtime):
    tensors = [runtime.add(f"tensor {number}", size) for number in range(12)]
    for number, tensor in enumerate(tensors):
        fill(tensor, number)
    for number, tensor in enumerate(tensors):
        if number + 1 < len(tensors):
            tensors[number + 1].prefetch()
        with tensor.lease("read") as lease:
            assert len(memoryview(lease)) == lease.nbytes == size
            assert set(np.frombuffer(lease, np.uint8)) == {number}
    runtime.end_round()
    runtime.flush()
    runtime.sync()
    report = runtime.report()
    assert report["bytes_written"] >= 8 * size and report["bytes_read"] >= 8 * size
    assert report["retries"] == 0 and report["stall_seconds"] >= 0
    assert runtime.notes == [] and runtime.take_messages() == []


@pytest.mark.parametrize("eviction, distance, reads", [("planned", 0, 0), ("lru", 0, 0), ("reuse_distance", 2 * size, 4),
                                                       ("reuse_distance", 2 * size + 1, 3)])
def test_policies_read_again_what_they_do_not_keep(directory, eviction, distance, reads):
    path = penstock.Path(directory, 16 * size)
    with penstock.Runtime(4 * size, [path], eviction=eviction, reuse_distance_max=distance, lookahead=0) as runtime:
        tensors = [runtime.add(name, size, write_behind=True) for name in "abc"]

        def round_of_uses(first="read"):
            for index, access in zip((0, 1, 2, 0), (first, first, first, "read")):  # a comes again after two tensors
                with tensors[index].lease(access):
                    pass
            runtime.end_round()
        round_of_uses("overwrite")
        runtime.flush()
        round_of_uses()
        before = runtime.report()["bytes_read"]
        round_of_uses()
        assert runtime.report()["bytes_read"] - before == reads * size


def test_a_tensor_may_stay_in_memory():
    with penstock.Runtime(2 * size) as runtime:
        tensor = runtime.add("a", size, in_memory=True)
        fill(tensor, 7)
        with tensor.lease("modify") as lease:
            np.frombuffer(lease, np.uint8)[0] += 1
        with tensor.lease("read") as lease:
            assert np.frombuffer(lease, np.uint8)[0] == 8


def test_memory_stays_while_an_array_of_it_lives(runtime):
    tensor = runtime.add("a", size)
    fill(tensor, 3)
    lease = tensor.lease("read")
    array = np.frombuffer(lease, np.uint8)
    with pytest.raises(penstock.InUse, match="1 views"):
        lease.end()
    with pytest.raises(ValueError):
        array[0] = 1  # only read
    del lease
    gc.collect()
    assert array[-1] == 3  # the array keeps the lease
    del array
    gc.collect()
    fill(tensor, 4)  # which has ended with it


def test_an_exception_in_its_block_is_not_hidden(runtime):
    tensor = runtime.add("a", size)
    with pytest.raises(ZeroDivisionError):
        with tensor.lease("overwrite") as lease:
            array = np.frombuffer(lease, np.uint8)
            array[:] = 1 // 0
    del lease, array
    gc.collect()
    fill(tensor, 4)


def test_an_ended_lease_has_no_memory(runtime):
    tensor = runtime.add("a", size)
    lease = tensor.lease("overwrite")
    lease.end()
    lease.end()
    with pytest.raises((BufferError, ValueError)):
        memoryview(lease)


def test_leases_outlive_their_runtime(directory):
    runtime = penstock.Runtime(4 * size, [penstock.Path(directory, 4 * size)])
    tensor = runtime.add("a", size)
    lease = tensor.lease("overwrite")
    array = np.frombuffer(lease, np.uint8)
    runtime.close()
    runtime.close()
    array[:] = 1
    del array
    lease.end()
    for call in (tensor.prefetch, tensor.remove, tensor.discard, lambda: tensor.lease("read"), runtime.flush,
                 runtime.report, lambda: runtime.add("b", size), lambda: runtime.notes):
        with pytest.raises(penstock.FailedState, match="closed"):
            call()


def test_misuse_is_refused(runtime, directory):
    tensor = runtime.add("a", size)
    with pytest.raises(penstock.InvalidArgument, match="read"):
        tensor.lease("read")  # it was never written
    with pytest.raises(penstock.InvalidArgument, match="overwrite"):
        tensor.lease("write")
    with pytest.raises(penstock.InvalidArgument):
        runtime.add("b", 0)
    with pytest.raises(penstock.Error):
        runtime.add("c", 8 * size)  # more than the memory
    with pytest.raises(penstock.NoSpace):
        for number in range(20):
            runtime.add(f"d{number}", size)
    with tensor.lease("overwrite"):
        with pytest.raises(penstock.InvalidArgument, match="this thread"):
            tensor.lease("overwrite")
        with pytest.raises(penstock.Error):
            tensor.remove()
    tensor.remove()
    with pytest.raises(penstock.Error):
        tensor.lease("overwrite")
    with pytest.raises(penstock.NotFound, match="none"):
        penstock.Runtime(size, [penstock.Path(directory / "none", size)])
    for options in ({"pinning": "x"}, {"eviction": "x"}, {"reuse_distance_max": -1}, {"reuse_distance_max": 5}):
        with pytest.raises(penstock.InvalidArgument):
            penstock.Runtime(size, **options)
    for options in ({"weight": 0.0}, {"request_max": 0}, {"request_max": 5}, {"deadline_seconds": 0.0}, {"engine": "x"}):
        with pytest.raises(penstock.InvalidArgument, match=next(iter(options))):
            penstock.Runtime(size, [penstock.Path(directory, size, **options)])
    with penstock.Runtime(0) as none, pytest.raises(penstock.BudgetTooSmall):
        none.add("a", size)


@pytest.mark.parametrize("given, argument", [
    ({"directory": "a\0b"}, "directory"), ({"directory": 3}, "directory"), ({"capacity": 1.5}, "capacity"),
    ({"capacity": "1 GiB"}, "capacity"), ({"in_flight_max": 1.0}, "in_flight_max"),
])
def test_what_is_no_path_or_no_integer_is_refused(given, argument):
    with pytest.raises(penstock.InvalidArgument, match="no path|no integer") as caught:
        penstock.Path(**{"directory": "/tmp", "capacity": size, **given})
    assert caught.value.object == argument


def test_paths_can_be_sent_to_another_process(directory):
    sent = pickle.loads(pickle.dumps(penstock.Path(directory, size, weight=0.5, engine="threads")))
    assert (sent.directory, sent.capacity) == (directory, size)
    with penstock.Runtime(size, [sent]) as runtime:
        fill(runtime.add("a", size), 1)


def test_more_leases_than_memory_are_refused_and_not_waited_for(runtime):
    tensors = [runtime.add(f"tensor {number}", size) for number in range(5)]
    leases = [tensor.lease("overwrite") for tensor in tensors[:4]]
    with pytest.raises(penstock.BudgetTooSmall, match="tensor"):
        tensors[4].lease("overwrite")
    leases.pop().end()
    tensors[4].lease("overwrite").end()


def test_another_thread_waits_without_the_gil(runtime):
    tensor = runtime.add("a", size)
    fill(tensor, 1)
    lease = tensor.lease("modify")
    done = threading.Event()

    def read():
        with tensor.lease("read") as own:
            assert memoryview(own)[0] == 2
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert not done.wait(0.1)
    np.frombuffer(lease, np.uint8)[:] = 2
    lease.end()
    thread.join(30)
    assert done.is_set()


def test_a_forked_process_refuses_it_and_ends(runtime):
    tensor = runtime.add("a", size)
    lease = tensor.lease("overwrite")
    process = os.fork()
    if process == 0:
        status = 0
        for call in (tensor.prefetch, runtime.flush, lease.end, runtime.close):
            try:
                call()
                status = 1
            except penstock.FailedState as error:
                status = status or (0 if "forked" in str(error) else 2)
        try:
            memoryview(lease)
            status = 3
        except BufferError:
            pass
        del lease, tensor, runtime
        gc.collect()
        os._exit(status)
    assert os.waitpid(process, 0)[1] == 0
    lease.end()


def test_a_report_has_what_was_moved(runtime, directory):
    tensor = runtime.add("a", size, write_behind=True)
    fill(tensor, 1)
    runtime.flush()
    text = runtime.report_text(elapsed=2.0)
    assert text.startswith("rank 0, 2.00 s, callers waited ") and text.endswith("\n")
    assert f"{directory}  " in text and "1.0 MiB" in text
    report = json.loads(runtime.report_text("json"))
    assert report["elapsed"] == 0 and report["drives"][0]["written"] == size
    none = {"read": 0, "written": 0}
    moved = {"read": 0, "predicted_read": 0, "written": size, "predicted_written": 0}
    assert report["traffic"] == [{"purpose": "scratch", **moved, "step": none, "predicted_step": None}]
    metrics = runtime.report_text("prometheus", rank=3)
    assert f'penstock_drive_written_bytes_total{{rank="3",path="0",directory="{directory}"}} {size}\n' in metrics
    for wrong in ({"format": "xml"}, {"elapsed": -1.0}, {"elapsed": float("nan")}, {"rank": -1}):
        with pytest.raises(penstock.InvalidArgument):
            runtime.report_text(**wrong)


def test_a_report_replaces_a_file(runtime, tmp_path):
    file = tmp_path / "report.prom"
    file.write_text("not a report")
    with pytest.raises(penstock.AlreadyExists, match="another file would be lost"):
        runtime.save_report(file, "prometheus", rank=3)
    assert file.read_text() == "not a report"
    file.write_text("")
    runtime.save_report(file, "prometheus", rank=3)
    assert 'penstock_steps_total{rank="3"} 0\n' in file.read_text() and list(tmp_path.iterdir()) == [file]
    runtime.save_report(os.fsencode(file), "text", elapsed=2.0)
    assert file.read_text().startswith("rank 0, 2.00 s")
    for name, begin in (("of.prom", "# HELP"), ("of.json", "{"), ("of.txt", "rank 0"), ("json", "rank 0")):
        runtime.save_report(tmp_path / name, elapsed=2.0)
        assert (tmp_path / name).read_text().startswith(begin)
    with pytest.raises(penstock.InvalidArgument):
        runtime.save_report(file, "xml")
    with pytest.raises(penstock.NotFound, match="none"):
        runtime.save_report(tmp_path / "none" / "report")
    with pytest.raises(penstock.InvalidArgument, match="no path"):
        runtime.save_report(3)
    assert file.read_text().startswith("rank 0, 2.00 s")


def test_a_path_says_what_is_known_of_its_drive(directory):
    path = penstock.Path(directory, capacity=1 << 20, limit=3e9, endurance=600 * 10**12)
    path = pickle.loads(pickle.dumps(path))
    with penstock.Runtime(1 << 20, [path]) as made:
        drive, = json.loads(made.report_text("json"))["drives"]
    assert drive["limit"] == 3e9 and drive["endurance"] == 600 * 10**12
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(penstock.InvalidArgument, match="limit"):
            penstock.Runtime(1 << 20, [penstock.Path(directory, capacity=1 << 20, limit=wrong)])


def test_a_timeline_has_reads_writes_and_waits(directory, tmp_path):
    file = tmp_path / "timeline.json"
    with penstock.Runtime(size, [penstock.Path(directory, capacity=4 * size)], timeline_file=file) as made:
        tensors = [made.add(name, size) for name in ("a", "b")]
        for tensor in tensors:
            fill(tensor, 1)
        tensors[0].read(bytearray(size))
    events = json.loads(file.read_text())
    spans = {(event["cat"], event["name"]) for event in events if event["ph"] == "X"}
    assert {("writes of path 0", "a"), ("reads of path 0", "a"), ("waits", "loads")} <= spans
    with pytest.raises(penstock.NotFound, match="timeline_file"):
        penstock.Runtime(size, timeline_file=tmp_path / "none" / "timeline.json")


def stored_tensors(runtime, count, nbytes=size):
    tensors = [runtime.add(f"tensor {number}", nbytes, write_behind=True) for number in range(count)]
    for number, tensor in enumerate(tensors):
        fill(tensor, number)
    runtime.flush()
    return tensors


def read(tensor):
    with tensor.lease("read") as lease:
        return memoryview(lease)[0]


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_limited_while_it_is_used(directory):
    page = 2 << 20  # what the operating system gets
    with penstock.Runtime(32 * page, [penstock.Path(directory, 64 * page)]) as runtime:
        tensors = stored_tensors(runtime, 32, page)
        before = resident_bytes()
        assert runtime.limit_memory(4 * page) == 4 * page
        assert [read(tensor) for tensor in tensors] == list(range(32))
        assert resident_bytes() < before - 24 * page
        assert runtime.memory_least() == page
        with pytest.raises(penstock.BudgetTooSmall, match="tensor 0"):
            runtime.limit_memory(page - 4096)
        with pytest.raises(penstock.FailedState, match="limit"):
            runtime.park()
        assert runtime.limit_memory(page) == page
        for wrong in (-1, 1.5, 2**64):
            with pytest.raises(penstock.InvalidArgument, match="most"):
                runtime.limit_memory(wrong)
        assert runtime.limit_memory(2**64 - 1) == 32 * page


def test_a_saved_trace_predicts_the_first_round(directory, tmp_path):
    file = tmp_path / "train.trace"
    path = penstock.Path(directory, 16 * size)
    with penstock.Runtime(4 * size, [path]) as recorded:
        tensors = stored_tensors(recorded, 8)
        recorded.begin_trace()
        for tensor in tensors:
            read(tensor)
        recorded.save_trace(os.fsencode(file), label="train")
    assert file.read_text().startswith("penstock-trace 1\nlabel train\n")
    with penstock.Runtime(4 * size, [path]) as runtime:
        tensors = stored_tensors(runtime, 8)
        assert runtime.report()["bytes_read"] == 0  # the last four are in memory
        runtime.predict_trace(file)
        read(tensors[0])
        while runtime.report()["bytes_read"] < 4 * size:  # three are read without a request
            time.sleep(0.001)


def test_a_trace_of_another_model_is_refused(runtime, tmp_path):
    file = tmp_path / "a.trace"
    tensor = runtime.add("layer 7", size)
    with pytest.raises(penstock.FailedState, match="begin_trace"):
        runtime.save_trace(file)
    runtime.begin_trace()
    fill(tensor, 1)
    for label in ("two\nlines", "a\0b"):
        with pytest.raises(penstock.InvalidArgument, match="label"):
            runtime.save_trace(file, label)
    runtime.save_trace(file)  # it was still recorded
    runtime.predict_trace(file)
    with penstock.Runtime(size) as other:
        with pytest.raises(penstock.InvalidArgument, match="layer 7"):
            other.predict_trace(file)
        other.add("layer 7", 4096, in_memory=True)
        with pytest.raises(penstock.InvalidArgument, match="1.0 MiB.*4.0 KiB"):
            other.predict_trace(file)
    with pytest.raises(penstock.NotFound, match="none"):
        runtime.predict_trace(tmp_path / "none")
    with pytest.raises(penstock.InvalidArgument, match="no path"):
        runtime.predict_trace(3)
    file.write_text("no trace")
    with pytest.raises(penstock.InvalidArgument, match="a.trace"):
        runtime.predict_trace(file)


@pytest.mark.parametrize("home", [False, True])
def test_a_tensor_whose_home_is_memory_stays(runtime, home):
    tensor = runtime.add("home", size, home_in_memory=home)
    fill(tensor, 7)
    stored_tensors(runtime, 8)
    before = runtime.report()["bytes_read"]
    assert read(tensor) == 7
    assert runtime.report()["bytes_read"] - before == (0 if home else size)
    with pytest.raises(penstock.InvalidArgument, match="in_memory and options.home_in_memory"):
        runtime.add("both", size, in_memory=True, home_in_memory=True)
