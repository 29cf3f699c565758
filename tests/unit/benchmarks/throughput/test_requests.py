"""Requests of an API server are counted by kind, from its own metric."""

from __future__ import annotations

from benchmarks.throughput import requests

_BEFORE = """
# TYPE apiserver_request_total counter
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="200",group="",resource="pods",subresource="",verb="LIST"} 1
"""
_AFTER = """
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="",verb="POST"} 5
apiserver_request_total{code="201",component="apiserver",group="",resource="pods",subresource="binding",verb="POST"} 2
apiserver_request_total{code="200",component="apiserver",group="",resource="pods",subresource="",verb="PATCH"} 2
apiserver_request_total{code="200",component="apiserver",group="",resource="pods",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="409",component="apiserver",group="",resource="pods",subresource="status",verb="PATCH"} 1
apiserver_request_total{code="201",group="",resource="events",subresource="",verb="POST"} 1
apiserver_request_total{code="201",group="events.k8s.io",resource="events",subresource="",verb="POST"} 2
apiserver_request_total{code="200",group="coordination.k8s.io",resource="leases",subresource="",verb="PUT"} 4
apiserver_request_total{code="200",group="",resource="pods",subresource="",verb="LIST"} 3
apiserver_request_total{code="0",group="",resource="pods",subresource="",verb="WATCH"} 9
apiserver_request_total_of_another_name{verb="POST",resource="pods"} 100
"""


def test_requests_of_each_kind_are_counted_for_each_pod() -> None:
    found = requests.a_pod(requests.counted(_BEFORE), requests.counted(_AFTER), 2)
    assert found == {
        "create": 1.0,
        "binding": 1.0,
        "patch": 1.0,
        "status": 1.0,
        "events": 1.5,
        "other": 2.0,
        "reads": 1.0,
    }
