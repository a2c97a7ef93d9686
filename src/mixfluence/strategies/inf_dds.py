"""Inf-DDS: datasets are drawn by what a few steps on them do for the dev sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mixfluence.influence import Influences, Probe, Reptile
from mixfluence.policy import Anchored, Evidence, Initial, Rule
from mixfluence.strategies.base import refuse_below
from mixfluence.strategies.logits import LogitStrategy


class InfDDS(LogitStrategy):
    """Influence-guided dynamic data sampling (Algorithm 1 of the paper).

    Every `update_every` steps each dataset is tried out for `inner_steps` steps from the current model; by how much
    that improves the dev sets is its influence, and moves its logit. Prefer `Static` when there is no dev set like
    the test set, or when the mixture is known.

    Cost per update: datasets x inner steps training steps, and (datasets + 1) looks at every dev batch, a third of
    one each. Memory: 3 parameter sizes; 2 less with momentum-free probes, 1 more with Reptile.

    Args:
        init: Where the logits start; proportional to size if None.
        update_every: Steps between updates, K of the paper.
        warmup_steps: Steps before the first update.
        inner_steps: Steps of a probe, l of the paper.
        subset: Probe this many datasets, drawn anew each time, instead of all.
        probe: How datasets are tried out and judged.
        rule: How influences move logits.
        reptile: Let the model follow its probes; None to go back exactly.
        shrink: Shrink influences by their standard errors.
        gate: Do no harm: move little while successive rounds do not agree.
        freeze_below: No update while the learning rate is below this part of its maximum.
        floor: Least probability of any dataset.
        max_epochs: Most passes over any dataset.
    """

    def __init__(
        self,
        init: Initial | None = None,
        *,
        update_every: int = 50,
        warmup_steps: int = 25,
        inner_steps: int = 3,
        subset: int | None = None,
        probe: Probe | None = None,
        rule: Rule | None = None,
        reptile: Reptile | None = None,
        shrink: bool = True,
        gate: bool = True,
        freeze_below: float = 0.1,
        floor: float = 0.0,
        max_epochs: float | None = None,
    ) -> None:
        refuse_below(inner_steps=(inner_steps, 0), subset=(subset, 2))
        super().__init__(
            init,
            update_every=update_every,
            warmup_steps=warmup_steps,
            freeze_below=freeze_below,
            floor=floor,
            max_epochs=max_epochs,
        )
        self.inner_steps = inner_steps
        self.subset = subset
        self.probe: Probe = probe or Probe()
        self.rule = rule or Anchored()
        self.reptile = reptile
        self.shrink, self.gate = shrink, gate

    def start(self, sizes: Mapping[str, int]) -> None:
        """Set the logits to where they start."""
        super().start(sizes)
        self.rule.start(self.logits)
        self._evidence = Evidence(shrink=self.shrink, gate=self.gate)

    def update(self, influences: Influences) -> dict[str, Any]:
        """Move the logits of the datasets that were measured."""
        if len(influences.probed) < 2:
            return {}
        values, errors = influences.combine(self.probe.aggregate)
        reward = self._evidence.judge(influences.probed, values, errors)
        self.logits = self.rule.move(self.logits, reward)
        return {
            "influence": values.tolist(),
            "error": errors.tolist(),
            "trust": reward.trust.tolist(),
            "gate": reward.gate,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return logits, the rule's memory and the last round."""
        return super().state_dict() | {"rule": self.rule.state_dict(), "evidence": self._evidence.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.rule.load_state_dict(state["rule"])
        self._evidence.load_state_dict(state["evidence"])
