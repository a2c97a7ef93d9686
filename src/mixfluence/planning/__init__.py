"""What a run will cost, before any step of it: steps, epochs, overhead, memory, and what looks wrong."""

from mixfluence.planning.build import plan_run
from mixfluence.planning.plan import DatasetPlan, Plan, StagePlan

__all__ = ["DatasetPlan", "Plan", "StagePlan", "plan_run"]
