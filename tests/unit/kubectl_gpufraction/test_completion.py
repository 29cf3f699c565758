"""Completion: the candidates for a line, and the shell scripts that request them."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from kubectl_gpufraction.__main__ import COMMANDS, main
from kubectl_gpufraction.commands.completion import SCRIPTS
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode
from tests.unit.kubectl_gpufraction.test_tenants import collection, plain

KINDS = ["daemonset/", "deployment/", "job/", "pod/", "replicaset/", "statefulset/"]
WORDS: dict[str, tuple[list[str], list[str]]] = {
    "commands": ([""], [*sorted(["help", *(command.name for command in COMMANDS)]), ":4"]),
    "no word at all": ([], [*sorted(["help", *(command.name for command in COMMANDS)]), ":4"]),
    "the first letter": (["w"], ["waiting", "what-if", ":4"]),
    "after a flag": (["-A", "po"], ["pods", "pools", ":4"]),
    "after a flag with a value": (["-n", "team", "po"], ["pods", "pools", ":4"]),
    "nothing fits": (["x"], [":4"]),
    "flags of all": (["nodes", "--wa"], ["--watch", ":4"]),
    "flags of one": (["advise", "--e"], ["--evict", ":4"]),
    "forms": (["nodes", "-o", "w"], ["wide", ":4"]),
    "forms behind =": (["nodes", "--output=w"], ["--output=wide", ":4"]),
    "choices": (["completion", "f"], ["fish", ":4"]),
    "files": (["dry-run", "-f", "man"], [":0"]),
    "pods and kinds": (["explain", ""], [*sorted(["runs", "waits", *KINDS]), ":4"]),
    "pods": (["advise", ""], ["runs", "waits", ":4"]),
    "nodes": (["inspect", ""], ["n1", "n2", ":4"]),
    "GPUs of the node": (["cordon", "n2", ""], ["0", "1", ":4"]),
    "more GPUs of the node": (["uncordon", "n2", "0", ""], ["0", "1", ":4"]),
    "namespaces": (["-n", ""], ["default", "team", ":4"]),
    "nothing more": (["explain", "x", ""], [":4"]),
    "commands to be helped with": (["help", "po"], ["pods", "pools", ":4"]),
    "only the flags that the command has": (["nodes", "--n"], ["--no-headers", ":4"]),
    "flags of the connection": (["nodes", "--as"], ["--as", "--as-group", ":4"]),
    "a JSONPath": (["nodes", "-o", "json"], ["json", "jsonpath=", ":4"]),
    "pods by name": (["pods", ""], ["runs", "waits", ":4"]),
    "more nodes by name": (["nodes", "n1", "n"], ["n1", "n2", ":4"]),
    "an unknown command": (["sing", ""], [":4"]),
}
SEEN = {
    "/apis/gpufraction.io/v1alpha1/gpunodes": collection(gpunode("n1", 15109), gpunode("n2", 15109, 15109)),
    "/api/v1/namespaces": collection({"metadata": {"name": "default"}}, {"metadata": {"name": "team"}}),
    "/api/v1/namespaces/default/pods": collection(
        admitted("runs", "gpufraction.io/gpu-memory", "2Gi", on="n1"),
        admitted("waits", "gpufraction.io/gpu-memory", "2Gi", waits="no"),
        plain("web", {"cpu": "1"}),
    ),
}


@pytest.mark.parametrize(("words", "want"), WORDS.values(), ids=WORDS.keys())
def test_candidates(words: list[str], want: list[str], tmp_path: Path) -> None:
    out = io.StringIO()
    with answering(dict(SEEN)) as port:
        flags = ["--kubeconfig", str(kubeconfig(tmp_path, port))]
        status = main(["__complete", *(flags if words else []), *words], out=out, environment={})
    assert (status, out.getvalue().splitlines()) == (0, want)


def test_without_a_cluster_the_words_of_the_command_are_offered(tmp_path: Path) -> None:
    out = io.StringIO()
    main(["__complete", "--kubeconfig", str(tmp_path / "none"), "explain", "d"], out=out, environment={})
    assert out.getvalue().splitlines() == [":4"]
    out = io.StringIO()
    main(["__complete", "--kubeconfig", str(tmp_path / "none"), "e"], out=out, environment={})
    assert out.getvalue().splitlines() == ["explain", ":4"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_needs_no_cluster(shell: str, tmp_path: Path) -> None:
    out = io.StringIO()
    status = main(["completion", shell, "--kubeconfig", str(tmp_path / "none")], out=out, environment={})
    assert (status, out.getvalue()) == (0, SCRIPTS[shell])


CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"], "kubectl": ["sh", "-n"]}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_is_good_in_its_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(CHECKS[shell][0]) is None:
        pytest.skip(f"{CHECKS[shell][0]} is not installed")
    file = tmp_path / "script"
    file.write_text(SCRIPTS[shell])
    done = subprocess.run([*CHECKS[shell], str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


STUB = """#!/bin/sh
test "$1 $2" = "gpufraction __complete" || exit 1
shift 2
for word; do echo "[$word]"; done
echo :4
"""
LINES = {
    "kubectl gpufraction nodes -": ["[nodes]", "[-]"],
    "kubectl gpufraction ": ["[]"],
    "kubectl-gpufraction explain po": ["[explain]", "[po]"],
    "kubectl get ": ["kubectl's own"],
}


@pytest.mark.parametrize(("line", "want"), LINES.items(), ids=LINES.keys())
def test_bash_asks_with_the_words_of_the_line(line: str, want: list[str], tmp_path: Path) -> None:
    stub = tmp_path / "kubectl"
    stub.write_text(STUB)
    stub.chmod(0o755)
    function = "__gpufraction_complete" if line.startswith("kubectl-") else "__gpufraction_of_kubectl"
    script = f"""
    __start_kubectl() {{ COMPREPLY=("kubectl's own"); }}
    {SCRIPTS["bash"]}
    IFS=' ' read -r -a COMP_WORDS <<< '{line}'
    [[ '{line}' == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
    {function}
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == (want, "")
