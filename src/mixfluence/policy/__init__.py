"""Sampling probabilities: initial distributions, update rules, evidence and bounds.

All arrays are in the order of the mixture's datasets. Logits are stored and updated, not probabilities: a temperature
of 0.3 gives some datasets 1e-10, which rounding would lose.
"""

from mixfluence.policy.bounds import Guards, Vector, cap, lift, softmax
from mixfluence.policy.evidence import Evidence, Reward
from mixfluence.policy.initial import (
    PROPORTIONAL,
    UNIFORM,
    Initial,
    InitialField,
    Temperature,
    Weights,
    WeightsFile,
    temperature_label,
)
from mixfluence.policy.rules import RULES, Adam, Anchored, Fair, PolicyGradient, Rule
