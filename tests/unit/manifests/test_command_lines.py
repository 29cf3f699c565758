"""Command lines in the manifests: each program accepts its flags and finds what the others provide."""

from __future__ import annotations

import re
from dataclasses import fields

import yaml

import allocator.app
import allocator.settings
import nodeagent.settings
import webhook.settings
from contract import names
from contract.options import NO_OPTIONS, VgpuOptions, pool_options
from runtime.settings import load
from tests.unit.manifests.install import CONFIGURATION, command, containers, serve_settings
from tests.unit.manifests.kube import JSON, one, sources
from webhook.certificates.store import CERTIFICATE, KEY


def certs_settings() -> webhook.settings.CertsSettings:
    """The settings of the webhook's keeper of certificates as the manifest sets them."""
    program, verb, flags = command("certs")
    assert (program, verb) == ("webhook", "certs")
    return load(webhook.settings.CertsSettings, file=None, env={}, argv=flags)


def test_the_webhook_takes_its_flags_and_finds_what_the_others_give() -> None:
    serve, certs = serve_settings(), certs_settings()
    ports = {port["name"]: port["containerPort"] for port in containers()["webhook"]["ports"]}
    assert ports == {
        "https": int(serve.bind.removeprefix("[::]:")),
        "health": (serve.health_address() or ("", 0))[1],
    }
    assert mounts(containers()["webhook"])[str(serve.certificates)] == "certs"
    [volume] = [
        v
        for v in one(sources(), "Deployment", "gpufraction")["spec"]["template"]["spec"]["volumes"]
        if v["name"] == "certs"
    ]
    assert {item["key"] for item in volume["secret"]["items"]} == {CERTIFICATE, KEY}
    assert one(sources(), "Secret", certs.secret)["metadata"]["name"] == volume["secret"]["secretName"] == certs.secret
    assert serve.socket == allocator_settings().socket
    assert (serve.options, serve.options.name) == (certs.options, names.OPTIONS_FILE)
    assert certs.configuration == CONFIGURATION == names.CONFIGURATION
    assert one(sources(), "Service", names.SERVICE)["metadata"]["namespace"] == names.NAMESPACE
    assert certs.every == 60


def test_only_the_keeper_of_certificates_reads_the_authoritys_key() -> None:
    place = str(certs_settings().directories().authority)
    volumes = {name: mounts(container) for name, container in containers().items()}
    [volume] = {found[place] for found in volumes.values() if place in found}
    assert [name for name, found in volumes.items() if volume in found.values()] == ["certs"]


def mounts(container: JSON) -> dict[str, str]:
    """A container's volumes by mount path."""
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def allocator_settings() -> allocator.settings.Settings:
    """The allocator's settings as the manifest sets them."""
    program, verb, flags = command("allocator")
    assert (program, verb) == ("allocator", "run")
    return load(allocator.app.settings_type(), file=None, env={}, argv=flags)


def test_the_allocator_takes_its_flags() -> None:
    settings = allocator_settings()
    [http] = containers()["allocator"]["ports"]
    [create, write] = one(sources(), "Role", "gpufraction-allocator")["rules"]
    assert settings.listen == f"[::]:{http['containerPort']}"
    assert write["resourceNames"] == [names.LEASE]
    assert create["verbs"] == ["create"]


def test_the_node_agent_takes_its_flags() -> None:
    program, verb, flags = command("nodeagent")
    [node] = [e for e in containers()["nodeagent"]["env"] if e["name"] == "GPUFRACTION_NODE"]
    [http] = containers()["nodeagent"]["ports"]
    settings = load(nodeagent.settings.settings_type(), file=None, env={"GPUFRACTION_NODE": "n1"}, argv=flags)
    assert (program, verb) == ("nodeagent", "run")
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert settings.listen == f"[::]:{http['containerPort']}"
    assert not settings.simulate


def test_the_shipped_options_set_nothing_and_every_name_in_them_is_valid() -> None:
    [text] = one(sources(), "ConfigMap", names.OPTIONS)["data"].values()
    assert pool_options(yaml.safe_load(text)) == NO_OPTIONS
    uncommented = re.sub(r"^#(?=[\w ])(?! )|^#(?=  )", "", text, flags=re.MULTILINE)
    document = yaml.safe_load(re.sub(r"^# .*$", "", uncommented, flags=re.MULTILINE))
    options = pool_options(document)
    unset = {field.name for field in fields(VgpuOptions) if getattr(options.cluster, field.name) is None}
    assert (unset, [pool.name for pool in options.pools]) == (set(), ["notebooks", "t4"])
    [_, t4] = options.pools
    assert t4.node is not None
    assert [field.name for field in fields(t4.node) if not getattr(t4.node, field.name)] == []
    assert t4.spare == 1


def test_files_that_a_flag_names_lie_in_a_volume_of_that_container() -> None:
    for name, container in containers().items():
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        paths = [flag.partition("=")[2] for flag in container["args"] if "=/" in flag]
        assert [path for path in paths if not any(path.startswith(mount) for mount in mounts)] == [], name
