"""Training rows in clusters, drawn as often as the dev sets fall into them: the offline stage of CRISP."""

from mixfluence.clustering.partitioning import Partition, partition

__all__ = ["Partition", "partition"]
