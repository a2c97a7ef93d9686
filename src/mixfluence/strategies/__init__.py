"""Samplers: one module per method, which holds its recipe keys, behaviour, stages and name."""

from mixfluence.strategies.aioli import Aioli
from mixfluence.strategies.base import FINAL, Stage, Strategy
from mixfluence.strategies.cooldown import Cooldown
from mixfluence.strategies.crisp import CRISP
from mixfluence.strategies.doge import DoGE
from mixfluence.strategies.doremi import DoReMi
from mixfluence.strategies.group_dro import GroupDRO
from mixfluence.strategies.inf_dds import InfDDS
from mixfluence.strategies.multidds import MultiDDS
from mixfluence.strategies.replay import Replay
from mixfluence.strategies.static import Static
from mixfluence.strategies.target_only import TargetOnly
from mixfluence.strategies.tdro import TDRO

# Names as recipes spell them. A new sampler is one module and one line here.
STRATEGIES: dict[str, type[Strategy]] = {
    "static": Static,
    "cooldown": Cooldown,
    "inf-dds": InfDDS,
    "multidds": MultiDDS,
    "doge": DoGE,
    "doremi": DoReMi,
    "crisp": CRISP,
    "tdro": TDRO,
    "aioli": Aioli,
    "target-only": TargetOnly,
    "replay": Replay,
}

__all__ = [
    "CRISP",
    "FINAL",
    "STRATEGIES",
    "TDRO",
    "Aioli",
    "Cooldown",
    "DoGE",
    "DoReMi",
    "GroupDRO",
    "InfDDS",
    "MultiDDS",
    "Replay",
    "Stage",
    "Static",
    "Strategy",
    "TargetOnly",
]
