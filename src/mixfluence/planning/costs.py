"""The cost model: what measuring costs in training steps, and what it keeps in parameter sizes.

The unit of cost is one training step: forward, backward and optimizer on as many rows as a process has of a step.
Batches are given in such steps: a batch of half as many rows is 0.5. `dev` is the sum over all targets. A forward pass
alone is a third of a step. What depends on the number of parameters and not on rows, such as going back to a snapshot
or adding up the gradients of several processes, is not counted.
"""

from __future__ import annotations

FORWARD = 1 / 3
# A step of a proxy that is compared with a reference model: the reference is one forward pass.
PROXY_STEP = 1 + FORWARD

# Weights, gradients and the two moments of Adam.
TRAINING_MEMORY = 4.0
# A second copy of the gradients, in which the host adds up those of several processes.
EXCHANGE_MEMORY = 1.0
REFERENCE_MEMORY = 1.0


def look(dev: float) -> float:
    """Return the cost of looking at the dev sets once."""
    return dev * FORWARD


def probe_round(datasets: float, batch: float, inner_steps: int, dev: float) -> float:
    """Return the cost of a round of probes: some steps on every dataset, a look before them and one after each.

    Args:
        datasets: How many are probed by one process, the one that has most of them.
        batch: Rows of a probe's step, in training steps.
        inner_steps: Steps of a probe.
        dev: Dev rows of all targets, in training steps.
    """
    return datasets * inner_steps * batch + (datasets + 1) * look(dev)


def alignment_round(datasets: float, batch: float, dev: float, *, lookahead: bool = False) -> float:
    """Return the cost of comparing gradients: one of every dataset and target; with lookahead, targets anew for each.

    Args:
        datasets: How many are compared, by all processes together.
        batch: Rows that a process has of a dataset's gradient, in training steps.
        dev: Dev rows of all targets, in training steps.
        lookahead: Whether dev gradients are taken after a step on the dataset.
    """
    return datasets * (batch + dev) + look(dev) if lookahead else datasets * batch + dev


def clustering(rows: int, rows_per_step: int) -> float:
    """Return the cost of one forward pass over all rows, by an encoder like the one that is trained."""
    return rows / rows_per_step * FORWARD


def probe_memory(*, inherited: bool, on_host: bool, reptile: bool) -> float:
    """Return what probes keep on the device: the way back, unless it is on the host, and the sum of displacements."""
    way_back = 0.0 if on_host else 3.0 if inherited else 1.0
    return way_back + (1.0 if reptile else 0.0)


def alignment_memory(*, lookahead: bool) -> float:
    """Return what a comparison of gradients keeps on the device: one direction, and with lookahead the way back."""
    return 4.0 if lookahead else 1.0
