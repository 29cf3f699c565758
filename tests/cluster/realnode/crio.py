"""
CRI-O on a real node, configured as on OpenShift: NVIDIA's runtime is the handler `nvidia` and not the default, and CDI
and NRI are on by default.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from playground.programs.process import Program
from playground.waiting import wait_for
from tests.cluster.realnode.assets import NodeAssets
from tests.cluster.realnode.machine import Machine

_POLICY = {"default": [{"type": "insecureAcceptAnything"}]}
_STORAGE = """\
[storage]
driver = "overlay"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
_MOUNTED_ONLY = "awk 'NR == 1 || $2 != 0' /proc/cgroups >/run/cgroups && mount --bind /run/cgroups /proc/cgroups"
# Not every root user may exempt a process from the kernel's memory killer, and a test's node does not need it. CRI-O
# starts runtimes with its own environment.
_WRAPPER = """\
#!/bin/sh
{exports}
before=
for word; do
    case $before in --bundle | -b) sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj":0/' "$word/config.json" ;; esac
    before=$word
done
exec "{program}" "$@"
"""


class Crio:
    """Skopeo copies images into its storage, whether it runs or not."""

    name = "cri-o"
    socket = "/run/crio/crio.sock"
    needs = ("crio", "pinns", "conmon", "skopeo")

    def __init__(self, assets: NodeAssets, machine: Machine, pause: str) -> None:
        self._assets, self._machine, self._pause = assets, machine, pause
        self._program: Program | None = None

    def start(self) -> None:
        if self._machine.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).returncode:
            # With version 1 it requires every hierarchy of that list to be mounted.
            done = self._machine.run(["sh", "-c", _MOUNTED_ONLY])
            assert done.returncode == 0, done.stdout
        self._machine.write("/etc/containers/policy.json", json.dumps(_POLICY))
        self._machine.write("/etc/containers/storage.conf", _STORAGE)
        self._machine.write("/etc/crio/crio.conf.d/00-default", self._configuration())
        exports = "\n".join(f"export {key}={shlex.quote(text)}" for key, text in self._machine.environment.items())
        for program in ("runc", "nvidia-container-runtime"):
            text = _WRAPPER.format(program=self._assets.program(program), exports=exports)
            self._machine.write(f"/opt/runtimes/{program}", text, mode=0o755)
        # As `nvidia-ctk runtime configure --runtime=crio` writes it.
        self._machine.write("/etc/crio/crio.conf.d/99-nvidia.toml", self._handler("nvidia", "nvidia-container-runtime"))
        path = {"PATH": f"{self._assets.folder}:/usr/sbin:/usr/bin:/sbin:/bin"}
        self._program = self._machine.program("crio", [self._assets.program("crio")], path)
        self._listen()

    def restart(self) -> None:
        assert self._program is not None
        self._program.terminate()
        self._program.wait()
        self._listen()

    def load(self, archive: Path, name: str) -> None:
        where = f"containers-storage:{name}"
        done = self._machine.run([self._assets.program("skopeo"), "copy", f"oci-archive:{archive}", where])
        assert done.returncode == 0, done.stdout

    def _listen(self) -> None:
        program = self._program
        assert program is not None
        program.start()

        def answers() -> bool:
            program.check()
            command = [self._assets.program("crio"), "status", "--socket", self.socket, "info"]
            return self._machine.run(command).returncode == 0

        wait_for(answers, lambda: f"CRI-O does not answer: {program.tail()}")

    def _configuration(self) -> str:
        return f"""\
[crio.runtime]
cgroup_manager = "{self._machine.cgroup_driver}"
conmon_cgroup = "pod"
selinux = {str(self._machine.selinux).lower()}
disable_hostport_mapping = true
default_runtime = "runc"
pinns_path = "{self._assets.program("pinns")}"
[crio.image]
pause_image = "{self._pause}"
pause_command = "/bin/sleep infinity"
[crio.network]
plugin_dirs = ["/opt/cni/bin"]
{self._handler("runc", "runc")}"""

    def _handler(self, name: str, program: str) -> str:
        return f"""\
[crio.runtime.runtimes.{name}]
runtime_path = "/opt/runtimes/{program}"
runtime_root = "/run/runc"
monitor_path = "{self._assets.program("conmon")}"
"""
