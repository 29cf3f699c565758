"""
Gatekeeper's webhook as a process alongside an API server, with its kinds. Audit and mutation are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from playground.api.http.certificates import Authority
from playground.engines import engine, manager
from playground.programs import installing
from playground.programs.probes import free_port
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
NAMESPACE = "gatekeeper-system"
PROGRAM, MANIFESTS = "gatekeeper", "gatekeeper-manifests.yaml"
_HOOK = "ValidatingWebhookConfiguration"
_APPLIED = ("CustomResourceDefinition",)

_POD: JSON = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": PROGRAM, "namespace": NAMESPACE},
    "spec": {"containers": [{"name": PROGRAM, "image": PROGRAM}]},
}
"""The pod that Gatekeeper looks up as its own. Nothing runs in it."""


def assets() -> Path | str:
    """The folder with its program and manifests, or one line that says what is missing."""
    return engine.assets(PROGRAM, MANIFESTS)


@contextlib.contextmanager
def running(kube: Kube, kubeconfig: Path, folder: Path, directory: Path) -> Iterator[Program]:
    """Run the webhook inside the context. It reviews the writes of that time. Creates `directory`."""
    authority, port = Authority(PROGRAM), free_port()
    certificates = directory / "certificates"
    certificates.mkdir(parents=True)
    for name, data in zip(("tls.crt", "tls.key"), authority.server(("localhost",)), strict=True):
        (certificates / name).write_bytes(data)
    (certificates / "ca.crt").write_bytes(authority.pem)
    documents = [each for each in yaml.safe_load_all((folder / MANIFESTS).read_text()) if each]
    definitions = [each for each in documents if each["kind"] in _APPLIED]
    installing.apply(kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    installing.apply(kube, _POD)
    for document in definitions:
        installing.apply(kube, document)
    wait_for(lambda: engine.are_served(kube, definitions), "the kinds of Gatekeeper are not served", 30)
    program = _program(directory, folder, kubeconfig, certificates, port)
    program.start()
    hooks = [manager.reached(each, port, authority.pem) for each in documents if each["kind"] == _HOOK]
    try:
        for document in hooks:
            for hook in document["webhooks"]:
                hook["failurePolicy"] = "Fail"  # a request that the webhook did not review must not count as allowed
            installing.apply(kube, document)
        yield program
    finally:
        for document in hooks:
            kube.delete(installing.path_of(document, named=True))
        program.terminate()
        program.wait()


def _program(directory: Path, folder: Path, kubeconfig: Path, certificates: Path, port: int) -> Program:
    flags = ["--kubeconfig", str(kubeconfig), "--host", "127.0.0.1", "--port", str(port)]
    flags += ["--cert-dir", str(certificates), "--disable-cert-rotation"]
    flags += [f"--operation={each}" for each in ("webhook", "generate", "status")]
    flags += ["--health-addr", f"127.0.0.1:{free_port()}", "--exempt-namespace", NAMESPACE]
    environment = {"POD_NAMESPACE": NAMESPACE, "POD_NAME": PROGRAM, "NAMESPACE": NAMESPACE, "TMPDIR": str(directory)}
    log = directory / f"{PROGRAM}.log"
    return Program(PROGRAM, flags, log=log, environment=environment, command=(str(folder / PROGRAM),))
