"""Samplers: one module per method, which holds its recipe keys, behaviour, stages and name.

docs/method-index.md lists where each differs from its paper, and why.
"""

from mixfluence.strategies.aioli import Aioli
from mixfluence.strategies.base import FINAL, Scoring, Stage, StageResult, Strategy
from mixfluence.strategies.chameleon import Chameleon
from mixfluence.strategies.controls import Replay, TargetOnly
from mixfluence.strategies.crisp import CRISP
from mixfluence.strategies.doge import DoGE
from mixfluence.strategies.group_dro import TDRO, DoReMi, GroupDRO
from mixfluence.strategies.inf_dds import InfDDS
from mixfluence.strategies.merge import Merge
from mixfluence.strategies.multidds import MultiDDS
from mixfluence.strategies.odm import ODM
from mixfluence.strategies.regmix import RegMix
from mixfluence.strategies.static import Cooldown, Static

STRATEGIES: dict[str, type[Strategy]] = {
    "static": Static,
    "cooldown": Cooldown,
    "inf-dds": InfDDS,
    "multidds": MultiDDS,
    "doge": DoGE,
    "doremi": DoReMi,
    "crisp": CRISP,
    "chameleon": Chameleon,
    "tdro": TDRO,
    "aioli": Aioli,
    "odm": ODM,
    "merge": Merge,
    "regmix": RegMix,
    "target-only": TargetOnly,
    "replay": Replay,
}
