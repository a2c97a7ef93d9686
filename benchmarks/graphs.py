"""A prototype: forward and backward pass of packed sequences as two CUDA graphs per size, without compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mixfluence.influence.snapshot import preserve_rng_and_modes
from mixfluence.training.packing import fill_up

LONGEST = 256
Forward = Callable[..., Any]


class Graph:
    """The graphs of one size. Gradients leave it as copies, so that nobody holds memory that a replay overwrites."""

    def __init__(self, forward: Forward, part: nn.Module, inputs: dict[str, Tensor], rest: dict[str, Any], pool: Any):
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        self.weights = [weight for weight in part.parameters() if weight.requires_grad]
        sizes = [-(-weight.numel() // 64) * 64 for weight in self.weights]
        self.flat = torch.zeros(sum(sizes), device=self.weights[0].device)
        self.sizes = sizes

        def run() -> Tensor:
            with torch.autocast("cuda", torch.get_autocast_dtype("cuda"), cache_enabled=False):
                output: Tensor = forward(**self.inputs, **rest)["last_hidden_state"]
            return output

        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with preserve_rng_and_modes(part), torch.cuda.stream(stream), torch.enable_grad():
            for _ in range(2):
                output = run()
                torch.autograd.grad(output, self.weights, torch.zeros_like(output), allow_unused=True)
            del output
        torch.cuda.current_stream().wait_stream(stream)
        self.forward: Any = torch.cuda.CUDAGraph()
        self.backward: Any = torch.cuda.CUDAGraph()
        with preserve_rng_and_modes(part), torch.enable_grad():
            with torch.cuda.graph(self.forward, pool=pool):
                self.output = run()
            self.gradient = torch.zeros_like(self.output)
            with torch.cuda.graph(self.backward, pool=pool):
                found = torch.autograd.grad(self.output, self.weights, self.gradient, allow_unused=True)
                self.used = [gradient is not None for gradient in found]
                views = self.views(self.flat)
                pairs = [(view, gradient) for view, gradient in zip(views, found, strict=True) if gradient is not None]
                torch._foreach_copy_([view for view, _ in pairs], [gradient for _, gradient in pairs])
                del found, pairs
        self.output = self.output.detach()

    def views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split(self.sizes)
        return [part[: own.numel()].view_as(own) for part, own in zip(parts, self.weights, strict=True)]


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, inputs: dict[str, Tensor], *weights: Tensor) -> Tensor:
        ctx.graph = graph
        for name, tensor in inputs.items():
            graph.inputs[name].copy_(tensor)
        graph.forward.replay()
        return graph.output.view_as(graph.output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        graph: Graph = ctx.graph
        graph.gradient.copy_(gradient)
        graph.backward.replay()
        views = graph.views(graph.flat.clone())
        return None, None, *(view if used else None for view, used in zip(views, graph.used, strict=True))


def graphed(forward: Forward, part: nn.Module) -> Forward:
    """Return a forward pass that replays graphs; one at a time, its backward pass before the next."""
    graphs: dict[Any, Graph] = {}
    pool = torch.cuda.graph_pool_handle()

    def call(**inputs: Any) -> Any:
        if "cu_seq_lens_q" not in inputs or not (torch.is_grad_enabled() and inputs["input_ids"].is_cuda):
            return forward(**inputs)
        filled = fill_up(inputs) | {"max_length_q": LONGEST}
        tensors = {name: value for name, value in filled.items() if isinstance(value, Tensor)}
        rest = {name: value for name, value in filled.items() if name not in tensors}
        key = tuple((name, tuple(value.shape)) for name, value in tensors.items())
        if key not in graphs:
            graphs[key] = Graph(forward, part, tensors, rest, pool)
        graph = graphs[key]
        output = Replay.apply(graph, tensors, *graph.weights)
        return BaseModelOutput(last_hidden_state=output[:, : inputs["input_ids"].shape[1]])

    return call
