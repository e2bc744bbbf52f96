"""The parts of the GPU run that train."""
import json
import re
import shutil
import statistics
import time
import typing

import phase_floor
from session import Failed

ENDED_BY_SIGTERM = 128 + 15


def program_command(session, program, arguments, config=None):
    return [session.bundle.program(program), "--config", config or session.bundle.data("ds_config.json"), "--text",
            session.bundle.data("text.txt"), *arguments]


def training_command(session, arguments, config=None):
    return program_command(session, "gpt_train", ["--nvme-path", session.scratch, *arguments], config)


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


def check_report(session, arguments):
    """Fails where what gpt_train reports is not what the figures are made of."""
    report = session.scratch / "report.json"
    session.succeed(training_command(session, ["--json", report, "--ranks", 1, *arguments]))
    try:
        phase_floor.device_memory(phase_floor.read(report))
    except (KeyError, TypeError) as error:
        raise Failed(f"the report of gpt_train lacks what the figures need: {error!r}") from error


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
    rate: float  # at which the loss falls in the first steps, which are all there are: larger models need lower ones


ONE_BILLION = Model("1b", 1.05e9, 16384, 1, 8, 5e-6)
ONE_BILLION_PLAIN = Model("1b", 1.05e9, 8192, 1, 8, 5e-6)
SMALLER_PLAIN = Model("124m", 0.13e9, 1024, 8, 12, 1e-4)  # for a device on which that does not fit
ONE_BILLION_LONG = Model("1b", 1.05e9, 65536, 1, 5, 5e-6)
ONE_BILLION_FROM_DISK = Model("1b", 1.05e9, 16384, 1, 5, 5e-6)
SEVEN_BILLION = Model("7b", 7.07e9, 1024, 4, 6, 1e-6)
SMALL = Model("30m", 0.03e9, 128, 2, 4, 3e-4)
FP32_BYTES = 2 + 12  # of parameter and state on disk, an element
SPLIT_Q8_BYTES = 2 + 4.51  # of parameter and state on disk, an element
SEVEN_BILLION_DEVICE_BYTES, SEVEN_BILLION_DEVICE_SECONDS = 64 << 30, 110  # of a run with everything on the device
ON_DEVICE_BYTES = 20  # an element at most: parameter, gradient and fp32 state, and what the engine gathers
OVERHEAD_MAX = 0.02  # of the engine with everything on the device, to the same loop on plain buffers
TURNS_MIN, TURNS_MAX = 2, 5
RUN_SPARE_SECONDS = 15  # for a step and the digest, after a run is asked to end


def configuration(model, device, penstock, **offload_optimizer):
    """The text of a ds_config.json with states and parameters on `device`; the command names the disk's directory."""
    offload = {"device": device, **({"nvme_path": "."} if device == "nvme" else {})}
    return json.dumps({
        "train_micro_batch_size_per_gpu": model.sequences, "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": model.rate, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": {**offload, **offload_optimizer}},
        "penstock": penstock}, indent=1)


def model_arguments(model, device):
    return [*device, "--preset", model.preset, "--context", model.context, "--steps", model.steps,
            "--checkpoint-activations"]


def write_configuration(session, text):
    file = session.scratch / "config.json"
    file.write_text(text)
    return file


def run_until(session, command, stop_after):
    """Runs a training, which is ended after the step that it is in after `stop_after` seconds."""
    output = session.run(command, stop_after=stop_after)
    if output.status not in (0, ENDED_BY_SIGTERM):
        raise Failed(f"{command[0].name} ended with {output.status}: {output.error()}")


def losses_of(program, report):
    """The losses of the steps. A training that has diverged fails the part: nothing that it computed means anything."""
    losses = [step["loss"] for step in report["steps"]]
    if None in losses:
        raise Failed(f"the loss of step {losses.index(None) + 1} of {program} is not finite")
    return losses


def measure(session, model, text, device=("--cuda",), spare_seconds=30):
    """Trains with a trace, and returns the figures of its steps. A slow training is ended after the step that it is in
    `spare_seconds` before the part's time is over."""
    trace, report = session.scratch / "trace.json", session.scratch / "report.json"
    command = training_command(
        session, ["--trace", trace, "--json", report, "--ranks", 1, *model_arguments(model, device)],
        write_configuration(session, text))
    run_until(session, command, session.seconds_left() - spare_seconds)
    trained = phase_floor.read(report)
    losses = losses_of("gpt_train", trained)
    try:
        figures = phase_floor.step_figures(phase_floor.read(trace), trained)
    except phase_floor.TraceError as error:
        raise Failed(str(error)) from error
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


def in_host_memory(session, model, spare_seconds):
    figures = measure(session, model, configuration(model, "cpu", {}), spare_seconds=spare_seconds)
    return in_words(figures), figures


def one_billion(session):
    return in_host_memory(session, ONE_BILLION, spare_seconds=30)


def one_billion_long(session):
    return in_host_memory(session, ONE_BILLION_LONG, spare_seconds=60)  # a step may take that long


def one_billion_streamed(session):
    """The GPU updates all states, which pass through it. The rate counts what is copied in each direction: states and
    gradients to the device, states and parameters to the host."""
    figures = measure(session, ONE_BILLION, configuration(ONE_BILLION, "cpu", {}, ratio=0))
    copied = (12 + 2) * figures["report"]["parameters"]
    rate = copied / figures["sweep"] / 1e9
    return (f"{in_words(figures)}; the sweep copies {copied / 1e9:.1f} GB to the device and as many back in "
            f"{figures['sweep']:.2f} s, {rate:.1f} GB/s each way"), {**figures, "sweep_gb_per_s_each_way": rate}


def states_on_disk(model, report):
    """Returns the bytes that a step read and wrote. Fails the part where they are too few for states on disk."""
    moved = [statistics.mean(step[name] for step in report["steps"][1:-1]) for name in ("read_bytes", "written_bytes")]
    if not min(moved) > model.parameters:
        raise Failed(f"the steps read {moved[0]:.0f} bytes and wrote {moved[1]:.0f}: the states were not on disk")
    return moved


def mixed_limit(session):
    """Bytes a second that the disk moves now, as many read as written."""
    figures = session.succeed_json([session.bundle.program("nvme_swap"), "--path", session.scratch, "--operation", "mixed",
                                    "--rounds", 3, "--file-size", "384MiB", "--json"], 60)
    return figures["figures"][0]["gb_per_s"]["median"] * 1e9


def one_billion_from_disk(session):
    """The GPU updates all states, which are on NVMe and pass through host memory to it and back. The disk's limit is the
    mean of what it is before and after."""
    check_disk(session, ONE_BILLION_FROM_DISK.parameters * FP32_BYTES + (1 << 30))
    small = same_bits(session, {}, ratio=0)
    in_three_tiers = same_bits(session, {"device_states": "128MiB"})
    if in_three_tiers != small:
        raise Failed(f"the digests of the small model differ: {small} with all states on disk, {in_three_tiers} with a "
                     "part of them on the GPU")
    # With more host memory the states would stay there.
    text = configuration(ONE_BILLION_FROM_DISK, "nvme", {"host_budget": "8GiB", "device_budget": "16GiB"}, ratio=0)
    limits = [mixed_limit(session)]
    figures = measure(session, ONE_BILLION_FROM_DISK, text)
    limits.append(mixed_limit(session))
    read, written = states_on_disk(ONE_BILLION_FROM_DISK, figures["report"])
    rate, mixed = (read + written) / figures["sweep"], statistics.mean(limits)
    return (f"{in_words(figures)}; a step reads {read / 1e9:.1f} GB and writes {written / 1e9:.1f}, "
            f"{rate / 1e9:.2f} GB/s of its sweep, {rate / mixed:.2f} of the disk's mixed limit ("
            f"{' before, '.join(f'{limit / 1e9:.2f}' for limit in limits)} after); digest "
            f"{figures['report']['digest']}; small: digests equal on disk, in three tiers and in memory"), {
                **figures, "disk_bytes_per_second": rate, "disk_limits": limits, "to_disk_limit": rate / mixed, "small_digest": small}


def one_billion_on_device(session):
    figures = measure(session, ONE_BILLION, configuration(ONE_BILLION, "none", {}))
    kernels = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in figures["kernels"].items())
    return (f"{in_words(figures)}; step / (forward + backward) {figures['to_compute']:.3f}; the library's kernels in a "
            f"step: {kernels}"), figures


def device_memory_bytes(session):
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    return int(session.succeed(command, 30).out.split()[0]) << 20


def report_of(session, program, model, config, device, stop_after):
    """What `program` reports of a training with everything on the device."""
    report = session.scratch / f"{program}.json"
    report.unlink(missing_ok=True)
    arguments = ["--json", report, *model_arguments(model, device)]
    command = (training_command(session, ["--ranks", 1, *arguments], config) if program == "gpt_train"
               else program_command(session, program, arguments, config))
    run_until(session, command, stop_after)
    trained = phase_floor.read(report)
    if not trained["median_step_seconds"] > 0:
        raise Failed(f"{program} trained {len(trained['steps'])} steps, and the figures need 3: the first and the last "
                     "do not count")
    return trained


def in_turns(session, model, device):
    """Trains with the engine and on plain buffers in turns, as many as fit into the part's time. Yields the reports."""
    config = write_configuration(session, configuration(model, "none", {}))
    programs, longest = ["gpt_train", "gpt_plain"], 0.0
    for turn in range(TURNS_MAX):
        if turn >= TURNS_MIN and session.seconds_left() < 1.2 * longest + 2 * RUN_SPARE_SECONDS:
            return
        began, reports = time.monotonic(), {}
        for number, program in enumerate(programs):
            runs_left = max(2 * (TURNS_MIN - turn), 2) - number
            reports[program] = report_of(session, program, model, config, device,
                                         session.seconds_left() / runs_left - RUN_SPARE_SECONDS)
        yield reports
        longest = max(longest, time.monotonic() - began)
        programs.reverse()  # what drifts with the time counts for both


def check_same_losses(session, reports):
    """Of two trainings, by their names."""
    one, other = reports
    losses = [losses_of(name, report) for name, report in reports.items()]
    for number, pair in enumerate(zip(*losses), start=1):
        if pair[0] != pair[1]:
            session.fail(f"the losses of step {number} differ: {pair[0]!r} of {one}, {pair[1]!r} of {other}")
            return


def against_plain_buffers(session, device=("--cuda",)):
    """The engine with everything on the device against the same loop on plain buffers."""
    memory = device_memory_bytes(session)
    fits = memory >= ONE_BILLION_PLAIN.parameters * ON_DEVICE_BYTES + (8 << 30)
    model, turns = ONE_BILLION_PLAIN if fits else SMALLER_PLAIN, []
    for reports in in_turns(session, model, device):
        check_same_losses(session, reports)
        turns.append({program: report["median_step_seconds"] for program, report in reports.items()})
    ratios = [turn["gpt_train"] / turn["gpt_plain"] for turn in turns]
    overhead = statistics.median(ratios) - 1
    engine, plain = (statistics.median(turn[program] for turn in turns) for program in ("gpt_train", "gpt_plain"))
    figures = {"preset": model.preset, "turns": turns, "ratios": ratios, "overhead": overhead,
               "overhead_max": OVERHEAD_MAX, "within_bar": overhead <= OVERHEAD_MAX,
               "engine_seconds": engine, "plain_seconds": plain}
    return (f"engine's overhead {overhead:+.1%}, {'within' if overhead <= OVERHEAD_MAX else 'ABOVE'} the bar of "
            f"{OVERHEAD_MAX:.0%} ({min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%} in {len(turns)} turns): step "
            f"{engine:.3f} s, {plain:.3f} on plain buffers, preset {model.preset}, the same losses"), figures


def check_disk(session, needed):
    free = shutil.disk_usage(session.scratch).free
    if free < needed:
        raise Failed(f"the disk has too little space: {needed:.0f} bytes are needed in {session.scratch}, "
                     f"and {free} are free")


def same_bits(session, penstock, device=("--cuda",), **offload_optimizer):
    """Trains a small model on disk with the least memory, then in memory, and compares the digests."""
    text = configuration(SMALL, "nvme", penstock, **offload_optimizer)
    command = training_command(session, ["--check", "--ranks", 1, *model_arguments(SMALL, device)],
                               write_configuration(session, text))
    return checked_digest(session.succeed(command, 90).out)


def seven_billion(session):
    check_disk(session, SEVEN_BILLION.parameters * SPLIT_Q8_BYTES + (1 << 30))
    digest = same_bits(session, {"state_format": "split_q8"})
    # With 64 GiB of host memory all tiles would be kept there.
    text = configuration(SEVEN_BILLION, "nvme",
                         {"state_format": "split_q8", "host_budget": "32GiB", "device_budget": "16GiB"})
    figures = measure(session, SEVEN_BILLION, text, spare_seconds=140)  # the digest reads all states
    if not figures["last_loss"] < figures["first_loss"]:
        session.fail(f"the loss did not fall: {figures['first_loss']:.3f} to {figures['last_loss']:.3f}")
    read, written = states_on_disk(SEVEN_BILLION, figures["report"])
    compared = compare_with_device_memory(session, figures["report"])
    return (f"{in_words(figures)}; a step reads {read / 1e9:.1f} GB and writes {written / 1e9:.1f}; {compared}; "
            "small: digests equal on disk and in memory"), {**figures, "small_digest": digest}


def compare_with_device_memory(session, on_disk):
    """Trains the same with everything on the device, where it fits and time is left, and compares the results."""
    fits = device_memory_bytes(session) >= SEVEN_BILLION_DEVICE_BYTES
    if not fits or session.seconds_left() < SEVEN_BILLION_DEVICE_SECONDS:
        return (f"not compared with a run on the device: that needs {SEVEN_BILLION_DEVICE_BYTES >> 30} GiB there, and "
                f"{SEVEN_BILLION_DEVICE_SECONDS} s")
    config = write_configuration(session, configuration(SEVEN_BILLION, "none", {"state_format": "split_q8"}))
    on_device = report_of(session, "gpt_train", SEVEN_BILLION, config, ("--cuda",), session.seconds_left() - 10)
    check_same_losses(session, {"the run on disk": on_disk, "the run on the device": on_device})
    if len(on_device["steps"]) == len(on_disk["steps"]) and on_device["digest"] != on_disk["digest"]:
        session.fail(f"the digests differ: {on_disk['digest']} on disk, {on_device['digest']} on the device")
    return "the same losses as on the device"
