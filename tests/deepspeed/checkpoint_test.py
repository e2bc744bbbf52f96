"""Converts checkpoints of the real DeepSpeed to Penstock and back; see scripts/test-deepspeed-checkpoint.

  checkpoint_test.py ROOT PENSTOCK [WORDS...]

With words, only the cases whose names have one of them.
"""
import contextlib
import io
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from safetensors import safe_open
from safetensors.torch import load_file

root, penstock, words = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
convert = [sys.executable, str(root / "scripts/convert_deepspeed")]
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(str(word) for word in command)}\n{done.stdout}{done.stderr[-3000:]}")
    return done.stdout


def metadata_of(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


def expect_equal(name, got, wanted):
    """Bit for bit."""
    if set(got) != set(wanted):
        sys.exit(f"{name}: other tensors, {sorted(set(got) ^ set(wanted))}")
    for key in wanted:
        a, b = got[key].contiguous(), wanted[key].contiguous()
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.view(torch.int32), b.view(torch.int32)):
            sys.exit(f"{name}: {key} differs: {a.flatten()[:4].tolist()}, wanted {b.flatten()[:4].tolist()}")


def through_penstock(states, config, scratch):
    """Imports the states, exports them again, and returns the directory of the export."""
    file = scratch / "ds_config.json"
    file.write_text(json.dumps(config))
    run(penstock, "import", states, file, scratch / "durable", "--ranks", 2)
    run(penstock, "verify", scratch / "durable")
    run(penstock, "export", scratch / "durable", scratch / "exported", "--states")
    return scratch / "exported"


def zero_to_fp32(checkpoint):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return get_fp32_state_dict_from_zero_checkpoint(checkpoint)


def golden_case(world, scratch):
    golden = root / "tests/golden/checkpoint" / f"visible_bf16_w{world}"
    expected = load_file(golden / "expected.safetensors")
    kinds = {"fp32": "master", "exp_avg": "first_moment", "exp_avg_sq": "second_moment"}
    wanted = {f"{kinds[key.partition('.')[0]]}.{key.partition('.')[2]}": value for key, value in expected.items()
              if key.partition(".")[0] in kinds}
    run(*convert, "to-penstock", golden, scratch / "states")
    expect_equal("to-penstock", load_file(scratch / "states/states.safetensors"), wanted)
    config = json.loads((golden / "expected.json").read_text())["config"]
    exported = through_penstock(scratch / "states", config, scratch)
    expect_equal("import and export", load_file(exported / "states.safetensors"), wanted)
    assert metadata_of(exported / "states.safetensors")["penstock.step"] == "3"

    masters = {key.removeprefix("master."): value for key, value in wanted.items() if key.startswith("master.")}
    for stage, ranks in itertools.product((1, 2, 3), (1, 2, 3, 5)):
        config["zero_optimization"] = {"stage": stage, "sub_group_size": 30}
        file = scratch / "ds_config.json"
        file.write_text(json.dumps(config))
        back = scratch / f"z{stage}_{ranks}"
        run(*convert, "to-deepspeed", exported, back, "--config", file, "--ranks", ranks,
            "--buffers", scratch / "states/buffers.safetensors")
        read = zero_to_fp32(back)
        scale = read.pop("scale")
        assert scale.shape == (3,), scale
        expect_equal(f"zero_to_fp32 of stage {stage}, {ranks} ranks", read, masters)
        run(*convert, "to-penstock", back, scratch / f"again{stage}_{ranks}")
        expect_equal(f"to-penstock of stage {stage}, {ranks} ranks",
                     load_file(scratch / f"again{stage}_{ranks}/states.safetensors"), wanted)


def train(scratch, name, **options):
    file = scratch / f"{name}.json"
    file.write_text(json.dumps({**options, "values": str(scratch / f"{name}.safetensors")}))
    run(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2,
        root / "tests/deepspeed/train.py", file)
    return load_file(scratch / f"{name}.safetensors")


def live_case(stage, dtype, options, scratch):
    """A run of DeepSpeed goes on from what was converted to Penstock and back as from its own checkpoint."""
    config = {**CONFIG, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}}
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    if dtype == "fp16":
        config["fp16"].update(initial_scale_power=6, loss_scale_window=2)
    saved = train(scratch, "saved", config=config, steps=3, save=str(scratch / "checkpoint"), **options)
    wanted = train(scratch, "wanted", config=config, steps=2, load=str(scratch / "checkpoint"), **options)
    run(*convert, "to-penstock", scratch / "checkpoint", scratch / "states")
    states = load_file(scratch / "states/states.safetensors")
    scale = saved.pop("scale")
    assert len([key for key in saved if key.startswith("master.")]) == (5 if options["frozen"] else 6)
    expect_equal("to-penstock", {key: states[key] for key in saved}, saved)
    metadata = metadata_of(scratch / "states/states.safetensors")
    assert json.loads(metadata["penstock.loss_scaler"])["scale"] == scale.item(), metadata
    exported = through_penstock(scratch / "states", config, scratch)
    expect_equal("import and export", load_file(exported / "states.safetensors"), states)

    run(*convert, "to-deepspeed", exported, scratch / "back", "--config", scratch / "ds_config.json", "--ranks", 2,
        "--buffers", scratch / "states/buffers.safetensors")
    wanted_fp32 = zero_to_fp32(str(scratch / "checkpoint"))
    read = zero_to_fp32(str(scratch / "back"))
    for key in [key for key in states if options["frozen"] and key == "master.fc1.weight"]:
        wanted_fp32.setdefault("fc1.weight", states[key])  # DeepSpeed's own lacks frozen parameters at stage 1
    assert set(read) == {key.removeprefix("master.") for key in states if key.startswith("master.")} | {"scale"}
    expect_equal("zero_to_fp32", {key: value.float() for key, value in read.items()},
                 {key: value.float() for key, value in wanted_fp32.items()})
    expect_equal("the continued run", train(scratch, "got", config=config, steps=2, load=str(scratch / "back"), **options),
                 wanted)


def other_names(scratch):
    """The trainer has other names than DeepSpeed, where one parameter has two."""
    golden = root / "tests/golden/checkpoint/visible_bf16_w2"
    run(*convert, "to-penstock", golden, scratch / "states")
    states = load_file(scratch / "states/states.safetensors")
    first = sorted(key.removeprefix("master.") for key in states if key.startswith("master."))[0]
    names, config = scratch / "names.json", scratch / "ds_config.json"
    names.write_text(json.dumps({first: "other.name"}))
    run(*convert, "to-penstock", golden, scratch / "renamed", "--rename", names)
    renamed = load_file(scratch / "renamed/states.safetensors")
    expect_equal("--rename", renamed, {key.replace(f".{first}", ".other.name"): value for key, value in states.items()})
    wanted = zero_to_fp32(str(golden))
    for stage in (1, 2, 3):
        config.write_text(json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}))
        back = scratch / f"back{stage}"
        run(*convert, "to-deepspeed", scratch / "renamed", back, "--config", config, "--ranks", 2, "--rename", names,
            "--buffers", scratch / "states/buffers.safetensors", "--shared", f"second.name={first}")
        expect_equal(f"--shared, stage {stage}", {key: value.float() for key, value in zero_to_fp32(str(back)).items()},
                     {key: value.float() for key, value in {**wanted, "second.name": wanted[first]}.items()})


def refusals(scratch):
    golden = root / "tests/golden/checkpoint/visible_bf16_w2"
    config = scratch / "ds_config.json"

    def expect(words, *command):
        done = subprocess.run([*convert, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 1 or words not in done.stderr or "Traceback" in done.stderr:
            sys.exit(f"wanted an error with {words!r}: {command}\n{done.stderr}")
        assert not (scratch / "out").exists() and not (scratch / "out.partial").exists()

    def copy(name):
        shutil.copytree(golden, scratch / name)
        return scratch / name, scratch / name / "global_step3"

    expect("latest", "to-penstock", scratch, scratch / "out")
    expect("no_tag", "to-penstock", golden, scratch / "out", "--tag", "no_tag")
    lacking, files = copy("lacking")
    (files / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    expect("wanted 2 files", "to-penstock", lacking, scratch / "out")
    cut, files = copy("cut")
    file = files / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:1000])
    expect(file.name, "to-penstock", cut, scratch / "out")
    offloaded, files = copy("offloaded")
    (files / "offloaded_tensors").mkdir()
    expect("NVMe", "to-penstock", offloaded, scratch / "out")
    short, files = copy("short")
    file = files / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    loaded = torch.load(file, weights_only=False)
    loaded["optimizer_state_dict"]["fp32_flat_groups"][0] = torch.zeros(7)
    torch.save(loaded, file)
    expect("elements of a flat group are missing", "to-penstock", short, scratch / "out")
    harmful, files = copy("harmful")  # a pickle that would write a file
    torch.save({"optimizer_state_dict": Harmful(scratch / "harm")}, files / file.name)
    expect("", "to-penstock", harmful, scratch / "out")
    assert not (scratch / "harm").exists()

    run(*convert, "to-penstock", golden, scratch / "states")
    expect("exists", "to-penstock", golden, scratch / "states")
    back = ["to-deepspeed", scratch / "states", scratch / "back", "--config", config, "--ranks"]
    for text, ranks, words in (("{", 1, "no JSON"), ("{}", 1, "stage is 0"),
                               ('{"zero_optimization": {"stage": 2}}', 0, "--ranks 0"),
                               ('{"zero_optimization": {"stage": 1, "parameter_alignment": 8}}', 1, "alignment")):
        config.write_text(text)
        expect(words, *back, ranks)
    config.write_text('{"zero_optimization": {"stage": 2}}')
    expect("--shared a=b", *back, 1, "--shared", "a=b")
    expect("no export of states", "to-deepspeed", scratch / "states/buffers.safetensors", scratch / "back",
           "--config", config, "--ranks", 1)
    assert not (scratch / "back").exists() or not any((scratch / "back").iterdir())


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def cases():
    yield "refusals", refusals
    yield "other names", other_names
    for world in (1, 2):
        yield f"golden, {world} ranks", lambda scratch, world=world: golden_case(world, scratch)
    for stage, dtype in itertools.product((1, 2, 3), ("bf16", "fp16", "fp32")):
        options = {"groups": dtype != "bf16", "frozen": dtype == "fp32"}
        what = ", ".join([f"ZeRO-{stage}", dtype, *(key for key, value in options.items() if value)])
        yield what, lambda scratch, case=(stage, dtype, options): live_case(*case, scratch)


for name, case in cases():
    if words and not any(word in name for word in words):
        continue
    scratch = pathlib.Path(tempfile.mkdtemp())
    case(scratch)
    shutil.rmtree(scratch)
    print(f"passed: {name}", flush=True)
