"""Trains the networks of DeepSpeed's tutorials on CIFAR-10, each under the tutorial's ds_config.json, by
penstock.torch.shard.

    python classify_images.py cifar10 --data ~/cifar-10-batches-py
    torchrun --nproc-per-node 2 classify_images.py alexnet

Without --data the images are made up: each class has a picture of its own, in noise.
"""

import argparse
import pathlib
import pickle

import penstock.torch
import torch
from torch import nn


def cifar10():
    """Two convolutions and three linear layers."""
    return nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def alexnet():
    """For images of 32 x 32."""
    return nn.Sequential(nn.Conv2d(3, 64, 11, 4, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
                         nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
                         nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
                         nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
                         nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2),
                         nn.Flatten(), nn.Linear(256, 10))


def images(data):
    """Images and labels, of CIFAR-10's files for Python."""
    if data is None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (4096,), generator=generator)
        pictures = torch.randn(10, 3, 32, 32, generator=generator)
        return 0.5 * pictures[labels] + torch.randn(len(labels), 3, 32, 32, generator=generator), labels
    batches = [pickle.loads(path.read_bytes(), encoding="bytes") for path in sorted(pathlib.Path(data).glob("data_batch_*"))]
    values = torch.cat([torch.from_numpy(batch[b"data"]) for batch in batches])
    return values.reshape(-1, 3, 32, 32).float() / 127.5 - 1, torch.tensor(sum((batch[b"labels"] for batch in batches), []))


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("network", choices=["cifar10", "alexnet"])
    arguments.add_argument("--data", help="the directory with CIFAR-10's data_batch_1 and so on")
    arguments.add_argument("--config", help="another ds_config.json")
    arguments.add_argument("--steps", type=int, default=100)
    options = arguments.parse_args()

    torch.manual_seed(0)
    config = options.config or pathlib.Path(__file__).with_name(f"{options.network}.json")
    model = penstock.torch.shard({"cifar10": cifar10, "alexnet": alexnet}[options.network](), config)
    values, labels = images(options.data)
    values = values.to(model.dtype)
    generator = torch.Generator().manual_seed(1 + model.rank)  # each rank has images of its own
    losses = []
    while model.completed_steps + model.report()["skipped_steps"] < options.steps:
        total = 0.0
        for _ in range(model.gradient_accumulation_steps):
            chosen = torch.randint(len(values), (model.micro_batch_size,), generator=generator)
            loss = nn.functional.cross_entropy(model(values[chosen]).float(), labels[chosen])
            model.backward(loss)
            model.step()
            total += loss.item() / model.gradient_accumulation_steps
        losses.append(total)
        if len(losses) % 10 == 0 and model.rank == 0:
            print(f"step {len(losses)}: loss {total:.3f}")
    model.eval()
    with torch.no_grad():
        right = (model(values[:512]).argmax(1) == labels[:512]).float().mean().item()
    few = max(1, len(losses) // 10)
    print(f"rank {model.rank}: loss {sum(losses[:few]) / few:.3f} -> {sum(losses[-few:]) / few:.3f}; {100 * right:.0f} % right")


if __name__ == "__main__":
    main()
