"""Fine-tunes a small causal language model with Hugging Face's Trainer. The optimizer's states are on a drive, within a
budget of host memory; run it again after it was interrupted, and it goes on.

    python finetune.py --output out --path /nvme --steps 20
"""

import argparse
import pathlib

import penstock.torch
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

text = pathlib.Path(__file__).read_bytes()  # its own source, by bytes
window = 64


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, arguments, state, control, **_):
        control.should_training_stop = state.global_step >= self.step


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", required=True, help="where checkpoints are kept")
    arguments.add_argument("--path", required=True, help="a directory on the drive that has the states")
    arguments.add_argument("--budget", type=int, default=16 << 20, help="bytes of host memory for states")
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--stop-after", type=int, help="end early, as if interrupted")
    options = arguments.parse_args()

    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=window, n_embd=256, n_layer=4, n_head=4,
                                       bos_token_id=0, eos_token_id=0))
    samples = [torch.tensor(list(text[start:start + window])) for start in range(0, len(text) - window, 16)]
    trainer = Trainer(
        model,
        TrainingArguments(options.output, max_steps=options.steps, per_device_train_batch_size=8, save_steps=5,
                          logging_steps=1, learning_rate=1e-3, report_to=[], use_cpu=not torch.cuda.is_available(),
                          disable_tqdm=True, seed=0),
        train_dataset=[{"input_ids": sample, "labels": sample} for sample in samples],
        optimizer_cls_and_kwargs=(penstock.torch.AdamW, {"lr": 1e-3, "path": options.path, "budget": options.budget,
                                                         "tile_elements": 1 << 18}))
    if options.stop_after:
        trainer.add_callback(StopAfter(options.stop_after))
    last = get_last_checkpoint(options.output) if pathlib.Path(options.output).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    report = trainer.optimizer.optimizer.report()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"step {trainer.state.global_step}: loss {losses[0]:.3f} -> {losses[-1]:.3f}; states read "
          f"{report['bytes_read'] / 1e6:.0f} MB, written {report['bytes_written'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
