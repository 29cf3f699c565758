"""The system tests' cluster, so that every row is looked at on the whole system, on each control plane."""

from tests.cluster.system.conftest import cluster as cluster
from tests.cluster.system.conftest import running_cluster as running_cluster
