"""What the benchmark prints if there is no real API server."""

from __future__ import annotations

from benchmarks.admission import creation


def test_without_a_real_api_server_it_says_what_is_missing() -> None:
    assert list(creation.real({})) == [
        "Creating a pod on a real API server was not measured: KUBEBUILDER_ASSETS is not set; it names a folder with"
        " etcd and kube-apiserver"
    ]
