"""Trains a small model with the real DeepSpeed on CPUs; a rank of scripts/test-deepspeed-checkpoint.

  train.py OPTIONS.json

Options: config, steps, and perhaps groups (of parameters, with and without weight decay), frozen, load, save; values is
a file for the masters and moments of each parameter after the last step, from the live engine.
"""
import json
import os
import pathlib
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file

options = json.loads(pathlib.Path(sys.argv[1]).read_text())
rank = int(os.environ["RANK"])
get_accelerator().is_fp16_supported = lambda: True  # PyTorch's CPU operations are
torch.manual_seed(1 if "load" in options else 0)  # what is loaded must not be there before


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.Embedding(13, 10)
        self.fc1 = torch.nn.Linear(10, 7)
        self.ln = torch.nn.LayerNorm(7)
        self.fc2 = torch.nn.Linear(7, 3, bias=False)
        self.register_buffer("scale", torch.tensor([0.5, 1.5, 2.0]))

    def forward(self, tokens):
        out = self.fc2(self.ln(self.fc1(self.emb(tokens)))) * self.scale.to(self.fc2.weight.dtype)
        return out.float().pow(2).mean()


model = Model()
if options.get("frozen"):
    model.fc1.weight.requires_grad_(False)
trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
parameters = [parameter for _, parameter in trained]
if options.get("groups"):
    parameters = [{"params": [p for p in parameters if p.dim() > 1]},
                  {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0, "lr": 0.005}]
engine = deepspeed.initialize(model=model, model_parameters=parameters, config=options["config"])[0]
if "load" in options:
    path, _ = engine.load_checkpoint(options["load"])
    assert path is not None
first = engine.global_steps
for step in range(first, first + options["steps"]):
    generator = torch.Generator().manual_seed(100 * step + rank)
    loss = engine(torch.randint(0, 13, (4, 5), generator=generator))
    engine.backward(loss)
    engine.step()
if "save" in options:
    engine.save_checkpoint(options["save"])
values = {}
for name, parameter in trained:
    values[f"master.{name}"] = safe_get_full_fp32_param(parameter).detach().float().clone()
    if options.get("groups"):
        continue  # of a second group, DeepSpeed 0.19.8 finds no moments at stages 1 and 2
    for kind, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
        values[f"{kind}.{name}"] = safe_get_full_optimizer_state(parameter, key).detach().float().clone()
if rank == 0:
    scale = torch.tensor([float(engine.optimizer.loss_scaler.cur_scale)])
    save_file({**values, "scale": scale}, options["values"])
# Without the destructors of threads that gloo has left, which abort the process now and then.
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
