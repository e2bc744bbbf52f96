"""One process of a DeepSpeed run that is saved, or of one that goes on from there: see checkpoint.py.

ZeRO-3 on the CPU accelerator, one rank. Prints a line of JSON: the seconds of saving and loading, the bytes of the
checkpoint, and a digest of all parameters after the last step.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import time

from turns import claim_output

answers = claim_output()  # before anything can print

import deepspeed
import torch


def configuration(options, width):
    offload = {"device": options.device, "pin_memory": False}
    if options.device == "nvme":
        (options.path / "swap").mkdir(parents=True, exist_ok=True)
        offload |= {"nvme_path": str(options.path / "swap"), "buffer_count": 12}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "sub_group_size": width * width, "offload_optimizer": offload,
                              "stage3_param_persistence_threshold": 0},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }


def sync(directory):
    """Makes the files durable; torch.save() does not."""
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", choices=["cpu", "nvme"], required=True)
    arguments.add_argument("--path", type=pathlib.Path, required=True)
    arguments.add_argument("--layers", type=int, required=True)
    arguments.add_argument("--layer-parameters", type=int, required=True)
    arguments.add_argument("--load", action="store_true")
    arguments.add_argument("--steps", type=int, default=3)
    arguments.add_argument("--more", type=int, default=2)
    options = arguments.parse_args()

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(29500 + os.getpid() % 1000)}
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(1 if options.load else 0)  # what is loaded must not be there before
    width = math.isqrt(options.layer_parameters)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(options.layers)])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=configuration(options, width))
    checkpoints = options.path / "checkpoints"

    def train(steps):
        for _ in range(steps):
            generator = torch.Generator().manual_seed(engine.global_steps)
            batch = torch.rand(1, width, generator=generator, dtype=torch.float32).to(torch.bfloat16)
            engine.backward(engine(batch).float().pow(2).mean())
            engine.step()

    answer = {"save": 0.0, "load": 0.0, "bytes": 0}
    began = time.perf_counter()
    if options.load:
        path, _ = engine.load_checkpoint(str(checkpoints))
        answer["load"] = time.perf_counter() - began
        assert path is not None
    else:
        train(options.steps)
        began = time.perf_counter()
        engine.save_checkpoint(str(checkpoints))
        answer["returned"] = time.perf_counter() - began
        sync(checkpoints)
        answer["save"] = time.perf_counter() - began
        answer["bytes"] = sum(file.stat().st_size for file in checkpoints.rglob("*") if file.is_file())
    train(options.more)
    digest = hashlib.sha256()
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            digest.update(parameter.detach().view(torch.int16).numpy().tobytes())
    answer["digest"] = digest.hexdigest()
    print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # without the destructors of threads that gloo has left


main()
