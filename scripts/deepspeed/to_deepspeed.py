"""Writes states of Penstock as a ZeRO checkpoint."""
import collections
import functools
import json
import pathlib
import sys
import types

import torch
from read_checkpoint import MOMENTS
from safetensors_files import Refused, SafetensorsReader, new_directory, read_json, read_names

DEEPSPEED_VERSION = "0.19.8"  # whose format is written


@functools.cache
def deepspeed_class(module, name):
    """A class that pickles as DeepSpeed's, without importing DeepSpeed."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


class Target:
    """What the configuration says of the checkpoint that is to be written."""

    def __init__(self, arguments):
        self.config = read_json(arguments.config)
        self.world = arguments.ranks
        if self.world < 1:
            raise Refused(f"--ranks {self.world}: wanted 1 or more")
        zero = self.config.get("zero_optimization", {})
        self.stage = int(zero.get("stage", 0))
        if self.stage not in (1, 2, 3):
            raise Refused(f"{arguments.config}: zero_optimization.stage is {self.stage}; wanted 1, 2 or 3")
        for key, least in (("parameter_alignment", 1), ("round_robin_gradients", False)):
            if self.stage < 3 and zero.get(key) not in (None, least):
                raise Refused(f"{arguments.config}: zero_optimization.{key} is not converted")
        self.sub_group_size = int(zero.get("sub_group_size", 1_000_000_000))
        enabled = lambda key: bool(self.config.get(key, {}).get("enabled"))
        self.dtype = torch.bfloat16 if enabled("bf16") else torch.float16 if enabled("fp16") else torch.float32
        self.shared = dict(pair.split("=", 1) for pair in arguments.shared)
        self.optimizer = self.config.get("optimizer", {}).get("params", {})

    def scaler(self, state):
        module = "deepspeed.runtime.fp16.loss_scaler"
        fp16 = self.config.get("fp16", {})
        if self.dtype != torch.float16 or fp16.get("loss_scale", 0) != 0:
            scaler = deepspeed_class(module, "LossScaler")()
            scaler.__dict__.update(cur_scale=state["scale"], dynamic=False)
            return scaler
        scaler = deepspeed_class(module, "DynamicLossScaler")()
        scaler.__dict__.update(
            cur_scale=state["scale"], dynamic=True, cur_iter=state["updates"], scale_factor=2.0,
            last_overflow_iter=state["last_overflow"], scale_window=fp16.get("loss_scale_window", 1000),
            min_scale=fp16.get("min_loss_scale", 1), delayed_shift=fp16.get("hysteresis", 2),
            cur_hysteresis=state["hysteresis"], consecutive_hysteresis=fp16.get("consecutive_hysteresis", False),
            raise_error_at_min_scale=True, dtype=torch.float16)
        return scaler

    def param_group(self, group, step, params):
        betas = group.get("betas") or self.optimizer.get("betas", [0.9, 0.999])
        return {"lr": self.optimizer.get("lr", 0.001) * group["learning_rate_factor"], "betas": list(betas),
                "eps": group.get("epsilon", self.optimizer.get("eps", 1e-8)),
                "weight_decay": group.get("weight_decay", self.optimizer.get("weight_decay", 0.0)),
                "bias_correction": True, "amsgrad": False, "step": step, "params": params}


class States:
    """What penstock export --states wrote, with DeepSpeed's names."""

    def __init__(self, path, rename):
        self.reader = SafetensorsReader(path)
        metadata = self.reader.metadata
        if metadata.get("penstock.version") != "1":
            raise Refused(f"{path}: it is no export of states of a Penstock that this program knows")
        self.groups = json.loads(metadata["penstock.groups"])
        self.step = int(metadata["penstock.step"])
        self.loss_scaler = json.loads(metadata["penstock.loss_scaler"])
        self.kinds = {"adam": ["master", "first_moment", "second_moment"], "lion": ["master", "first_moment"]}.get(metadata["penstock.optimizer"])
        if self.kinds is None:
            raise Refused(f"{path}: the states of {metadata['penstock.optimizer']} are not converted; "
                          "wanted those of Adam or Lion")
        theirs = {name: given for given, name in rename.items()}
        self.ours, self.members = {}, [[] for _ in self.groups]  # parameters by group
        for unit in json.loads(metadata["penstock.layout"])["units"]:
            for parameter in unit.get("parameters", []):
                name = unit["name"] + "." + parameter["name"]
                self.ours[theirs.get(name, name)] = name
                self.members[parameter.get("group", 0)].append(theirs.get(name, name))

    def shape(self, name):
        return torch.Size(self.reader.shape("master." + self.ours[name]))

    def tensor(self, name, kind):
        return self.reader.tensor(f"{kind}.{self.ours[name]}").flatten()


def sub_groups(names, states, target):
    """DeepSpeed's: parameters of a group until their slices have sub_group_size elements."""
    slices = [-(-states.shape(name).numel() // target.world) for name in names]
    if target.sub_group_size >= sum(slices):
        return [names]
    groups, size = [[]], 0
    for name, elements in zip(names, slices):
        groups[-1].append(name)
        size += elements
        if size >= target.sub_group_size:
            groups.append([])
            size = 0
    return groups if groups[-1] else groups[:-1]


def slice_of(tensor, rank, world):
    """Rank's piece of a parameter at stage 3, padded with zeros."""
    length = -(-tensor.numel() // world)
    piece = tensor[rank * length:(rank + 1) * length]
    return torch.cat([piece, piece.new_zeros(length - piece.numel())])


def optimizer_states_3(states, target, trained, rank):
    masters, state, param_groups = [], {}, []
    for number, names in trained:
        params = []
        for members in sub_groups(names, states, target):
            index = len(masters)
            flat = lambda kind: torch.cat(
                [slice_of(states.tensor(name, kind), rank, target.world) for name in members])
            masters.append(flat("master"))
            state[index] = {"step": states.step, **{MOMENTS[kind]: flat(kind) for kind in states.kinds[1:]}}
            params.append(index)
        param_groups.append(target.param_group(states.groups[number], states.step, params))
    return {"zero_stage": 3, "loss_scaler": target.scaler(states.loss_scaler),
            "dynamic_loss_scale": target.scaler(states.loss_scaler).dynamic, "overflow": False,
            "partition_count": target.world, "fp32_flat_groups": masters,
            "optimizer_state_dict": {"state": state, "param_groups": param_groups}}


def optimizer_states_12(states, target, trained, rank):
    masters, state, param_groups, paddings, mappings = [], {}, [], [], []
    fragment = deepspeed_class("deepspeed.utils.tensor_fragment", "fragment_address")
    for index, (number, names) in enumerate(trained):
        total = sum(states.shape(name).numel() for name in names)
        partition = -(-total // (2 * target.world)) * 2
        first = rank * partition
        padding = min(max(first + partition - total, 0), partition)
        mapping, offset = collections.OrderedDict(), 0
        pieces = {kind: [] for kind in states.kinds}
        for name in names:
            numel = states.shape(name).numel()
            begin, end = max(first, offset), min(first + partition, offset + numel)
            if begin < end:
                address = fragment()
                address.__dict__.update(numel=end - begin, start=begin - first)
                mapping[name] = address
                for kind in states.kinds:
                    pieces[kind].append(states.tensor(name, kind)[begin - offset:end - offset])
            offset += numel
        flat = {kind: torch.cat(pieces[kind] + [torch.zeros(padding)]) for kind in states.kinds}
        masters.append(flat["master"][:partition - padding].clone())
        state[index] = {"step": states.step, **{MOMENTS[kind]: flat[kind] for kind in states.kinds[1:]}}
        param_groups.append(target.param_group(states.groups[number], states.step, [index]))
        paddings.append(padding)
        mappings.append(mapping)
    return {"loss_scaler": target.scaler(states.loss_scaler),
            "dynamic_loss_scale": target.scaler(states.loss_scaler).dynamic, "overflow": False,
            "clip_grad": target.config.get("gradient_clipping", 1.0), "zero_stage": target.stage,
            "base_optimizer_state": {"state": state, "param_groups": param_groups},
            "single_partition_of_fp32_groups": masters, "group_paddings": paddings,
            "param_alignment_paddings": [[0] * len(names) for _, names in trained],
            "partition_count": [target.world] * len(trained), "ds_version": DEEPSPEED_VERSION,
            "param_slice_mappings": mappings}


def model_states(states, target, trained, buffers, rank):
    module, frozen_shapes, fragments = collections.OrderedDict(buffers), collections.OrderedDict(), {}
    frozen = {name for number, names in enumerate(states.members) if states.groups[number]["frozen"] for name in names}
    for name in states.ours:
        shape = states.shape(name)
        value = states.tensor(name, "master").to(target.dtype)
        if not torch.isfinite(value.float()).all():
            raise Refused(f"{name}: a master is not finite in {target.dtype}")
        module[name] = torch.empty(0, dtype=target.dtype) if target.stage == 3 else value.view(shape)
        if name in frozen:
            frozen_shapes[name] = shape
            fragments[name] = slice_of(value, rank, target.world) if target.stage == 3 else value.view(shape)
    for name, owner in target.shared.items():
        module[name] = module[owner]
    return {"module": module, "buffer_names": list(buffers), "optimizer": None,
            "param_shapes": [collections.OrderedDict((name, states.shape(name)) for name in names)
                             for _, names in trained],
            "frozen_param_shapes": frozen_shapes, "shared_params": target.shared, "frozen_param_fragments": fragments,
            "lr_scheduler": {"last_batch_iteration": states.step - 1}, "data_sampler": None, "random_ltd": None,
            "sparse_tensor_module_names": set(), "skipped_steps": 0, "global_steps": states.step,
            "global_samples": states.step * target.config.get("train_batch_size", 0),
            "dp_world_size": target.world, "mp_world_size": 1, "ds_config": target.config,
            "ds_version": DEEPSPEED_VERSION}


def to_deepspeed(arguments):
    states, target = States(arguments.states, read_names(arguments.rename)), Target(arguments)
    for user, owner in target.shared.items():
        if owner not in states.ours or user in states.ours:
            raise Refused(f"--shared {user}={owner}: wanted a name that no parameter has, and that of one")
    buffers = {}
    if arguments.buffers:
        reader = SafetensorsReader(arguments.buffers)
        buffers = {name: reader.tensor(name).clone() for name in reader.places}
    trained = [(number, names) for number, names in enumerate(states.members)
               if names and not states.groups[number]["frozen"]]
    tag = arguments.tag or f"global_step{states.step}"
    out = pathlib.Path(arguments.checkpoint)
    prefix = "bf16_" if target.dtype == torch.bfloat16 else ""
    optimizer_states = optimizer_states_3 if target.stage == 3 else optimizer_states_12
    with new_directory(out / tag) as directory:
        for rank in range(target.world):
            torch.save({"optimizer_state_dict": optimizer_states(states, target, trained, rank),
                        "ds_config": target.config, "ds_version": DEEPSPEED_VERSION},
                       directory / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if target.stage == 3 or rank == 0:
                name = f"zero_pp_rank_{rank}_mp_rank_00" if target.stage == 3 else "mp_rank_00"
                torch.save(model_states(states, target, trained, buffers, rank),
                           directory / f"{name}_model_states.pt")
    (out / "latest").write_text(tag)
    print(f"ZeRO-{target.stage}, {target.world} ranks, step {states.step}: {len(states.ours)} parameters in {out / tag}")
