"""Inf-DDS: datasets are drawn by what a few steps on them do for the dev sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from mixfluence.influence import Probe, Probing, Reptile
from mixfluence.policy import RULES, Evidence, Fair, Guards, Rule
from mixfluence.schema import BatchSize, NonNegative, Positive, Share, registered
from mixfluence.strategies.logits import LogitStrategy

if TYPE_CHECKING:
    from mixfluence.influence import Influences

# The paper's settings by benchmark, as far as it gives them. It names no optimizer or step for the logits, no number
# of inner steps but for BEIR (3), and a Reptile rate that vanishes if taken literally: see docs/method-index.md.
_PAPER: dict[str, Any] = {
    "inner_steps": 3,
    "rule": {"name": "gradient", "step": 0.02},
    "reptile": {"rate": "relative", "weights": "softmax"},
    "shrink": False,
    "gate": False,
    "freeze_below": 0.0,
    "floor": 0.0,
}
_PROBE: dict[str, Any] = {"state": "inherited", "learning_rate": "current"}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": _PAPER
    | {"update_every": 50, "warmup_steps": 50, "probe": _PROBE | {"batch_size": 256, "dev_batch_size": 256}},
    "paper-sentence-transformers": _PAPER
    | {"update_every": 250, "warmup_steps": 500, "probe": _PROBE | {"batch_size": 256, "dev_batch_size": 256}},
    # One process probes a dataset: four rows per step, and no negatives from other processes.
    "paper-mldr": _PAPER
    | {"update_every": 250, "warmup_steps": 500, "subset": 8, "reptile": "off"}
    # A dataset is measured in 16 of 38 rounds, a tenth as often as in the BEIR setting, so a step is ten times as
    # large: with 0.02 English could not fall below half of the batches, but the paper says that it drops a lot.
    | {"rule": {"name": "gradient", "step": 0.2}}
    | {"probe": _PROBE | {"batch_size": 4, "dev_batch_size": 32, "metric": "info-nce-hard"}},
    # Our defaults before version 0.2: 0.3 points ahead of those of now, at 1.6 times a static run instead of 1.25.
    "thorough": {"inner_steps": 3, "update_every": 50, "probe": {"state": "inherited", "dev_batch_size": 256}},
}


def _reptile(data: Any) -> Any:
    # A bare rate stands for a mapping; `off` for None.
    if isinstance(data, str | float | int) and not isinstance(data, bool):
        data = {"rate": data}
    return None if isinstance(data, dict) and data.get("rate") == "off" else data


class InfDDS(LogitStrategy):
    """Influence-guided dynamic data sampling (Algorithm 1 of the paper).

    At intervals, each dataset gets a short trial of `inner_steps` steps from the current model. Its influence is the
    improvement of the dev sets, and moves its logit. Prefer `Static` when no dev set resembles the test set or the
    mixture is known.

    Cost per update: datasets x inner steps training steps, and (datasets + 1) dev evaluations, a third of a step per
    batch. By default updates take at most a quarter of the training time. Memory: 1 parameter size; 2 more with
    inherited optimizer state, 1 more with Reptile.

    Attributes:
        preset: Fills in keys that are not given: by the paper's settings, or by `thorough`, three steps of the run's
            own optimizer on each dataset every 50 steps.
        update_every: Steps between updates, K of the paper. If it is given without a `budget`, there is no budget.
        inner_steps: Steps of a probe, l of the paper.
        subset: Probe this many datasets, chosen at random each time, instead of all.
        probe: How datasets are probed and measured.
        rule: How influences move logits.
        reptile: Let the model follow its probes; None (`off`) to roll back exactly.
        shrink: Shrink influences by their standard errors.
        gate: Move little while successive rounds do not agree.
        guard: Dev sets that are not targets, and the share of its metric that each may lose since the start of the
            run, such as `{general: 0.02}`. They are measured as targets are, on the same rows in every round. A
            mixture that is expected to cost more is moved towards the datasets that spare them.
    """

    title = "Inf-DDS"
    saved = "logits", "unguarded", "evidence"
    name: Literal["inf-dds"] = "inf-dds"
    preset: Literal["paper", "paper-sentence-transformers", "paper-mldr", "thorough"] | None = None
    budget: Positive | None = 0.25
    inner_steps: Annotated[int, Field(ge=0, le=1000)] = 1
    subset: BatchSize | None = None
    probe: Probe = Field(default_factory=Probe)
    rule: Annotated[SerializeAsAny[Rule], registered(RULES)] = Field(default_factory=Fair)
    reptile: Annotated[Reptile | None, BeforeValidator(_reptile)] = None
    shrink: bool = True
    gate: bool = True
    freeze_below: Share = 0.1
    guard: dict[str, NonNegative] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = data.get("preset")
        if isinstance(name, str) and name in PRESETS:
            preset = PRESETS[name]
            # A section in both is merged key by key, so that one key of it can be changed.
            merged = {key: preset[key] | data[key] for key in data if _mergeable(preset.get(key), data[key])}
            data = {**preset, **data, **merged, "preset": None}
        return {"budget": None, **data} if "update_every" in data else data

    @model_validator(mode="after")
    def _no_reptile_with_guards(self) -> Self:
        if self.guard and self.reptile:
            raise ValueError("guard: needs reptile: off, or the model would follow probes that harm a guard")
        return self

    @property
    def guards(self) -> Mapping[str, float]:
        return self.guard

    @property
    def probing(self) -> Probing:
        return Probing(self.probe, self.inner_steps, self.subset, self.reptile)

    def start(self, sizes: Mapping[str, int]) -> None:
        super().start(sizes)
        self.rule.start(self._logits)
        self._evidence = Evidence(shrink=self.shrink, gate=self.gate)
        # The logits of the rule, before guards change them.
        self._unguarded = self._logits
        self._guards = Guards(self.guard, len(sizes))

    def update(self, influences: Influences) -> dict[str, Any]:
        if self.guard:
            own = influences.of(self.guard)
            self._guards.observe(own.probed, own.base, own.on_targets(), own.sign)
            influences = influences.of(target for target in influences.targets if target not in self.guard)
        if len(influences.probed) < 2:
            return {}
        values, errors = influences.combine()
        judged = (influences.on_targets(), influences.errors()) if self.rule.by_target else (values, errors)
        reward = self._evidence.judge(influences.probed, *judged)
        self._logits = self._unguarded = self.rule.move(self._unguarded, reward)
        if self.guard:
            self._logits = self._guards.hold(
                self._unguarded,
                lambda shift: self.rule.shifted(self._unguarded, shift, reward.gate),
                rounds=self.steps_to_next_round() / max(1, self.inner_steps),
            )
        trust = reward.trust.mean(axis=1) if self.rule.by_target else reward.trust
        facts = {"influence": values.tolist(), "error": errors.tolist(), "trust": trust.tolist()}
        guards = {"guards": self._guards.facts()} if self.guard else {}
        return {**facts, "gate": reward.gate, **guards}

    def state_dict(self) -> dict[str, Any]:
        guards = {"guards": self._guards.state_dict()} if self.guard else {}
        return super().state_dict() | {"rule": self.rule.state_dict()} | guards

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # Without guards, older checkpoints have the logits alone.
        super().load_state_dict({"unguarded": state["logits"], **state})
        self.rule.load_state_dict(state["rule"])
        if self.guard:
            self._guards.load_state_dict(state["guards"])


def _mergeable(first: Any, second: Any) -> bool:
    return isinstance(first, dict) and isinstance(second, dict) and second.get("name") in (None, first.get("name"))
