"""The parts of the GPU run that train."""
import json
import re
import shutil
import statistics
import typing

import phase_floor
from session import Failed

ENDED_BY_SIGTERM = 128 + 15


def training_command(session, arguments, config=None):
    return [session.bundle.program("gpt_train"), "--config", config or session.bundle.data("ds_config.json"), "--text",
            session.bundle.data("text.txt"), "--nvme-path", session.scratch, *arguments]


def checked_digest(out):
    checked = re.search(r"^check passed: on disk (\w+), in memory (\w+)$", out, re.M)
    if not checked:
        raise Failed("gpt_train did not print that its check passed")
    return checked[1]


def train(session, arguments):
    """Trains on disk and in memory, and compares the digests."""
    out = session.succeed(training_command(session, ["--check", *arguments])).out
    digest = checked_digest(out)
    rates = [float(rate) for rate in re.findall(r"([\d.]+) k tok/s", out)]
    if not rates:
        raise Failed("gpt_train printed no rates")
    update = re.search(r"^optimizer updates moved .*", out, re.M)
    half = len(rates) // 2  # the first half trained with its states on disk
    return {"digest": digest, "on_disk_k_tokens_per_s": statistics.median(rates[:half]),
            "in_memory_k_tokens_per_s": statistics.median(rates[half:]), "update": update[0] if update else None}


def demo(session):
    figures = train(session, ["--cuda"])
    return (f"digests equal; {figures['on_disk_k_tokens_per_s']:.2f} k tok/s on disk, "
            f"{figures['in_memory_k_tokens_per_s']:.2f} in memory; {figures['update']}"), figures


class Model(typing.NamedTuple):
    preset: str
    parameters: float  # upper bound
    context: int
    sequences: int  # of a micro-batch
    steps: int


ONE_BILLION = Model("1b", 1.05e9, 16384, 1, 8)
ONE_BILLION_LONG = Model("1b", 1.05e9, 65536, 1, 5)
SEVEN_BILLION = Model("7b", 7.07e9, 1024, 4, 6)
SMALL = Model("30m", 0.03e9, 128, 2, 4)
SPLIT_Q8_BYTES = 2 + 4.51  # of parameter and state on disk, an element


def configuration(model, device, rate, penstock):
    """The text of a ds_config.json with states and parameters on `device`; the command names the disk's directory."""
    offload = {"device": device, **({"nvme_path": "."} if device == "nvme" else {})}
    return json.dumps({
        "train_micro_batch_size_per_gpu": model.sequences, "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
        "penstock": penstock}, indent=1)


def model_arguments(model, device):
    return [*device, "--ranks", 1, "--preset", model.preset, "--context", model.context, "--steps", model.steps,
            "--checkpoint-activations"]


def write_configuration(session, text):
    file = session.scratch / "config.json"
    file.write_text(text)
    return file


def measure(session, model, text, device=("--cuda",), spare_seconds=30):
    """Trains with a trace, and returns the figures of its steps. A slow training is ended after the step that it is in
    `spare_seconds` before the part's time is over."""
    trace, report = session.scratch / "trace.json", session.scratch / "report.json"
    command = training_command(session, ["--trace", trace, "--json", report, *model_arguments(model, device)],
                               write_configuration(session, text))
    output = session.run(command, stop_after=session.seconds_left() - spare_seconds)
    if output.status not in (0, ENDED_BY_SIGTERM):
        raise Failed(f"gpt_train ended with {output.status}: {output.error()}")
    try:
        trained = phase_floor.read(report)
        figures = phase_floor.step_figures(phase_floor.read(trace), trained)
    except phase_floor.TraceError as error:
        raise Failed(str(error)) from error
    losses = [step["loss"] for step in trained["steps"]]
    return {**figures, "first_loss": losses[0], "last_loss": losses[-1], "losses": losses,
            "planned_steps": model.steps, "device_memory": phase_floor.device_memory(trained), "report": trained}


def in_words(figures):
    stalls = ", ".join(f"{cause} {figures[f'wait_for_{cause}'] / figures['seconds']:.1%}"
                       for cause in phase_floor.WAITS.values())
    memory = figures["device_memory"]
    rate, seconds, floor = figures["tokens_per_s"] / 1e3, figures["seconds"], figures["to_floor"]
    taken, ledger = memory["taken_bytes"] / 2**30, memory["ledger_bytes"] / 2**30
    return (f"{rate:.2f} k tok/s, step {seconds:.2f} s, {floor:.2f} of its floor, "
            f"compute busy {figures['compute_busy']:.1%} (waits: {stalls}), device memory {taken:.2f} GiB, "
            f"{memory['to_budget']:.3f} of budget and activations (ledger's peak {ledger:.2f} GiB), "
            f"loss {figures['first_loss']:.3f} to {figures['last_loss']:.3f}, "
            f"{len(figures['losses'])} of {figures['planned_steps']} steps")


def in_host_memory(session, model):
    figures = measure(session, model, configuration(model, "cpu", 3e-4, {}))
    return in_words(figures), figures


def one_billion(session):
    return in_host_memory(session, ONE_BILLION)


def one_billion_long(session):
    return in_host_memory(session, ONE_BILLION_LONG)


def one_billion_on_device(session):
    figures = measure(session, ONE_BILLION, configuration(ONE_BILLION, "none", 3e-4, {}))
    return f"{in_words(figures)}; step / (forward + backward) {figures['to_compute']:.3f}", figures


def check_disk(session, needed):
    free = shutil.disk_usage(session.scratch).free
    if free < needed:
        raise Failed(f"the disk has too little space: {needed:.0f} bytes are needed in {session.scratch}, "
                     f"and {free} are free")


def same_bits(session, device=("--cuda",)):
    """Trains a small model in split_q8 on disk with the least memory, then in memory, and compares the digests."""
    text = configuration(SMALL, "nvme", 3e-4, {"state_format": "split_q8"})
    command = training_command(session, ["--check", *model_arguments(SMALL, device)],
                               write_configuration(session, text))
    return checked_digest(session.succeed(command, 90).out)


def seven_billion(session):
    check_disk(session, SEVEN_BILLION.parameters * SPLIT_Q8_BYTES + (1 << 30))
    digest = same_bits(session)
    text = configuration(SEVEN_BILLION, "nvme", 1e-4,
                         {"state_format": "split_q8", "host_budget": "64GiB", "device_budget": "16GiB"})
    figures = measure(session, SEVEN_BILLION, text, spare_seconds=120)  # the digest reads all states
    if not figures["last_loss"] < figures["first_loss"]:
        session.fail(f"the loss did not fall: {figures['first_loss']:.3f} to {figures['last_loss']:.3f}")
    return f"{in_words(figures)}; small: digests equal on disk and in memory", {**figures, "small_digest": digest}
