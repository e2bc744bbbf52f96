"""DeepSpeed's engine with the operations of penstock.deepspeed.install()."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

# Trains a few steps with the optimizer on `device`, and prints the losses.
script = """
import json, os, sys
os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=sys.argv[3], TORCH_EXTENSIONS_DIR=sys.argv[2] + "/none", CXX="/nonexistent/c++")
import penstock.deepspeed
penstock.deepspeed.install()
penstock.deepspeed.install()
import torch, deepspeed
from deepspeed.ops.op_builder import AsyncIOBuilder, CPUAdamBuilder
assert "penstock" in repr(AsyncIOBuilder().load()) and "penstock" in repr(CPUAdamBuilder().load())
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # of DeepSpeed's collectives on CPUs, which needs a compiler
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(768, 768) for _ in range(3)])
offload = {"device": sys.argv[1], "pin_memory": False, "nvme_path": sys.argv[2], "buffer_count": 5}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "sub_group_size": 600_000, "offload_optimizer": offload, "stage3_param_persistence_threshold": 0}})
if len(sys.argv) > 4:
    exec(sys.argv[4])
losses = []
for step in range(5):
    torch.manual_seed(step)
    loss = engine(torch.randn(8, 768, dtype=torch.bfloat16)).float().square().mean()
    losses.append(loss.item())
    engine.backward(loss)
    engine.step()
print("LOSSES " + json.dumps(losses))
"""


def train(device, path, *words):
    return subprocess.run([sys.executable, "-c", script, device, str(path), str(20000 + os.getpid() % 10000), *words],
                          capture_output=True, text=True, timeout=300, check=False)


def losses_of(done):
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOSSES ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[0][7:])


def test_an_engine_trains_with_them_and_without_a_compiler(directory):
    on_host = losses_of(train("cpu", directory))
    assert list(directory.rglob("*.swp")) == []
    assert losses_of(train("nvme", directory)) == on_host
    assert list(directory.rglob("*.swp")) != []
    assert on_host[-1] < on_host[0]


def test_a_swap_file_that_was_cut_is_an_error_that_names_it(directory):
    cut = """
real = engine.step
def step():
    real()
    import pathlib
    for file in pathlib.Path(sys.argv[2]).rglob("*.swp"):
        if file.stat().st_size > 4096:
            os.truncate(file, 4096)
engine.step = step
"""
    done = train("nvme", directory, cut)
    assert done.returncode != 0
    assert "penstock.errors.Truncated" in done.stderr, done.stderr
    assert ".swp" in done.stderr and str(directory) in done.stderr
