"""Writes what a ZeRO checkpoint holds as states that penstock import reads."""
import collections
import json
import pathlib

import torch
from read_checkpoint import Checkpoint
from safetensors_files import Refused, SafetensorsWriter, TORCH_NAMES, new_directory, read_names


def our_names(checkpoint, rename):
    names = {name: rename.get(name, name) for name in checkpoint.names}
    for name in names.values():
        if "." not in name.strip("."):
            raise Refused(f"parameter {name}: Penstock's names are \"unit.parameter\"; give it one with --rename")
    unknown = sorted(set(rename) - set(names))
    if unknown:
        raise Refused(f"--rename: the checkpoint has no parameter {unknown[0]}")
    if len(set(names.values())) < len(names):
        raise Refused("--rename: two parameters get one name")
    return names


def layout_of(checkpoint, names):
    """A unit for each module, and group numbers: those of the checkpoint, and a last one of frozen parameters."""
    units = collections.OrderedDict()
    for name in checkpoint.names:
        unit, _, parameter = names[name].rpartition(".")
        shape = checkpoint.shape(name)
        entry = {"name": parameter, **({"shape": shape} if shape else {"count": 1})}
        group = checkpoint.places[name][0] if name in checkpoint.places else len(checkpoint.groups)
        if group:
            entry["group"] = group
        units.setdefault(unit, {"name": unit, "parameters": []})["parameters"].append(entry)
    for name, owner in (checkpoint.models[0].get("shared_params") or {}).items():
        unit, parameter = names[owner].rpartition(".")[::2]
        user = name.rpartition(".")[0] or name
        if user != unit:
            shared = units.setdefault(user, {"name": user, "parameters": []}).setdefault("shared", [])
            shared.append({"unit": unit, "parameter": parameter})
    return {"units": list(units.values())}


def write_buffers(model, path):
    buffers = {name: model["module"][name].contiguous() for name in model["buffer_names"] if name in model["module"]}
    if not buffers:
        return
    writer = SafetensorsWriter(path, [
        (name, TORCH_NAMES[tensor.dtype], list(tensor.shape)) for name, tensor in buffers.items()], {})
    for tensor in buffers.values():
        writer.write(tensor.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy())
    writer.close()


def to_penstock(arguments):
    checkpoint = Checkpoint(arguments.checkpoint, arguments.tag)
    names = our_names(checkpoint, read_names(arguments.rename))
    groups = checkpoint.group_settings()
    if checkpoint.frozen:
        groups.append({"frozen": True, "use_muon": False, "learning_rate_factor": 1.0})
    optimizer = checkpoint.optimizer()
    model = checkpoint.models[0]
    metadata = {
        "format": "pt",
        "penstock.version": "1",
        "penstock.layout": json.dumps(layout_of(checkpoint, names)),
        "penstock.groups": json.dumps(groups),
        "penstock.optimizer": optimizer,
        "penstock.step": str(checkpoint.step()),
        "penstock.loss_scaler": json.dumps(checkpoint.loss_scaler()),
    }
    kinds = [kind for kind in ("master", "first_moment", "second_moment") if not (kind == "second_moment" and optimizer == "lion")]
    wanted = [(name, kind) for name in checkpoint.names
              for kind in (["master"] if name in checkpoint.frozen else kinds)]
    with new_directory(pathlib.Path(arguments.out)) as out:
        writer = SafetensorsWriter(out / "states.safetensors", [
            (f"{kind}.{names[name]}", "F32", checkpoint.shape(name) or [1]) for name, kind in wanted], metadata)
        for name, kind in wanted:
            for piece in checkpoint.values(name, kind):
                writer.write(piece)
        writer.close()
        write_buffers(model, out / "buffers.safetensors")
    print(f"ZeRO-{checkpoint.stage}, {checkpoint.world} ranks, step {checkpoint.step()}: {len(checkpoint.names)} "
          f"parameters in {arguments.out}/states.safetensors")
