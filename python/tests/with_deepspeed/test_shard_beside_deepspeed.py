"""penstock.torch.shard and DeepSpeed's ZeRO-3 train one model under one configuration."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("deepspeed")

# Trains some steps with both blocks on `device`, and prints the losses.
script = """
import json, os, sys
name, device, path, port = sys.argv[1:]
import torch
torch.manual_seed(0)
layer = lambda: torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
model = torch.nn.Sequential(layer(), layer(), torch.nn.Linear(128, 128))
place = {"device": device, "nvme_path": path, "buffer_count": 12}
config = {
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
    "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 2e-3, "warmup_num_steps": 4, "total_num_steps": 40}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": place, "offload_optimizer": place}}
if name == "penstock":
    import penstock.torch
    engine = penstock.torch.shard(model, config)
else:
    os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    import penstock.deepspeed
    penstock.deepspeed.install()  # no compiler is needed
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
losses = []
for micro_batch in range(40):
    values = torch.randn(4, 8, 128, generator=torch.Generator().manual_seed(micro_batch % 8)).bfloat16()
    loss = (engine(values).float() - values.float().roll(1, 1)).square().mean()
    losses.append(loss.item())
    engine.backward(loss)
    engine.step()
print("LOSSES " + json.dumps(losses))
"""


def losses(name, device, directory):
    done = subprocess.run([sys.executable, "-c", script, name, device, str(directory), str(20000 + os.getpid() % 10000)],
                          capture_output=True, text=True, timeout=300, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOSSES ")]
    assert lines, done.stdout + done.stderr
    return json.loads(lines[0][7:])


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_the_losses_are_equal_within_the_rounding_of_bfloat16(directory, device):
    ours, theirs = losses("penstock", device, directory), losses("deepspeed", device, directory)
    assert ours == pytest.approx(theirs, rel=5e-3)
    assert ours[-1] < 0.9 * ours[0]
