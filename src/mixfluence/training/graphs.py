"""CUDA graphs of encoders on packed sequences.

Small encoders spend most of their time launching kernels. A CUDA graph launches them at once. It has a fixed size, so
batches are filled up with dummy sequences to one of a few sizes; without graphs too, because torch takes much longer
to launch matrix products of sizes that it has not seen. Batches whose kernels take longer than launching them are left
as they are. Numbers depend on the filled size alone: the first batch of a size runs without a graph and gives what its
graph would.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from mixfluence.influence.snapshot import preserve_rng_and_modes
from mixfluence.training.packing import LENGTH_STEP, transformers_in

logger = logging.getLogger(__name__)

# Dummy sequences per batch, enough to keep each of them short.
FILLERS = 64
# A batch is filled up by at most 1/8 of its size.
FINENESS = 8
# Multiplications of an average matrix product whose kernels, on an H200, take as long as launching them.
LARGEST_PRODUCT = 2**34
# Graphs of one encoder, each with memory of its own for inputs and output; other shapes run without.
MOST_GRAPHS = 24
# Share of the device's memory that graphs and batches without them may need together.
MOST_MEMORY = 0.8
# What an encoder may return; a graph returns the first.
OUTPUTS = {"last_hidden_state", "pooler_output", "past_key_values"}

Forward = Callable[..., Any]
Compiler = Callable[[Forward], Forward]
Work = Callable[[], None]
# From work to what repeats it.
Capture = Callable[[Work, Work], tuple[Work, Work]]
# One compilation for all sizes, one graph for each.
GRAPHS: Compiler = partial(torch.compile, dynamic=True, mode="reduce-overhead")


def compile_encoder(model: nn.Module, compiler: Compiler = GRAPHS) -> None:
    """Compile the transformers of a model for packed sequences; padded ones run uncompiled."""
    for part in _outermost(model):
        # sentence-transformers calls `forward` itself, which `Module.compile` does not replace.
        part.forward = _filled(part.forward, compiler(part.forward), inf)


def graph_encoder(model: nn.Module, capture: Callable[[], Capture] | None) -> None:
    """Fill up small batches for the transformers of a model, and train on them by graphs if there is a way to capture.

    There should be none on several processes: they exchange gradients while others are still computed.
    """
    for part in _outermost(model):
        products = [layer.weight.numel() for layer in part.modules() if isinstance(layer, nn.Linear)]
        most = LARGEST_PRODUCT * len(products) / sum(products) if products else 0
        part.forward = _filled(part.forward, Graphs(part, capture()) if capture else part.forward, most)


def _outermost(model: nn.Module) -> list[PreTrainedModel]:
    parts = transformers_in(model)
    inner = {id(module) for part in parts for module in part.modules() if module is not part}
    return [part for part in parts if id(part) not in inner]


def fill_up(inputs: dict[str, Any]) -> dict[str, Any]:
    """Append dummy sequences of zeros to a packed batch, up to one of a few sizes."""
    tokens = inputs["input_ids"].shape[1]
    missing = filled_size(tokens) - tokens
    bounds, ids = inputs["cu_seq_lens_q"], inputs["input_ids"]
    ends = torch.arange(1, FILLERS + 1, dtype=bounds.dtype, device=bounds.device) * missing // FILLERS + tokens
    bounds, zeros = torch.cat([bounds, ends]), ids.new_zeros(1, missing)
    kept = {name: value for name, value in inputs.items() if name != "seq_idx"}
    for name in kept.keys() & {"input_ids", "token_type_ids", "position_ids"}:
        kept[name] = torch.cat([kept[name], zeros], dim=1)
    longest = max(inputs["max_length_q"], -(-missing // FILLERS))
    return kept | {"cu_seq_lens_q": bounds, "max_length_q": -(-longest // LENGTH_STEP) * LENGTH_STEP}


def filled_size(tokens: int) -> int:
    """Return the smallest of the allowed sizes, about eight per doubling, that holds the tokens and the fillers."""
    least = tokens + FILLERS
    step = max(1 << (least.bit_length() - 1), FINENESS) // FINENESS
    return -(-least // step) * step


def _filled(forward: Forward, run: Forward, most: float) -> Forward:
    """Return a forward pass that runs packed sequences of at most so many tokens by `run`."""

    def call(**inputs: Any) -> Any:
        if "cu_seq_lens_q" not in inputs or filled_size(inputs["input_ids"].shape[1]) > most:
            return forward(**inputs)
        output = run(**fill_up(inputs))
        output["last_hidden_state"] = output["last_hidden_state"][:, : inputs["input_ids"].shape[1]]
        return output

    return call


class CudaGraphs:
    """Captures work on the current device in graphs that share their memory: only one of them may be in use."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Work, backward: Work) -> tuple[Work, Work]:
        """Return what repeats the two; raise RuntimeError if memory might run out or they need the processor."""
        peak, (_, total) = torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info()
        if 2 * peak - torch.cuda.memory_allocated() > MOST_MEMORY * total:
            raise RuntimeError(f"memory might run out, a batch needs {peak / 2**30:.0f} GiB")
        mode, drawn = torch.cuda.get_sync_debug_mode(), torch.get_rng_state()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it does not find all that waits
            try:
                torch.cuda.set_sync_debug_mode("error")
                forward()
                backward()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        torch.cuda.current_stream().wait_stream(stream)
        if not torch.equal(drawn, torch.get_rng_state()):
            raise RuntimeError("the encoder draws random numbers on the processor")
        return self._record(forward), self._record(backward)

    def _record(self, work: Work) -> Work:
        graph: Any = torch.cuda.CUDAGraph()
        # Threads of a loader may copy batches meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        replay: Work = graph.replay
        return replay


class Graphs:
    """The forward pass of a transformer on filled batches, and in training its backward pass, by graphs if possible.

    Graphs read weights where they are, so that optimizers and probes may change them in place. They share their
    memory: while a pass waits for its backward pass, another runs without a graph.
    """

    def __init__(self, part: PreTrainedModel, capture: Capture) -> None:
        self._part, self._forward, self._capture = part, part.forward, capture
        self._weights = [weight for weight in part.parameters() if weight.requires_grad]
        self._gradients: Tensor | None = None
        self._seen: set[str] = set()
        self._graphs: dict[str, Graph] = {}
        self._pending: Callable[[], object | None] = lambda: None
        self._failed = False

    def __call__(self, **inputs: Any) -> Any:
        device = inputs["input_ids"].device.type
        half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        graph = self._find(half, inputs) if self._part.training and torch.is_grad_enabled() else None
        if graph is None:
            return self._encode(half, **inputs)
        waiting = Waiting()
        self._pending = ref(waiting)
        tensors = [inputs[name] for name in graph.inputs]
        hidden = _Replay.apply(graph, waiting, tensors, *self._weights)  # type: ignore[no-untyped-call]
        return BaseModelOutput(last_hidden_state=hidden)

    def _encode(self, half: torch.dtype | None, **inputs: Any) -> Any:
        # Without the weights that autocast has cast before: a graph has to cast them each time.
        with torch.autocast(inputs["input_ids"].device.type, half, half is not None, cache_enabled=False):
            return self._forward(**inputs)

    def _find(self, half: torch.dtype | None, inputs: dict[str, Any]) -> Graph | None:
        """Return the graph for inputs of this shape, from the second time on."""
        shapes = {name: value.shape if isinstance(value, Tensor) else value for name, value in inputs.items()}
        key = f"{half} {shapes}"
        if self._pending() is not None:
            return None
        if key in self._seen - self._graphs.keys() and len(self._graphs) < MOST_GRAPHS and not self._failed:
            try:
                self._graphs[key] = self._build(half, inputs)
            except RuntimeError as error:
                logger.info("no more CUDA graphs: %s", error)
                self._failed = True
        self._seen.add(key)
        return self._graphs.get(key)

    def _build(self, half: torch.dtype | None, inputs: dict[str, Any]) -> Graph:
        """Return a graph; raise RuntimeError if a pass need not be the same kernels each time."""
        modules, weights = list(self._part.modules()), list(self._part.parameters())
        if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
            raise RuntimeError("the encoder has hooks")
        if self._part.is_gradient_checkpointing or not all(weight.is_floating_point() for weight in weights):
            raise RuntimeError("the encoder has checkpointed activations or quantised weights")
        if len({weight.dtype for weight in self._weights}) > 1:
            raise RuntimeError("the encoder has trained weights of several types")
        if self._gradients is None:
            self._gradients = torch.cat([torch.zeros_like(weight).flatten() for weight in self._weights])
        with preserve_rng_and_modes(self._part):
            return Graph(partial(self._encode, half), inputs, self._weights, self._gradients, self._capture)


class Graph:
    """The two passes for one shape of inputs, on fixed memory."""

    def __init__(
        self,
        encode: Callable[..., Any],
        inputs: dict[str, Any],
        weights: list[Tensor],
        gradients: Tensor,
        capture: Capture,
    ) -> None:
        self.inputs = {name: value.clone() for name, value in inputs.items() if isinstance(value, Tensor)}
        self._encode = partial(encode, **inputs | self.inputs)
        self._weights, self._gradients = weights, gradients
        self._used: list[bool] = []
        self._live: Tensor | None = None
        self.output = self.gradient = torch.empty(0)
        self.forward, self.backward = capture(self._forward, self._backward)

    def _forward(self) -> None:
        with torch.enable_grad():
            output = self._encode()
        if other := output.keys() - OUTPUTS:
            raise RuntimeError(f"the encoder also returns {', '.join(sorted(other))}")
        self._live = output["last_hidden_state"]
        self.output = self._live.detach()
        if self.gradient.shape != self.output.shape:
            self.gradient = torch.zeros_like(self.output)

    def _backward(self) -> None:
        assert self._live is not None
        found = torch.autograd.grad(self._live, self._weights, self.gradient, allow_unused=True)
        self._used = [own is not None for own in found]
        places = _views(self._gradients, self._weights)
        pairs = [(place, own) for place, own in zip(places, found, strict=True) if own is not None]
        torch._foreach_copy_([place for place, _ in pairs], [own for _, own in pairs])
        self._live = None

    def gradients(self) -> list[Tensor | None]:
        """Return copies of the gradients, which the next pass overwrites."""
        own = _views(self._gradients.clone(), self._weights)
        return [gradient if used else None for gradient, used in zip(own, self._used, strict=True)]


def _views(flat: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return parts of an array in the shapes of tensors."""
    return tuple(_unflatten_dense_tensors(flat, tensors))  # type: ignore[no-untyped-call]


class Waiting:
    """Exists while a pass waits for its backward pass."""


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: Graph, waiting: Waiting, inputs: list[Tensor], *weights: Tensor) -> Tensor:
        ctx.graph, ctx.waiting = graph, waiting
        for fixed, tensor in zip(graph.inputs.values(), inputs, strict=True):
            fixed.copy_(tensor)
        graph.forward()
        return graph.output.view_as(graph.output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        ctx.graph.gradient.copy_(gradient)
        ctx.graph.backward()
        ctx.waiting = None
        return None, None, None, *ctx.graph.gradients()
