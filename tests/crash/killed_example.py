#!/usr/bin/env python3
"""The example is killed in a durable run, again and again, and started again with the same command: it ends with the
digest of a run that was never stopped.

killed_example.py --train gpt_train
"""
import argparse
import os
import re
import signal
import subprocess
import tempfile

STEPS = 6
SHAPE = f"--layers 2 --width 64 --heads 4 --context 32 --ranks 2 --steps {STEPS}".split()
CONFIG = """{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "scheduler": {"type": "WarmupLR"},
 "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "."},
                       "offload_optimizer": {"device": "nvme", "nvme_path": "."}}%s}"""


def digest_in(text):
    found = re.findall(r"digest of all master weights\s+(\w+)", text)
    assert len(found) == 1, f"{len(found)} digests, not 1:\n{text}"
    return found[0]


def train(command):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert ended.returncode == 0, f"{command} ends with status {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def kill_after(command, step):
    """Kills the run once it has printed a step. Returns what it has printed."""
    text = ""
    with subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process:
        for line in process.stdout:
            text += line
            if f"step {step}/{STEPS}" in line:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.wait(60)
    assert process.returncode == -signal.SIGKILL, f"status {process.returncode}:\n{text}"
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    program = parser.parse_args().train
    with tempfile.TemporaryDirectory(dir=".") as folder:
        plain, durable = os.path.join(folder, "plain.json"), os.path.join(folder, "durable.json")
        with open(plain, "w", encoding="utf-8") as file:
            file.write(CONFIG % "")
        with open(durable, "w", encoding="utf-8") as file:
            file.write(CONFIG % f', "penstock": {{"durable_directory": "{os.path.join(folder, "run")}"}}')
        expected = digest_in(train([program, *SHAPE, "--config", plain]))
        command = [program, *SHAPE, "--config", durable, "--commit-every", "1"]
        for step in (2, 4, 5):
            kill_after(command, step)
        text = train(command)
        continued = int(re.search(r"continues after step (\d+)", text).group(1))
        assert 4 <= continued < STEPS, f"it continues after step {continued}"
        assert digest_in(text) == expected, f"digest {digest_in(text)}, of a run that was not stopped {expected}"
        text = train(command)
        assert f"continues after step {STEPS}" in text and digest_in(text) == expected, text
    print(f"killed three times, continued after step {continued}: {expected}")
    return 0


raise SystemExit(main())
