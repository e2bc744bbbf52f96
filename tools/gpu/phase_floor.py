"""What the steps of a gpt_train took, and the least that their phases allow, from the trace and the report of one run.

The floor of a step is the sum over its micro-batches of

    max(forward, copies to the device, sweep) + max(backward, copies to the device, copies to the host)

Forward and backward are the time that the compute stream spent in them. Copies are the time in which at least one was
under way in this direction during the phase. The sweep, the update of all states, runs beside a step's first forward.
"""
import json

WAITS = {"wait for parameters": "parameters", "wait for room for gradients": "gradients",
         "wait for checkpoint": "checkpoints", "wait for step": "step"}


class TraceError(Exception):
    """The trace does not hold what the figures need; the message says what."""


def end_of(event):
    return event["ts"] + event["dur"]


def union_length(spans, begin, end):
    """How much of begin..end the spans cover."""
    covered, reached = 0.0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            covered += last - first
            reached = last
    return covered


def busy(events, phase):
    return sum(event["dur"] for event in events if event["name"].startswith(phase))


def micro_batches(compute):
    """Yields the events of each micro-batch, from those of the compute stream in order. It ends with the wait for the
    step; the training's last micro-batch has no such wait, and is left out."""
    events = []
    for event in compute:
        events.append(event)
        if event["name"].startswith("wait for step"):
            if len(events) > 1:
                yield events
            events = []


def figures_of_micro_batch(events, copies, sweep):
    begin, end = events[0]["ts"], end_of(events[-1])
    forwards = [end_of(event) for event in events if event["name"].startswith("forward")]
    if not forwards:
        raise TraceError("a micro-batch has no forward")
    turn = max(forwards)
    spans = {direction: [(event["ts"], end_of(event)) for event in copies if event["name"].startswith(direction)]
             for direction in ("copy to device", "copy to host")}
    figures = {
        "seconds": end - begin, "forward": busy(events, "forward"), "backward": busy(events, "backward"),
        "sweep": sweep,
        "forward_to_device": union_length(spans["copy to device"], begin, turn),
        "backward_to_device": union_length(spans["copy to device"], turn, end),
        "backward_to_host": union_length(spans["copy to host"], turn, end),
        **{f"wait_for_{cause}": busy(events, name) for name, cause in WAITS.items()}}
    figures["floor"] = (max(figures["forward"], figures["forward_to_device"], sweep)
                        + max(figures["backward"], figures["backward_to_device"], figures["backward_to_host"]))
    return figures


def step_figures(trace, report):
    """Returns the means of all steps but the first and the last, in seconds, of a training of one rank; for the kernels
    that the library launches, the sum of their times in a step, by name.

    `trace` and `report` are what gpt_train wrote for --trace and --json."""
    tracks = {event["args"]["name"]: event["tid"] for event in trace["traceEvents"] if event["ph"] == "M"}
    events = sorted((event for event in trace["traceEvents"] if event["ph"] == "X"), key=lambda event: event["ts"])
    if report["ranks"] != 1 or "compute" not in tracks:
        raise TraceError("the figures need a trace of one rank, with its compute stream")
    compute = list(micro_batches([event for event in events if event["tid"] == tracks["compute"]]))
    copies = [event for event in events if event["cat"] == "copy"]
    count = report["micro_batches"]
    whole = [compute[i:i + count] for i in range(0, len(compute) - count + 1, count)][1:]
    if not whole:
        raise TraceError(f"{len(report['steps'])} steps were trained, and the figures need 3: the first and the last "
                         "do not count")
    sums = {}
    for number, step in enumerate(whole, start=1):
        for first, micro_batch in enumerate(step):
            sweep = report["steps"][number]["update_seconds"] * 1e6 if first == 0 else 0.0
            for name, value in figures_of_micro_batch(micro_batch, copies, sweep).items():
                sums[name] = sums.get(name, 0.0) + value
    means = {name: value / len(whole) / 1e6 for name, value in sums.items()}
    begin, end = whole[0][0][0]["ts"], end_of(whole[-1][-1][-1])
    kernels = {}
    for event in events:
        if event["cat"] == "kernel" and begin <= event["ts"] < end:
            name = event["name"].rsplit(" ", 2)[0]  # without the bytes
            kernels[name] = kernels.get(name, 0.0) + event["dur"] / len(whole) / 1e6
    compute_seconds = means["forward"] + means["backward"]
    return {**means, "kernels": kernels, "steps": len(whole), "to_floor": means["seconds"] / means["floor"],
            "to_compute": means["seconds"] / compute_seconds, "compute_busy": compute_seconds / means["seconds"],
            "tokens_per_s": report["tokens_per_step"] / means["seconds"]}


def device_memory(report):
    """What the training took on the device, beside the context, cuBLAS and its scratch, and what accounts for it: the
    budget, which is allocated at once and of which the ledger counts what is held, and the activations."""
    device = report["device"]
    ledger = sum(line["actual_bytes"] for line in report["ledger"] if line["tier"] == "device")
    taken = device["free_at_start_bytes"] - device["free_min_bytes"]
    return {"taken_bytes": taken, "ledger_bytes": ledger, "budget_bytes": device["budget_bytes"],
            "activation_bytes": device["activation_bytes"],
            "to_budget": taken / (device["budget_bytes"] + device["activation_bytes"])}


def read(file):
    return json.loads(file.read_text())
