"""
A virtual machine under QEMU: one processor, a disk that discards writes, and no network except ssh on loopback.

KVM runs it if that works; otherwise QEMU's translator does. The machine's user network is restricted: nothing in it
reaches this machine or any other, and only the forwarded port of ssh reaches it.

Must not: know about Kubernetes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedRWPair
from pathlib import Path
from typing import Any

from playground.programs.probes import free_port
from tests.virtualmachine.image import Image

QEMU = "qemu-system-x86_64"
_BOOT_SECONDS, _COMMAND_SECONDS = 120.0, 300.0
"""Seconds, on a machine as fast as this one."""
_PROBE_SECONDS = 8.0
_STOP_SECONDS = 60.0
_MONITOR_SECONDS = 10.0
_MACHINE = {
    # Without the largest address space the translator's walks of page tables are shorter.
    "tcg": ("-machine", "q35", "-accel", "tcg,thread=single,tb-size=1024", "-cpu", "max,la57=off"),
    "kvm": ("-machine", "q35", "-accel", "kvm", "-cpu", "host"),
}


class NoVirtualMachine(Exception):
    """The machine did not start; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Share:
    """A folder of this machine that the virtual one mounts at the path `at`."""

    tag: str
    folder: Path
    at: str
    writable: bool = False


def accelerator(wanted: str, image: Image) -> str:
    """
    `kvm` or `tcg`. If neither is requested: KVM if a kernel runs under it for a moment. A machine that is itself
    virtual does not always allow that.
    """
    if wanted:
        return wanted
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    command = [QEMU, *_MACHINE["kvm"], "-m", "512", "-nodefaults", "-display", "none", "-no-reboot", "-nic", "none"]
    command += ["-kernel", str(image.kernel), "-append", "console=ttyS0 earlyprintk=serial", "-serial", "stdio"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_SECONDS,
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as ended:
        printed = ended.stdout or b""
    return "kvm" if b"Linux version" in printed and b"KVM internal error" not in printed else "tcg"


def command_line(
    image: Image,
    *,
    accelerator: str,
    memory: int,
    port: int,
    monitor: Path,
    console: Path,
    key: str,
    shares: Sequence[Share],
    more: str = "",
) -> list[str]:
    """
    The command that starts QEMU. `memory` in MiB; `port`: of ssh, on this machine's loopback. `key`: the public key
    that may log in as root. `more`: further arguments for the kernel.
    """
    # A machine that waits long for its own processor would conclude that its timer does not tick, and panic.
    patient = "no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
    append = f"root=/dev/vda rw console=ttyS0 panic=-1 mitigations=off net.ifnames=0 {patient} {more}".strip()
    command = [QEMU, *_MACHINE[accelerator], "-smp", "1", "-m", str(memory), "-nodefaults", "-display", "none"]
    command += ["-no-reboot", "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", append]
    command += ["-drive", f"file={image.disk},format=raw,if=virtio,snapshot=on,cache=unsafe"]
    command += ["-nic", f"user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22"]
    command += ["-device", "virtio-rng-pci", "-serial", f"file:{console}"]
    command += ["-qmp", f"unix:{monitor},server=on,wait=off"]
    command += ["-smbios", f"type=11,value=io.systemd.credential:ssh.authorized_keys.root={key}"]
    for share in shares:
        only = "" if share.writable else ",readonly=on"
        about = f"local,path={share.folder},mount_tag={share.tag},security_model=none,multidevs=remap{only}"
        command += ["-virtfs", about]
    return command


class VirtualMachine:
    """
    `folder`: for its console, its keys and the writes to its disk. `slower`: how many times longer everything may take
    than on this machine. It is ended by its process id.
    """

    def __init__(
        self,
        image: Image,
        folder: Path,
        *,
        accelerator: str,
        memory: int,
        shares: Sequence[Share],
        slower: int,
        more: str = "",
        labelled: bool = False,
    ) -> None:
        self._slower = slower
        self._labelled = labelled
        self.console = folder / "console.log"
        # The path of a socket must be short, and folders of tests are not.
        self._private = Path(tempfile.mkdtemp(prefix="vm-"))
        self.monitor = self._private / "monitor"
        self._folder, self._shares = folder, shares
        self._port = free_port()
        key = self._private / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30)
        known = self._private / "known_hosts"
        known.write_text(f"[127.0.0.1]:{self._port} {image.host_key}\n")
        self._command = command_line(
            image,
            accelerator=accelerator,
            memory=memory,
            port=self._port,
            monitor=self.monitor,
            console=self.console,
            key=key.with_suffix(".pub").read_text().strip(),
            shares=shares,
            more=more,
        )
        options = {
            "IdentityFile": key,
            "UserKnownHostsFile": known,
            "ControlPath": self._private / "control",
            "BatchMode": "yes",
            "LogLevel": "ERROR",
            "ConnectTimeout": "60",
            "ServerAliveInterval": "0",
            "Port": self._port,
        }
        self.ssh = ("ssh", "-F", "none", *(f"-o{name}={value}" for name, value in options.items()), "root@127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self, tell: Callable[[str], None]) -> None:
        """Boot it. The shares are mounted when this returns. Raises `NoVirtualMachine`."""
        with (self._folder / "qemu.log").open("ab") as log:
            environment: Mapping[str, str] = {**os.environ, "TMPDIR": str(self._folder)}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        began = told = time.monotonic()
        while not self._answers():
            now = time.monotonic()
            if self._process.poll() is not None:
                raise NoVirtualMachine(f"QEMU ended with status {self._process.returncode}: {self.tail()}")
            if now - began > _BOOT_SECONDS * self._slower:
                raise NoVirtualMachine(f"it does not answer after {now - began:.0f} s: {self.tail()}")
            if now - told > 15:
                told = now
                tell(f"booting for {now - began:.0f} s; {self.tail(1)}")
            time.sleep(2)
        tell(f"it answers after {time.monotonic() - began:.0f} s")
        for share in self._shares:
            # Data that nothing writes back may stay in the machine's memory.
            options = (
                f"trans=virtio,version=9p2000.L,msize=262144,{'cache=none' if share.writable else 'ro,cache=loose'}"
            )
            if self._labelled:
                kind = "container_file_t" if share.writable else "bin_t"
                options += f",context=system_u:object_r:{kind}:s0"
            script = 'mkdir -p "$1" && mount -t 9p -o "$2" "$0" "$1"'
            self.run(["sh", "-c", script, share.tag, share.at, options])

    def run(self, command: Sequence[str]) -> str:
        """Run a command there. Returns its output. Raises `NoVirtualMachine` if it fails."""
        done = subprocess.run(
            [*self.ssh, shlex.join(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS * self._slower,
        )
        if done.returncode:
            raise NoVirtualMachine(f"{shlex.join(command)} ended with status {done.returncode}: {done.stdout}")
        return done.stdout

    def stop(self) -> None:
        """End it, and remove the writes to its disk."""
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):  # the machine goes, whatever its first connection does
                subprocess.run([*self.ssh[:-1], "-O", "exit", self.ssh[-1]], stderr=subprocess.DEVNULL, timeout=30)
            try:
                ask(self.monitor, "quit")
                process.wait(_STOP_SECONDS)
            except (OSError, NoVirtualMachine, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
        shutil.rmtree(self._private, ignore_errors=True)

    def tail(self, lines: int = 15) -> str:
        """The end of its output."""
        files = (self._folder / "qemu.log", self.console)
        text = "".join(file.read_text(errors="replace") for file in files if file.exists())
        return "\n".join(text.splitlines()[-lines:])

    def _answers(self) -> bool:
        # This connection stays, and later ones go through it. It would hold the pipe from which another one's output is
        # read.
        first = ["-oControlMaster=auto", "-oControlPersist=yes"]
        done = subprocess.run(
            [self.ssh[0], *first, *self.ssh[1:], "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return done.returncode == 0


def ask(monitor: Path, command: str) -> Any:
    """
    The answer of QEMU's monitor to a command without arguments, such as `stop` and `cont` for its processors. Raises
    `OSError`, and `NoVirtualMachine` for a command that it refuses.
    """
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(_MONITOR_SECONDS)
        wire.connect(str(monitor))
        with wire.makefile("rwb") as stream:
            stream.readline()
            return [_asked(stream, each) for each in ("qmp_capabilities", command)][1]


def _asked(stream: BufferedRWPair, command: str) -> Any:
    stream.write(json.dumps({"execute": command}).encode() + b"\n")
    stream.flush()
    while True:
        line = stream.readline()
        answer = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            raise NoVirtualMachine(f"the monitor refuses {command}: {answer['error']}")
        if "return" in answer:
            # Events may come before the answer.
            return answer["return"]
