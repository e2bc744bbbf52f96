"""A DeepSpeed script whose optimizer is on a drive. With --penstock it has one line more, which serves DeepSpeed's file,
Adam and pinned-memory operations by Penstock: nothing is compiled, and a fault of a file is an error that names it.

    DS_ACCELERATOR=cpu python deepspeed_nvme.py --path /nvme [--penstock]
"""

import argparse
import os

import deepspeed
import torch

configuration = {
    "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01}},
    "zero_optimization": {"stage": 3, "sub_group_size": 1_100_000,
                          "offload_optimizer": {"device": "nvme", "pin_memory": False, "buffer_count": 5}},
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--path", required=True, help="a directory on the drive")
    arguments.add_argument("--penstock", action="store_true")
    arguments.add_argument("--steps", type=int, default=5)
    options = arguments.parse_args()
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"),
                        ("MASTER_PORT", "29501")):
        os.environ.setdefault(name, value)

    if options.penstock:
        import penstock.deepspeed
        penstock.deepspeed.install()

    configuration["zero_optimization"]["offload_optimizer"]["nvme_path"] = options.path
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration)
    for step in range(options.steps):
        torch.manual_seed(step)
        loss = engine(torch.randn(4, 1024, dtype=torch.bfloat16)).float().square().mean()
        engine.backward(loss)
        engine.step()
        print(f"step {step + 1}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
