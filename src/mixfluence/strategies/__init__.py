"""Samplers: one module per method, which holds its recipe keys, behaviour, stages and name.

docs/method-index.md lists where each differs from its paper, and why.
"""

from mixfluence.strategies.aioli import Aioli as Aioli
from mixfluence.strategies.base import FINAL as FINAL
from mixfluence.strategies.base import Scoring as Scoring
from mixfluence.strategies.base import Stage as Stage
from mixfluence.strategies.base import StageResult as StageResult
from mixfluence.strategies.base import Strategy as Strategy
from mixfluence.strategies.chameleon import Chameleon as Chameleon
from mixfluence.strategies.controls import Replay as Replay
from mixfluence.strategies.controls import TargetOnly as TargetOnly
from mixfluence.strategies.crisp import CRISP as CRISP
from mixfluence.strategies.doge import DoGE as DoGE
from mixfluence.strategies.group_dro import TDRO as TDRO
from mixfluence.strategies.group_dro import DoReMi as DoReMi
from mixfluence.strategies.group_dro import GroupDRO as GroupDRO
from mixfluence.strategies.inf_dds import InfDDS as InfDDS
from mixfluence.strategies.merge import Merge as Merge
from mixfluence.strategies.multidds import MultiDDS as MultiDDS
from mixfluence.strategies.odm import ODM as ODM
from mixfluence.strategies.regmix import RegMix as RegMix
from mixfluence.strategies.static import Cooldown as Cooldown
from mixfluence.strategies.static import Static as Static

# Names as recipes spell them. A new sampler is one module, its import and one line here.
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
