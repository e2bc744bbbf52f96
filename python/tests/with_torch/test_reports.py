"""Reports, monitors and timelines of penstock.torch.shard, as the tools for which they are made read them."""

import csv
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")

import penstock  # noqa: E402
import penstock.torch  # noqa: E402

lr, steps, batch = 0.25, 3, 4


def train(model, losses=lambda model, loss, step: None):
    for step in range(1, steps + 1):
        loss = model(torch.ones(batch, 16)).square().mean()
        model.backward(loss)
        assert model.step()
        losses(model, loss.item(), step)


def shard(directory, **more):
    offload = {"device": "nvme", "nvme_path": str(directory)}
    torch.manual_seed(0)
    module = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
    return penstock.torch.shard(module, {
        "train_micro_batch_size_per_gpu": batch, "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload}, **more})


def test_tensorboards_reader_reads_the_events(directory, tmp_path):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = shard(directory, tensorboard={"enabled": True, "output_path": str(tmp_path), "job_name": "job"})
    told = []

    def tell(model, loss, step):
        told.append(loss)
        model.write_events([("Train/Samples/train_loss", loss, step * batch)])
    train(model, tell)
    read = tensorboard.EventAccumulator(str(tmp_path / "job"))
    read.Reload()
    rates = read.Scalars("Train/Samples/lr")
    assert [(one.step, one.value) for one in rates] == [(step * batch, lr) for step in range(1, steps + 1)]
    assert [one.value for one in read.Scalars("Train/Samples/train_loss")] == pytest.approx(told, rel=1e-6)
    assert sum(one.value for one in read.Scalars("Penstock/written_bytes")) > 0
    assert rates[0].wall_time > 1.7e9 and "Train/Samples/loss_scale" not in read.Tags()["scalars"]
    model.close()


def test_a_changed_byte_is_seen_by_tensorboards_reader(directory, tmp_path):
    """So that what the reader accepts has the right checksums."""
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    errors = pytest.importorskip("tensorboard.compat.tensorflow_stub.errors")
    model = shard(directory, tensorboard={"enabled": True, "output_path": str(tmp_path)})
    train(model)
    model.close()
    file, = (tmp_path / "DeepSpeedJobName").iterdir()
    events = list(tensorboard.RawEventFileLoader(str(file)).Load())
    assert len(events) == 1 + steps * 6
    written = bytearray(file.read_bytes())
    written[len(written) // 2] ^= 1
    file.write_bytes(written)
    try:
        assert len(list(tensorboard.RawEventFileLoader(str(file)).Load())) < len(events)
    except errors.DataLossError:
        pass


def test_csv_files_are_those_of_deepspeed(directory, tmp_path, capfd):
    model = shard(directory, csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"},
                  wall_clock_breakdown=True)
    train(model)
    model.close()
    with open(tmp_path / "job" / "Train_Samples_lr.csv", newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["step", "lr"]] + [[str(step * batch), str(lr)] for step in range(1, steps + 1)]
    timers = {path.stem for path in (tmp_path / "job").glob("Train_Samples_elapsed_time_ms_*.csv")}
    assert {name.removeprefix("Train_Samples_elapsed_time_ms_") for name in timers} == {
        "forward", "backward", "backward_inner", "backward_allreduce", "step"}
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("time (ms) | fwd: ")]
    assert len(lines) == steps and all(line.count(" | ") == 5 for line in lines)


def test_events_of_the_trainer_are_checked(directory, tmp_path):
    model = shard(directory, csv_monitor={"enabled": True, "output_path": str(tmp_path)})
    for wrong in ([("", 1.0, 1)], [("a\nb", 1.0, 1)]):
        with pytest.raises(penstock.InvalidArgument):
            model.write_events(wrong)
    for wrong in ([("a", 1.0)], [("a", 1.0, -1)], [(3, 1.0, 1)]):
        with pytest.raises((TypeError, ValueError)):
            model.write_events(wrong)
    assert not list((tmp_path / "DeepSpeedJobName").iterdir())
    model.close()


def test_a_report_has_waits_limits_and_what_would_help(directory, tmp_path):
    model = shard(directory, penstock={"path_weights": [1], "path_limits": [3e9], "path_endurance": [600e12],
                                       "report_file": str(tmp_path / "report.json"),
                                       "timeline_file": str(tmp_path / "timeline.json")})
    train(model)
    report = json.loads(model.report_text("json", with_changes=True))
    drive, = report["drives"]
    assert report["steps"] == steps and report["elapsed"] > 0 and drive["limit"] == 3e9 and drive["endurance"] == 600 * 10**12
    assert sum(one["time"] for one in report["stalls"]) == pytest.approx(report["stalled"], abs=1e-6)
    assert "a step takes" in report["changes_note"]
    assert json.loads(model.report_text("json"))["changes_note"] == ""
    model.save_report(tmp_path / "own.prom", "prometheus")
    assert f'penstock_steps_total{{rank="0"}} {steps}\n' in (tmp_path / "own.prom").read_text()
    model.close()
    with pytest.raises(penstock.FailedState):
        model.save_report(tmp_path / "own.prom")
    assert json.loads((tmp_path / "report.json").read_text())["steps"] == steps
    tracks = {event["cat"] for event in json.loads((tmp_path / "timeline.json").read_text()) if event["ph"] == "X"}
    assert {"gathers", "reductions", "updates by the CPU", "writes of path 0"} <= tracks


def test_memory_is_limited_while_it_trains(directory):
    digests = []
    for limits in (False, True):
        model = shard(directory, penstock={"path_weights": [1], "host_budget": 64 << 20})
        train(model)
        if limits:
            least = model.memory_least()
            with pytest.raises(penstock.BudgetTooSmall):
                model.limit_memory(least - 4096)
            model.limit_memory(least)
            train(model)
            assert model.limit_memory(least) < least + (4 << 20)
        else:
            train(model)
        digests.append(model.digest())
        model.close()
    assert digests[0] == digests[1]
    with pytest.raises(penstock.FailedState):
        model.limit_memory(0)


def test_a_step_has_a_trace(directory, tmp_path):
    model = shard(directory, penstock={"path_weights": [1]})
    train(model)
    files = [tmp_path / name for name in ("one", "same")]
    for file in files:
        model.begin_trace()
        loss = model(torch.ones(batch, 16)).square().mean()
        with pytest.raises(penstock.FailedState, match="step"):
            model.save_trace(file)
        model.backward(loss)
        model.step()
        model.save_trace(file, label="train")
    text = files[0].read_text()
    assert text.startswith("penstock-trace 1\nlabel train\n") and "optimizer_tiles" in text
    assert text == files[1].read_text()
    with pytest.raises(penstock.FailedState, match="begin_trace"):
        model.save_trace(files[0])
    model.close()


def test_a_run_ends_at_its_cap_and_its_values_stay(directory):
    model = shard(directory, penstock={"path_weights": [1], "path_endurance": [1 << 20], "endurance_cap": 0.5})
    with pytest.raises(penstock.NoSpace, match="endurance_cap"):
        for _ in range(100):
            train(model)
    assert model.completed_steps > steps
    with model.gathered() as module:
        assert all(parameter.isfinite().all() for parameter in module.parameters())
    model.close()


def test_a_first_step_that_the_cap_refuses_ends_and_the_run_can_be_committed(directory, tmp_path):
    model = shard(tmp_path, penstock={"path_weights": [1], "path_endurance": [1 << 20], "endurance_cap": 0,
                                      "durable_directory": str(directory)})
    before = model.digest()
    for _ in range(2):
        with pytest.raises(penstock.NoSpace, match="endurance_cap"):
            train(model)
    assert model.completed_steps == 0 and model.digest() == before
    model.commit()
    model.close()


def test_messages_tell_of_a_drive_that_is_worn(directory):
    model = shard(directory, penstock={"path_weights": [1], "path_endurance": [1 << 16], "endurance_warning": 0.1})
    assert model.take_messages() == []
    train(model)
    messages = model.take_messages()  # of the warning, and of the endurance that is used up
    assert messages and all("penstock.path_endurance" in message for message in messages)
    assert model.take_messages() == []
    model.close()
    with pytest.raises(penstock.FailedState):
        model.take_messages()


@pytest.mark.parametrize("events, named", [
    ("abc", "events"), (3, "events"), (["abc"], r"events\[0\]"), ([("a", 1)], r"events\[0\]"),
    ([("good", 1, 1), (3, 1, 1)], r"events\[1\].name"), ([("a\0b", 1, 1)], r"events\[0\].name"),
    ([("", 1, 1)], r"events\[0\].name"), ([("n" * 300, 1, 1)], r"events\[0\].name"),
    ([("a", "much", 1)], r"events\[0\].value"), ([("a", 10**400, 1)], r"events\[0\].value"),
    ([("a", 1, 3.0)], r"events\[0\].place"), ([("a", 1, -5)], r"events\[0\].place"),
    ([("a", 1, 1 << 63)], r"events\[0\].place"), ([("a", 1, None)], r"events\[0\].place")])
def test_events_that_are_none_are_refused_and_the_monitor_goes_on(directory, tmp_path, events, named):
    model = shard(directory, csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "job"})
    with pytest.raises(penstock.InvalidArgument, match=named):
        model.write_events(events)
    assert not list((tmp_path / "job").iterdir())
    model.write_events([("a/b", torch.tensor(1.5), torch.tensor(7))])
    assert (tmp_path / "job" / "a_b.csv").read_text().splitlines() == ["step,b", "7,1.5"]
    model.close()


def test_a_monitor_that_cannot_be_made_is_an_error(directory, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(penstock.Error, match="csv_monitor"):
        shard(directory, csv_monitor={"enabled": True, "output_path": str(tmp_path / "file")})
    assert pathlib.Path(tmp_path / "file").read_text() == ""
