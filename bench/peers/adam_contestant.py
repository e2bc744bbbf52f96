"""One optimizer of another library on one flat tensor, one round per line of standard input: see adam.py."""

import argparse
import time

from turns import claim_output, serve

answers = claim_output()  # before anything can print

import torch

MAX_NORM = 1.0


def noise(elements, dtype, magnitude):
    torch.manual_seed(1)
    return (torch.rand(elements, dtype=torch.float32) - 0.5).mul_(2 * magnitude).to(dtype)


def parameter(elements, dtype=torch.float32, gradient=True):
    tensor = torch.nn.Parameter(noise(elements, dtype, 1.0))
    if gradient:
        tensor.grad = noise(elements, dtype, 1e-2)
    return tensor


def torch_fused(elements):
    optimizer = torch.optim.AdamW([parameter(elements)], weight_decay=0.01, fused=True)
    return optimizer.step


def deepspeed_adam(elements, dtype):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([parameter(elements, dtype)], weight_decay=0.01, fp32_optimizer_states=True)
    return optimizer.step


def deepspeed_tail(elements, from_bf16, norm_dtype=None):
    """The host part of ZeRO's step: unscale and clip in one multiplication, CPUAdam, copy to bf16. With bf16
    gradients it starts with their norm, in doubles as in stage 3 or in floats, and the cast to fp32."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    master = parameter(elements)
    low = torch.empty(elements, dtype=torch.bfloat16)
    optimizer = DeepSpeedCPUAdam([master], weight_decay=0.01)
    gradient = noise(elements, torch.bfloat16, 1e-2) if from_bf16 else None

    def step():
        factor = 1.0
        if from_bf16:
            norm = gradient.to(norm_dtype).norm(2).item()
            factor = MAX_NORM / max(norm, MAX_NORM)
            master.grad.copy_(gradient)
        master.grad.mul_(factor)
        optimizer.step()
        low.copy_(master.data)

    return step


def bitsandbytes_8bit(elements):
    import bitsandbytes
    return bitsandbytes.optim.AdamW8bit([parameter(elements)]).step


def torchao_8bit(elements):
    from torchao.optim import AdamW8bit
    return AdamW8bit([parameter(elements)]).step


CONTESTANTS = {
    "torch fused AdamW": torch_fused,
    "DeepSpeedCPUAdam": lambda n: deepspeed_adam(n, torch.float32),
    "DeepSpeedCPUAdam bf16": lambda n: deepspeed_adam(n, torch.bfloat16),
    "DeepSpeed tail": lambda n: deepspeed_tail(n, from_bf16=False),
    "DeepSpeed tail bf16": lambda n: deepspeed_tail(n, from_bf16=True, norm_dtype=torch.float64),
    "DeepSpeed tail bf16, float norm": lambda n: deepspeed_tail(n, from_bf16=True, norm_dtype=torch.float32),
    "bitsandbytes AdamW8bit": bitsandbytes_8bit,
    "torchao AdamW8bit": torchao_8bit,
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=CONTESTANTS)
    arguments.add_argument("--elements", type=int, required=True)
    arguments.add_argument("--threads", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    step = CONTESTANTS[options.name](options.elements)
    step()

    def measure():
        began = time.perf_counter()
        step()
        return {"seconds": {options.name: time.perf_counter() - began}}

    serve(answers, measure)


main()
