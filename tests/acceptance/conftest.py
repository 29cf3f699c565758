"""The system tests' cluster, so that every row is looked at on the whole system, on each control plane."""

from tests.system.conftest import cluster as cluster
from tests.system.conftest import running_cluster as running_cluster
