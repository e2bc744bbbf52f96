"""The programs of python/examples, a copy of which is beside this folder."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

examples = pathlib.Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.skipif(not examples.exists(), reason="there is no copy of python/examples")


def run(name, *words):
    done = subprocess.run([sys.executable, examples / name, *map(str, words)], capture_output=True, text=True, timeout=500,
                          check=False, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fine_tuning_goes_on_where_it_was_interrupted(directory):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    straight = run("finetune.py", "--output", directory / "straight", "--path", directory)
    interrupted = run("finetune.py", "--output", directory / "again", "--path", directory, "--stop-after", 10)
    resumed = run("finetune.py", "--output", directory / "again", "--path", directory)
    assert "step 10:" in interrupted
    assert [line for line in straight.splitlines() if line.startswith("step 20:")][0].split(";")[0] == \
        [line for line in resumed.splitlines() if line.startswith("step 20:")][0].split(";")[0]
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)", straight).groups())
    assert last < 0.8 * first


def test_a_deepspeed_script_has_one_line_more(directory):
    pytest.importorskip("deepspeed")
    with_penstock = re.findall(r"loss ([0-9.]+)", run("deepspeed_nvme.py", "--path", directory, "--penstock"))
    assert len(with_penstock) == 5
    without = re.findall(r"loss ([0-9.]+)", run("deepspeed_nvme.py", "--path", directory))
    assert [float(loss) for loss in with_penstock] == pytest.approx([float(loss) for loss in without], rel=0.02)


@pytest.mark.parametrize("network, steps, share", [("cifar10", 500, 0.5), ("alexnet", 8, 0.99)])
def test_the_networks_of_the_tutorials_learn_under_their_configurations(network, steps, share):
    pytest.importorskip("torch")
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)",
                                       run("classify_images.py", network, "--steps", steps)).groups())
    assert last < share * first


def test_adapters_of_a_frozen_model_on_a_drive_go_on_where_they_were_interrupted(directory):
    pytest.importorskip("peft")
    pytest.importorskip("torch")
    for name in ("straight", "again"):
        (directory / name).mkdir()
    straight = run("lora.py", "--path", directory / "straight")
    interrupted = run("lora.py", "--path", directory / "again", "--stop-after", 10)
    resumed = run("lora.py", "--path", directory / "again")
    assert "step 10:" in interrupted and "step 20:" in resumed
    once_more = run("lora.py", "--path", directory / "again")
    assert "step 20: all steps were done before" in once_more and once_more.split()[-1] == resumed.split()[-1]
    ends = [re.search(r"-> ([0-9.]+);.*digest ([0-9a-f]{32})", text).groups() for text in (straight, resumed)]
    assert ends[0] == ends[1]
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)", straight).groups())
    assert last < 0.9 * first
