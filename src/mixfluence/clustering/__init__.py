"""Clusters of training rows, weighted by the dev rows that fall into them: the offline stage of CRISP."""

from mixfluence.clustering.partitioning import Partition, partition

__all__ = ["Partition", "partition"]
