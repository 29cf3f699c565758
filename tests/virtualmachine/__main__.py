"""
`make test-virtualmachine`: boot a virtual machine with systemd and control groups of version 2, and run the tests of a
real node on it.

The machine has the node's programs: kubelet, the container runtime, NVIDIA's tools and our agent. This machine has the
control plane, the webhook, the allocator and the tests.

Exit status: 0 if all tests passed, or if something is missing, which is printed; 1 if a test failed or the machine did
not start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from playground.waiting import SLOWER
from tests.cluster.realnode import virtual
from tests.cluster.realnode.virtual import Access
from tests.virtualmachine import results
from tests.virtualmachine.image import TOP, NoImage, default_cache, image
from tests.virtualmachine.needs import missing
from tests.virtualmachine.qemu import NoVirtualMachine, Share, VirtualMachine, accelerator

CODE = "/opt/gpufraction"
PYTHON = "/usr/bin/python3"
_ENDED = 128 + signal.SIGTERM
SHARED = "shared"
"""Below the output: the folder that both machines share."""
_OWN = ("runc", "conmon", "skopeo", "busybox")
"""Programs that the machine has from its distribution, and not from REALNODE_ASSETS."""
_SLOWER = {"kvm": 1, "tcg": 8}
"""How many times longer everything may take there than on this machine."""
FILL = """
set -e
mkdir -p {assets} {code}
for program in /run/share/assets/*; do
    case ${{program##*/}} in etcd | kube-* | kubemark) ;; *) cp -aL "$program" {assets}/ ;; esac
done
cp -a /run/share/code/. {code}/
for program in {own}; do
    ln -sf "$(command -v "$program")" {assets}/"$program"
done
modprobe -a overlay br_netfilter || true
sysctl -qw net.ipv4.ip_forward=1
"""
FACTS = {
    "distribution": ". /etc/os-release && echo $PRETTY_NAME",
    "kernel": "uname -r",
    "systemd": "systemctl --version | head -1",
    "control groups": "stat -fc %T /sys/fs/cgroup; cat /sys/fs/cgroup/cgroup.controllers",
    "first process": "cat /proc/1/comm",
    "SELinux": "cat /sys/fs/selinux/enforce 2>/dev/null || echo off",
    "runc": "runc --version | head -1",
    "containerd": "{assets}/containerd --version",
    "cri-o": "{assets}/crio --version 2>/dev/null | head -1",
    "kubelet": "{assets}/kubelet --version",
    "toolkit": "{assets}/nvidia-ctk --version | head -1",
    "python": "{python} --version",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; see the module's docstring."""
    # This ends whatever was started, however the command ends, and leaves no half-written disk. A shell has commands in
    # the background ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(_ENDED))
    chosen = parsed(arguments)
    if what := missing(os.environ):
        say(f"skipped: {what}")
        return 0
    out = Path(chosen.output).resolve()
    shutil.rmtree(out, ignore_errors=True)
    shared = out / SHARED
    shared.mkdir(parents=True)
    try:
        return run(chosen, out, shared)
    except (NoImage, NoVirtualMachine) as error:
        say(str(error))
        return 1


ENFORCE = """
set -e
setsebool sshd_port_forwarding 1
cat >/run/services.cil <<'END'
(allow container_t unconfined_t (fd (use)))
(allow container_t unconfined_t (fifo_file (ioctl read write getattr append)))
(allow container_t unconfined_t (process (sigchld)))
(allow container_t unconfined_t (unix_stream_socket (read write getattr)))
END
semodule -i /run/services.cil
setenforce 1
"""
"""
Debian's policy has no domain for container runtimes that come from elsewhere, so they are not confined, and a
container may write to the pipes that it gets from them.
"""


def run(chosen: argparse.Namespace, out: Path, shared: Path) -> int:
    """Boot the machine, run the tests, and write their results."""
    found = image(default_cache(os.environ), chosen.release, say, selinux=chosen.selinux)
    kind = accelerator(chosen.accelerator, found)
    assets = Path(os.environ["REALNODE_ASSETS"]).resolve()
    say(f"starting a {chosen.release} under {kind}")
    code = out / "code"
    copy_code(code)
    shares = [Share("shared", shared, str(shared), writable=True)]
    shares += [Share("assets", assets, "/run/share/assets"), Share("code", code, "/run/share/code")]
    # Debian's policy denies its own network service what it needs while it boots, so SELinux is enforced after that.
    more = "security=selinux selinux=1 enforcing=0" if chosen.selinux else ""
    slower = chosen.slower or _SLOWER[kind]
    machine = VirtualMachine(
        found,
        out,
        accelerator=kind,
        memory=chosen.memory,
        shares=shares,
        slower=slower,
        more=more,
        labelled=chosen.selinux,
    )
    if chosen.monitor:
        Path(chosen.monitor).unlink(missing_ok=True)
        Path(chosen.monitor).symlink_to(machine.monitor)
    began = time.monotonic()
    try:
        machine.start(say)
        if chosen.selinux:
            machine.run(["sh", "-c", ENFORCE])
        facts = fill(machine, assets)
        access = out / "access.json"
        Access(machine.ssh, shared, PYTHON, CODE, chosen.selinux).write(access)
        say(f"the machine is a node's: {json.dumps(facts)}")
        if chosen.wait:
            say(f"export {virtual.ENVIRONMENT}={access} {SLOWER}={slower}; {' '.join(machine.ssh)}")
            input()
            return 0
        status = tests(chosen, out, assets, access, slower)
        journal = machine.run(["journalctl", "--no-pager", "--output=short-monotonic"])
        (out / "journal.log").write_text(journal)
    finally:
        machine.stop()
    report = results.report(out / "junit.xml", facts, accelerator=kind, seconds=time.monotonic() - began)
    (out / "result.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    for line in results.lines(report):
        say(line)
    say(f"logs and result.json are in {out}")
    return 1 if status else 0


def fill(machine: VirtualMachine, assets: Path) -> dict[str, str]:
    """Copy the programs into the machine. Returns facts about the machine."""
    words = {"assets": str(assets), "code": CODE, "own": " ".join(_OWN), "python": PYTHON}
    machine.run(["sh", "-c", FILL.format(**words)])
    return {
        name: " ".join(machine.run(["sh", "-c", command.format(**words)]).split()) for name, command in FACTS.items()
    }


def tests(chosen: argparse.Namespace, out: Path, assets: Path, access: Path, slower: int) -> int:
    """Run the tests. Returns pytest's status."""
    ours = {"REALNODE_ASSETS": str(assets), virtual.ENVIRONMENT: str(access), SLOWER: str(slower)}
    environment: Mapping[str, str] = {**os.environ, **ours}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "realnode", "--tb=short"]
    command += [f"--basetemp={out / SHARED / 'tests'}", f"--junitxml={out / 'junit.xml'}", *chosen.tests]
    with (out / "tests.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=TOP, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                print(line, end="", flush=True)
            return process.wait()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # pytest then ends what its fixtures started
                process.wait()


def copy_code(folder: Path) -> None:
    """Copy our programs, without what a machine has compiled."""
    for name in ("contract", "runtime", "nodeagent"):
        shutil.copytree(TOP / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.virtualmachine", description=__doc__)
    parser.add_argument("--release", default="trixie", help="of Debian")
    parser.add_argument("--memory", type=int, default=4096, help="of the machine, in MiB")
    parser.add_argument("--accelerator", choices=("kvm", "tcg"), default="", help="KVM where it works, without this")
    parser.add_argument("--output", default="build/virtualmachine", help="folder for logs and result.json")
    parser.add_argument("--monitor", default="", help="a link to make to the socket of QEMU's monitor (QMP)")
    parser.add_argument(
        "--slower", type=int, default=0, help="how many times longer everything may take; by the accelerator"
    )
    parser.add_argument("--selinux", action="store_true", help="with SELinux enforcing, by Debian's policy")
    parser.add_argument("--wait", action="store_true", help="run no tests; print how to reach the machine, and wait")
    parser.add_argument("tests", nargs="*", default=["tests/cluster/realnode"], help="for pytest; its flags after --")
    return parser.parse_args(arguments)


def say(line: str) -> None:
    print(f"virtual machine: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
