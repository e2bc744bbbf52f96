"""Reads ZeRO checkpoints of DeepSpeed without making objects of the classes that they name."""
import math
import pathlib
import pickle
import re
import types

import torch
from safetensors_files import Refused

MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}


class Unknown:
    """Stands for an object of any class that a checkpoint names: its state, and the arguments it was made with."""

    def __init__(self, *arguments, **_):
        self.arguments = arguments

    def __setstate__(self, state):
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


def value_of(thing):
    """Of an enumerator or a number."""
    return thing.arguments[0] if isinstance(thing, Unknown) and getattr(thing, "arguments", ()) else thing


def rebuild_without_attributes(function, _, arguments, __):
    """Instead of torch._tensor._rebuild_from_type_v2, for a tensor that DeepSpeed has given attributes."""
    return function(*arguments)


class CheckpointUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in {("collections", "OrderedDict"), ("collections", "defaultdict"), ("builtins", "set"),
                              ("torch", "Size"), ("torch._utils", "_rebuild_tensor_v2"),
                              ("torch._utils", "_rebuild_parameter")}:
            return super().find_class(module, name)
        if module == "torch" and (name.endswith("Storage") or isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        if (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
            return rebuild_without_attributes
        return type(name, (Unknown,), {"__module__": module})


def load(path):
    reader = types.SimpleNamespace(Unpickler=CheckpointUnpickler, load=None, __name__="checkpoint")
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=reader)
    except Exception as error:  # whatever a damaged pickle leads to
        raise Refused(f"{path}: it is no checkpoint file of PyTorch: {error}") from error
    if not isinstance(loaded, dict):
        raise Refused(f"{path}: it is no checkpoint of DeepSpeed, but a {type(loaded).__name__}")
    return loaded


def natural(path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def pieces_of(parts, first, count):
    """Elements [first, first + count) of flat tensors that follow each other."""
    for part in parts:
        if count == 0:
            return
        if first >= part.numel():
            first -= part.numel()
            continue
        some = min(count, part.numel() - first)
        yield part[first:first + some]
        first, count = 0, count - some
    if count:
        raise Refused(f"{count} elements of a flat group are missing")


class Checkpoint:
    """The files of one tag. Parameters are in the order of the model."""

    def __init__(self, directory, tag):
        directory = pathlib.Path(directory)
        if tag is None:
            latest = directory / "latest"
            if not latest.exists():
                raise Refused(f"{directory}: it has no file `latest`; name the checkpoint's directory, or a --tag")
            tag = latest.read_text().strip()
        self.directory = directory / tag
        optimizers = sorted(self.directory.glob("*_optim_states.pt"), key=natural)
        models = sorted(self.directory.glob("*_model_states.pt"), key=natural)
        if not optimizers or not models:
            raise Refused(f"{self.directory}: wanted files *_optim_states.pt and *_model_states.pt of ZeRO")
        if any("mp_rank_00" not in path.name for path in optimizers):
            raise Refused(f"{self.directory}: a model-parallel run wrote it; convert it to a universal one first")
        if (self.directory / "offloaded_tensors").exists():
            raise Refused(f"{self.directory}: its states were offloaded to NVMe, and DeepSpeed saves them without "
                          "step and scale; save from a run that offloads to the CPU")
        self.ranks = [load(path)["optimizer_state_dict"] for path in optimizers]
        self.models = [load(path) for path in models]
        first = self.ranks[0]
        if "zero_stage" not in first:
            raise Refused(f"{optimizers[0]}: it is not of ZeRO")
        self.stage = int(value_of(first["zero_stage"]))
        count = first["partition_count"]
        self.world = max(count) if isinstance(count, (list, tuple)) else count
        if self.world != len(self.ranks):
            raise Refused(f"{self.directory}: wanted {self.world} files *_optim_states.pt; got {len(self.ranks)}")
        if self.stage == 3 and len(self.models) != self.world:
            raise Refused(f"{self.directory}: wanted {self.world} files *_model_states.pt; got {len(self.models)}")
        if any("expert" in path.name for path in models):
            raise Refused(f"{self.directory}: checkpoints with experts are not converted")
        key = "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"
        self.masters = [[group.detach().flatten() for group in rank[key]] for rank in self.ranks]
        key = "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"
        self.optimizers = [rank[key] for rank in self.ranks]
        if not all(isinstance(one, dict) and "state" in one for one in self.optimizers):
            raise Refused(f"{self.directory}: elastic checkpoints are not converted")
        self.find_parameters()

    def find_parameters(self):
        model = self.models[0]
        self.groups = [dict(shapes) for shapes in model["param_shapes"]]
        paddings = self.ranks[0].get("param_alignment_paddings")
        self.places = {}  # of each parameter: group, and first element in the group's flat, at stage 3 in all of a rank
        offset = 0
        for number, shapes in enumerate(self.groups):
            offset = offset if self.stage == 3 else 0
            for index, (name, shape) in enumerate(shapes.items()):
                self.places[name] = (number, offset, shape)
                numel = math.prod(shape)
                offset += -(-numel // self.world) if self.stage == 3 else numel + (
                    paddings[number][index] if paddings else 0)
        self.find_frozen()
        order = {name: at for at, name in enumerate(model["module"])}
        known = [*self.places, *self.frozen]
        self.names = sorted(known, key=lambda name: order.get(name, len(order)))

    def find_frozen(self):
        """DeepSpeed lists them at stages 2 and 3; at stage 1 they are what else the module has."""
        model = self.models[0]
        self.frozen = dict(model.get("frozen_param_shapes") or {})
        self.fragments = [dict(one.get("frozen_param_fragments") or {}) for one in self.models]
        known = {*self.places, *self.frozen, *model["buffer_names"], *(model.get("shared_params") or {})}
        for name, tensor in model["module"].items():
            if name in known:
                continue
            if self.stage == 3 or not isinstance(tensor, torch.Tensor):
                raise Refused(f"{self.directory}: the module's {name} is neither a parameter nor a buffer")
            self.frozen[name] = list(tensor.shape)
            self.fragments[0][name] = tensor

    def shape(self, name):
        return list(self.places[name][2] if name in self.places else self.frozen[name])

    def flats(self, rank, kind):
        """Of all groups; at stage 3 of all sub-groups."""
        if kind == "master":
            return self.masters[rank]
        states = self.optimizers[rank]["state"]
        flats = []
        for number, master in enumerate(self.masters[rank]):
            state = states.get(number, {})
            flats.append(state[MOMENTS[kind]].flatten() if MOMENTS[kind] in state else torch.zeros(master.numel()))
        return flats

    def values(self, name, kind):
        """The elements of a state in pieces, fp32."""
        for piece in self.pieces(name, kind):
            yield piece.detach().float().numpy()

    def pieces(self, name, kind):
        if name in self.frozen:
            yield from self.frozen_pieces(name)
            return
        group, first, shape = self.places[name]
        left = math.prod(shape)
        if self.stage < 3:
            yield from pieces_of([self.flats(rank, kind)[group] for rank in range(self.world)], first, left)
            return
        of_rank = -(-left // self.world)
        for rank in range(self.world):
            some = min(of_rank, left)
            yield from pieces_of(self.flats(rank, kind), first, some)
            left -= some

    def frozen_pieces(self, name):
        left = math.prod(self.frozen[name])
        for fragments in self.fragments if self.stage == 3 else self.fragments[:1]:
            fragment = fragments[name].flatten()
            some = min(left, fragment.numel())
            yield fragment[:some]
            left -= some

    def step(self):
        steps = set()
        for optimizer in self.optimizers:
            for state in optimizer["state"].values():
                if "step" in state:
                    steps.add(int(state["step"]))
        if not steps:
            steps = {int(group.get("step", 0)) for group in self.optimizers[0]["param_groups"]}
        if len(steps) > 1:
            raise Refused(f"{self.directory}: its parameters are at different steps, {sorted(steps)}")
        return steps.pop()

    def loss_scaler(self):
        scaler = self.ranks[0].get("loss_scaler")
        get = lambda key, default: getattr(scaler, key, default)
        return {"scale": float(get("cur_scale", 1.0)), "hysteresis": int(get("cur_hysteresis", 0)),
                "updates": int(get("cur_iter", 0)), "last_overflow": int(get("last_overflow_iter", -1))}

    def optimizer(self):
        kept = {key for state in self.optimizers[0]["state"].values() for key in state} & {"exp_avg", "exp_avg_sq"}
        return "lion" if kept == {"exp_avg"} else "adam"

    def group_settings(self):
        """Only what differs between the groups: the rest is as the configuration says."""
        groups = self.optimizers[0]["param_groups"]
        if self.stage == 3 or len(groups) < len(self.groups):
            groups = groups[:len(self.groups)]
        settings = [{"frozen": False, "use_muon": False, "learning_rate_factor": 1.0} for _ in groups]
        for key, ours in (("weight_decay", "weight_decay"), ("betas", "betas"), ("eps", "epsilon")):
            values = [list(group[key]) if key == "betas" else group.get(key) for group in groups if key in group]
            if any(value != values[0] for value in values):
                for setting, value in zip(settings, values):
                    setting[ours] = value
        rates = [float(group["lr"]) for group in groups]
        if any(rate != rates[0] for rate in rates):
            if rates[0] == 0:
                raise Refused("the learning rate of the first group is 0, so that no group's factor of it is known")
            for setting, rate in zip(settings, rates):
                setting["learning_rate_factor"] = rate / rates[0]
        return settings
