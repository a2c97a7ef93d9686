"""Sampling probabilities: initial distributions, update rules, evidence and bounds.

All arrays are in the order of the mixture's datasets. Logits are stored and updated, not probabilities: a temperature
of 0.3 gives some datasets 1e-10, which rounding would lose.
"""

from mixfluence.policy.arms import Arms as Arms
from mixfluence.policy.bounds import Vector as Vector
from mixfluence.policy.bounds import cap as cap
from mixfluence.policy.bounds import lift as lift
from mixfluence.policy.bounds import softmax as softmax
from mixfluence.policy.evidence import Evidence as Evidence
from mixfluence.policy.evidence import Reward as Reward
from mixfluence.policy.guard import Guards as Guards
from mixfluence.policy.initial import PROPORTIONAL as PROPORTIONAL
from mixfluence.policy.initial import UNIFORM as UNIFORM
from mixfluence.policy.initial import Initial as Initial
from mixfluence.policy.initial import InitialField as InitialField
from mixfluence.policy.initial import Temperature as Temperature
from mixfluence.policy.initial import Weights as Weights
from mixfluence.policy.initial import WeightsFile as WeightsFile
from mixfluence.policy.initial import temperature_label as temperature_label
from mixfluence.policy.rules import RULES as RULES
from mixfluence.policy.rules import Adam as Adam
from mixfluence.policy.rules import Anchored as Anchored
from mixfluence.policy.rules import Fair as Fair
from mixfluence.policy.rules import PolicyGradient as PolicyGradient
from mixfluence.policy.rules import Rule as Rule
