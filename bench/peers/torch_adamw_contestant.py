"""One optimizer on the parameters of a model, one step per line of standard input: see torch_adamw.py."""

import argparse
import math
import tempfile
import time

from turns import claim_output, resident_peak, serve

answers = claim_output()  # before anything can print

import torch


def parameters_of(options):
    width = math.isqrt(options.layer_parameters)
    torch.manual_seed(1)
    dtype = getattr(torch, options.dtype)
    for _ in range(options.layers):
        for shape in ((width, width), (width,)):
            parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype).normal_(std=0.02))
            parameter.grad = torch.empty(shape, dtype=dtype).normal_(std=1e-3)
            yield parameter


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=["torch", "penstock"])
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    arguments.add_argument("--state-format", default="auto")
    arguments.add_argument("--path")
    arguments.add_argument("--budget", type=int)
    arguments.add_argument("--clip", action="store_true", help="clip the gradients' norm in the step, of penstock")
    arguments.add_argument("--layers", type=int, required=True)
    arguments.add_argument("--layer-parameters", type=int, required=True)
    arguments.add_argument("--threads", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    parameters = list(parameters_of(options))
    if options.name == "torch":
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    else:
        import penstock.torch
        path = tempfile.TemporaryDirectory(dir=options.path) if options.path else None
        optimizer = penstock.torch.AdamW(parameters, lr=1e-4, weight_decay=0.01, state_format=options.state_format,
                                         path=path and path.name, budget=options.budget,
                                         max_grad_norm=1.0 if options.clip else None)
    optimizer.step()

    def measure():
        began = time.perf_counter()
        optimizer.step()
        return {"step": time.perf_counter() - began, "resident_peak": resident_peak()}

    serve(answers, measure)
    if options.name == "penstock":
        optimizer.close()


main()
