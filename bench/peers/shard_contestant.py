"""One training step of a stack of transformer layers per line of standard input: see shard.py."""

import argparse
import os
import tempfile
import time

from turns import claim_output, resident_peak, serve

answers = claim_output()  # before anything can print

import torch


class Model(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.layers = torch.nn.ModuleList([
            torch.nn.TransformerEncoderLayer(options.width, 8, 4 * options.width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(options.layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def configuration(options, path):
    place = {"device": options.device, "nvme_path": path} if options.device == "nvme" else {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3, "stage3_param_persistence_threshold": 0, "sub_group_size": 1 << 22,
            "offload_param": {**place, "buffer_count": 40, "buffer_size": 1 << 23},
            "offload_optimizer": {**place, "buffer_count": 12, **({"pipeline_read": True, "pipeline_write": True}
                                                                  if options.device == "nvme" else {})}},
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=["penstock", "deepspeed"])
    arguments.add_argument("--device", choices=["cpu", "nvme"], required=True)
    arguments.add_argument("--path", required=True)
    arguments.add_argument("--layers", type=int, required=True)
    arguments.add_argument("--width", type=int, required=True)
    arguments.add_argument("--batch", type=int, required=True)
    arguments.add_argument("--tokens", type=int, required=True)
    arguments.add_argument("--threads", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    model = Model(options)
    directory = tempfile.TemporaryDirectory(dir=options.path)
    config = configuration(options, directory.name)
    if options.name == "penstock":
        import penstock.torch
        engine = penstock.torch.shard(model, config)
    else:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(29500 + os.getpid() % 1000)}
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo")
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randn(options.batch, options.tokens, options.width, generator=generator).bfloat16() for _ in range(4)]
    turn = 0

    def measure():
        nonlocal turn
        batch = batches[turn % len(batches)]
        turn += 1
        began = time.perf_counter()
        loss = (engine(batch).float() - batch.float().roll(1, 1)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        return {"loss": loss.item(), "step": time.perf_counter() - began, "resident_peak": resident_peak()}

    serve(answers, measure)
    directory.cleanup()


main()
