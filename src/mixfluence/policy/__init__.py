"""Numbers become sampling probabilities here: where they start, what moves them, what bounds them.

Everything works on arrays in the order of the mixture's datasets. Logits, not probabilities, are what is
kept and moved: a temperature of 0.3 gives some datasets 1e-10, which a probability would round away.
"""

from mixfluence.policy.adam import Adam
from mixfluence.policy.bounds import Vector, cap, lift, logits_from_json, logits_to_json, softmax
from mixfluence.policy.evidence import Evidence, Reward
from mixfluence.policy.initial import UNIFORM, Initial, Temperature, Weights
from mixfluence.policy.rules import RULES, Anchored, Matching, Mirror, PolicyGradient, Rule

__all__ = [
    "RULES",
    "UNIFORM",
    "Adam",
    "Anchored",
    "Evidence",
    "Initial",
    "Matching",
    "Mirror",
    "PolicyGradient",
    "Reward",
    "Rule",
    "Temperature",
    "Vector",
    "Weights",
    "cap",
    "lift",
    "logits_from_json",
    "logits_to_json",
    "softmax",
]
