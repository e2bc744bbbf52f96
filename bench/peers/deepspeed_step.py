"""DeepSpeed's whole optimizer step, one per line of standard input: ZeRO-3 on the CPU accelerator, one rank. See step.py.

The model is a stack of square layers and a batch is one row, so forward and backward take little time. They are not
counted, except for what backward does to the gradients. Writing them to disk counts as part of the step, which reads
them back. Copying them to host memory and summing them there is reported as gradient_accumulation.
"""

import argparse
import math
import os
import tempfile
import time

from turns import claim_output, resident_peak, serve

answers = claim_output()  # before anything can print

import deepspeed
import torch


def configuration(options, sub_group, path):
    offload = {"device": options.device, "pin_memory": False}
    if options.device == "nvme":
        offload |= {"nvme_path": path, "buffer_count": 12, "pipeline_read": options.pipelined,
                    "pipeline_write": options.pipelined}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "sub_group_size": sub_group, "offload_optimizer": offload},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }


def bytes_moved():
    """Bytes that this process has read from and written to block devices."""
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def timed(function, total):
    """`function`, which adds the time that it takes to total[0]."""
    def wrapper(*arguments, **named):
        began = time.perf_counter()
        result = function(*arguments, **named)
        total[0] += time.perf_counter() - began
        return result
    return wrapper


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", choices=["cpu", "nvme"], required=True)
    arguments.add_argument("--path", required=True)
    arguments.add_argument("--pipelined", action="store_true")
    arguments.add_argument("--layers", type=int, required=True)
    arguments.add_argument("--layer-parameters", type=int, required=True)
    arguments.add_argument("--threads", type=int, required=True)
    options = arguments.parse_args()

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(29500 + os.getpid() % 1000)}
    torch.set_num_threads(options.threads)
    deepspeed.init_distributed(dist_backend="gloo")
    width = math.isqrt(options.layer_parameters)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(options.layers)])
    directory = tempfile.TemporaryDirectory(dir=options.path)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=configuration(options, width * width, directory.name))
    del model
    partitioning, writing = [0.0], [0.0]
    engine.optimizer.partition_grads = timed(engine.optimizer.partition_grads, partitioning)
    if options.device == "nvme":
        swapper = engine.optimizer.optimizer_swapper
        swapper.swap_out_gradients = timed(swapper.swap_out_gradients, writing)
    batch = torch.ones(1, width, dtype=torch.bfloat16)

    def measure():
        partitioning[0] = writing[0] = 0.0
        before = bytes_moved()
        engine.backward(engine(batch).float().mean())
        began = time.perf_counter()
        engine.step()
        step = time.perf_counter() - began
        after = bytes_moved()
        return {"step": step + writing[0], "gradient_accumulation": partitioning[0] - writing[0],
                "read": after[0] - before[0], "written": after[1] - before[1], "resident_peak": resident_peak()}

    serve(answers, measure)
    directory.cleanup()


main()
