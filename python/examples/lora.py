"""Trains LoRA adapters of a language model whose own weights are frozen and live on a drive: peft, Hugging Face's model,
and penstock.torch.shard. Run it again, and it goes on from its last commit.

    python lora.py --path /nvme --steps 20
"""

import argparse
import pathlib

import penstock.torch
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))  # its own source, by bytes
window = 64


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--path", required=True, help="a directory on the drive, for the weights and the commits")
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--stop-after", type=int, help="end early, as if interrupted")
    options = arguments.parse_args()

    set_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=window, n_embd=256, n_layer=4, n_head=4, bos_token_id=0,
                                      eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, target_modules=["c_attn", "c_fc", "c_proj"]))
    drive = {"device": "nvme", "nvme_path": options.path}
    model = penstock.torch.shard(model, {
        "train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0}},
        "zero_optimization": {"stage": 3, "offload_param": drive, "offload_optimizer": drive},
        "penstock": {"durable_directory": f"{options.path}/lora"}}, whole=(GPT2Block,))
    losses = []
    for step in range(model.completed_steps, options.stop_after or options.steps):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - window, (8,), generator=generator)
        tokens = torch.stack([text[start:start + window] for start in starts])
        loss = model(input_ids=tokens, labels=tokens).loss
        model.backward(loss)
        model.step()
        losses.append(loss.item())
        if (step + 1) % 5 == 0:
            model.commit()
    report = model.report()
    progress = f"loss {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else "all steps were done before"
    print(f"step {model.completed_steps}: {progress}; {report['nvme_bytes'] / 1e6:.1f} MB on the "
          f"drive, digest {model.digest()}")


if __name__ == "__main__":
    main()
