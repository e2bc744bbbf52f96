"""penstock.torch.AdamW in the trainers of Hugging Face."""

import pytest

torch = pytest.importorskip("torch")

import penstock.torch  # noqa: E402
from penstock.torch import placement  # noqa: E402


def test_trainer_goes_on_where_it_was_interrupted(directory, monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(placement, "_small_bytes", 1024)
    mine = (penstock.torch.AdamW, {"lr": 1e-3, "path": directory, "tile_elements": 16384})

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            control.should_training_stop = state.global_step == 5

    def run(name, optimizer, stops=False, resumes=False):
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=100, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=0,
                                         eos_token_id=0)
        model = transformers.GPT2LMHeadModel(config)
        tokens = [torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(i)) for i in range(64)]
        arguments = transformers.TrainingArguments(
            str(directory / name), max_steps=10, per_device_train_batch_size=4, save_steps=5, logging_steps=1,
            report_to=[], use_cpu=True, learning_rate=1e-3, seed=1, disable_tqdm=True)
        trainer = transformers.Trainer(model, arguments, optimizer_cls_and_kwargs=optimizer,
                                       train_dataset=[{"input_ids": one, "labels": one} for one in tokens],
                                       callbacks=[Stop()] if stops else [])
        trainer.train(resume_from_checkpoint=resumes)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], model
    losses, straight = run("straight", mine)
    expected, _ = run("torch", (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 1e-2}))
    assert losses == pytest.approx(expected, rel=1e-4)
    run("interrupted", mine, stops=True)
    again, resumed = run("interrupted", mine, resumes=True)
    assert again == losses
    for one, other in zip(resumed.parameters(), straight.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_prepares_it(precision, directory):
    accelerate = pytest.importorskip("accelerate")
    results = []
    for make in (penstock.torch.AdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        optimizer = make(model.parameters(), lr=1e-2)
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
        model, optimizer, scheduler = accelerator.prepare(
            model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2))
        for step in range(8):
            with accelerator.accumulate(model):
                torch.manual_seed(step)
                accelerator.backward(model(torch.randn(4, 8)).square().mean())
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step == 3:
                accelerator.save_state(str(directory / "saved"), safe_serialization=False)
                accelerator.load_state(str(directory / "saved"))
        results.append(accelerator.unwrap_model(model))
        accelerate.state.AcceleratorState._reset_state(True)
    for one, other in zip(*(model.parameters() for model in results)):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
