"""One step of a probe, by the run's own optimizer or by a momentum-free copy of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from mixfluence.errors import RecipeError


class FrozenAdam:
    """Adam's step without momentum, from second moments that stay as they are.

    With momentum, nine tenths of a first step go where training was going anyway, whatever the dataset. Here the
    whole step is the dataset's own, at the scale the run has learned for each weight. The optimizer's state is
    read and never written, so that a snapshot need not hold it. Weight decay, which no dataset changes, is left
    out.

    Args:
        optimizer: The run's, of the Adam family.

    Raises:
        RecipeError: If it keeps no second moments, or has none yet.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        refuse_without_moments(optimizer)
        known = [state for state in optimizer.state.values() if "exp_avg_sq" in state and "step" in state]
        if not known:
            raise RecipeError("momentum-free probes need an optimizer that has taken a step")
        # Left where they are: asking a device for a number makes the host wait.
        counts = torch.stack([torch.as_tensor(state["step"]).double() for state in known]).unbind()
        self._counts = {id(state): count for state, count in zip(known, counts, strict=True)}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self._optimizer.param_groups:
            decay = group["betas"][1]
            live, gradients, squares, unbias = self._collect(group["params"], decay)
            if not live:
                continue
            # The gradient is part of its own second moment, as in Adam: a weight that never had one, such as the
            # embedding of a token not seen so far, would otherwise be divided by nothing.
            roots = torch._foreach_mul(squares, decay)
            torch._foreach_addcmul_(roots, gradients, gradients, value=1 - decay)
            torch._foreach_sqrt_(roots)
            torch._foreach_div_(roots, unbias)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(live, gradients, roots, value=-float(group["lr"]))

    def _collect(
        self, parameters: list[Tensor], decay: float
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
        live, gradients, squares, unbias = [], [], [], []
        for parameter in parameters:
            state = self._optimizer.state.get(parameter, {})
            if parameter.grad is not None and id(state) in self._counts:
                live.append(parameter)
                gradients.append(parameter.grad)
                squares.append(state["exp_avg_sq"])
                unbias.append((1 - decay ** (1 + self._counts[id(state)])).sqrt())
        return live, gradients, squares, unbias


def refuse_without_moments(optimizer: Optimizer) -> None:
    """Refuse an optimizer that is not of the Adam family, before or after its first step.

    Raises:
        RecipeError: If it keeps no second moments.
    """
    adam = all("betas" in group and "eps" in group for group in optimizer.param_groups)
    if not adam or (optimizer.state and not any("exp_avg_sq" in state for state in optimizer.state.values())):
        raise RecipeError(
            f"momentum-free probes and preconditioned gradients need an optimizer with second moments such as AdamW, "
            f"found {type(optimizer).__name__}"
        )
