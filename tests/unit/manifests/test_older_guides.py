"""The rows of docs/migrating.md that install something: typed with a real API server, or built by kustomize."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from contract import names
from tests.cluster.acceptance.guides import APPLIED, BUILT, Reader, steps
from tests.unit.manifests.kube import JSON, built, one, texts
from tests.unit.manifests.realcluster import REAL, running


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    built()  # skips without kubectl
    with running() as cluster:
        yield Reader(cluster.kubeconfig, tmp_path_factory.mktemp("home"))


def pod_of(reader: Reader, kind: str, name: str) -> JSON:
    found = json.loads(reader.types(f"kubectl -n {names.NAMESPACE} get {kind} {name} -o json"))
    return dict(found["spec"]["template"]["spec"])


def base(reader: Reader) -> None:
    pod_of(reader, "deployment", "gpufraction")
    selected = set(texts(pod_of(reader, "daemonset", "gpufraction-nodeagent")["affinity"]))
    assert {"gpushare", "nvidia-device-enable"} <= selected, "the labels of the rows A2 and S6"


def oke(reader: Reader) -> None:
    assert pod_of(reader, "daemonset", "gpufraction-nodeagent")["nodeSelector"]["gpu-node"] == "true"
    kinds = reader.types("kubectl get crds -o name")
    assert {
        each for each in ("elasticgpuclaims", "elasticgpuclasses", "elasticgpus", "gpus") if each not in kinds
    } == set()


def openshift(reader: Reader) -> None:
    for kind, name in (("deployment", "gpufraction"), ("daemonset", "gpufraction-nodeagent")):
        assert "runAsUser" not in set(texts(pod_of(reader, kind, name)))


def superedge(reader: Reader) -> None:
    for name in ("gpufraction", "gpufraction-certs"):
        assert "superedge.io/edge-node" in set(texts(pod_of(reader, "deployment", name)["affinity"]["nodeAffinity"]))


def hami(reader: Reader) -> None:
    assert pod_of(reader, "daemonset", "gpufraction-nodeagent")["nodeSelector"]["gpu"] == "on"


LOOKS = {"A3": base, "E6": oke, "O2": openshift, "S4": superedge, "V3": hami}


@pytest.mark.realcluster
@pytest.mark.timeout(400)
@REAL
def test_the_rows_that_install_do(reader: Reader) -> None:
    rows = [step for step in steps() if step.tried == APPLIED]
    assert [step.number for step in rows] == list(LOOKS)
    for step in rows:
        reader.follows(step)
        LOOKS[step.number](reader)


def test_the_rows_that_build_a_kustomization_do(tmp_path: Path) -> None:
    built()  # skips without kubectl
    [step] = [step for step in steps() if step.tried == BUILT]
    items = [item for item in yaml.safe_load_all(Reader(tmp_path, tmp_path).follows(step)) if item]
    pod = one(items, "DaemonSet", "gpufraction-nodeagent")["spec"]["template"]["spec"]
    assert (pod["nodeSelector"]["gpu-node"], pod["tolerations"]) == ("true", [{"operator": "Exists"}])
