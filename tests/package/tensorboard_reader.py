"""Trains with the example and both monitors, and compares what TensorBoard's own reader finds with the CSV files. A changed
byte must be found by it, so that what it accepts has the right checksums.

usage: tensorboard_reader.py GPT_TRAIN PYTHON; exits with 77 where PYTHON has no TensorBoard.
"""

import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

steps, batch = 3, 2

read_events = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.tensorflow_stub import errors
read = event_accumulator.EventAccumulator(sys.argv[1])
read.Reload()
scalars = {tag: [[one.step, one.value] for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
try:
    whole = len(list(RawEventFileLoader(sys.argv[2]).Load()))
except errors.DataLossError:
    whole = -1
json.dump({"scalars": scalars, "changed": whole}, sys.stdout)
"""


def rows_of(file):
    with file.open(newline="") as stream:
        (_, tag), *rows = csv.reader(stream)
    return tag, [[int(step), float(value)] for step, value in rows]


def main(gpt_train, python):
    if not pathlib.Path(python).exists() or \
            subprocess.run([python, "-c", "import tensorboard"], capture_output=True, check=False).returncode != 0:
        print("TensorBoard is not installed")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        monitor = {"enabled": True, "output_path": str(folder), "job_name": "events"}
        config = folder / "ds_config.json"
        config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": batch, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.25}},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "tensorboard": monitor, "csv_monitor": {**monitor, "job_name": "rows"}}))
        subprocess.run([gpt_train, "--config", config, "--layers", "1", "--width", "32", "--heads", "1", "--context", "16",
                        "--ranks", "1", "--steps", str(steps), "--text", __file__], check=True, stdout=subprocess.DEVNULL)
        file, = (folder / "events").iterdir()
        changed = folder / "changed"
        written = bytearray(file.read_bytes())
        written[len(written) // 2] ^= 1
        changed.write_bytes(written)
        read = json.loads(subprocess.run([python, "-c", read_events, file.parent, changed], capture_output=True, text=True,
                                         check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).stdout)
        rows = dict(rows_of(one) for one in (folder / "rows").iterdir())
        scalars = {tag.rsplit("/", 1)[-1]: values for tag, values in read["scalars"].items()}  # as DeepSpeed names CSV files
        assert set(scalars) == set(rows) and len(rows) > 5, (sorted(scalars), sorted(rows))
        assert [step for step, _ in rows["lr"]] == [batch * step for step in range(1, steps + 1)], rows
        events = 1  # the version
        for tag, wanted in rows.items():
            got = scalars[tag]
            events += len(got)
            assert [step for step, _ in got] == [step for step, _ in wanted], tag
            for (_, value), (_, text) in zip(got, wanted):
                assert abs(value - text) <= 1e-6 * abs(text), (tag, value, text)
        assert read["changed"] < events, (read["changed"], events)
        print(f"{len(scalars)} series of {steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
