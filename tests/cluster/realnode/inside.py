"""
What a container sees of GPUs and of its limits: the script that it runs, and a parser of the script's output.

A card's file can be opened if the container's control group allows the device. There is no driver behind it, so opening
an allowed device fails with ENXIO, and a forbidden one with EPERM. The same applies to a file that the container
created itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_ALLOWED, _DENIED = "No such device or address", "Operation not permitted"
SCRIPT = """
env | grep -E '^(NVIDIA|CUDA|GPUFRACTION)_' | while read -r line; do echo "env $line"; done
for file in /dev/nvidia* /dev/nvidia-caps/*; do
    [ -c "$file" ] && echo "device $file $(stat -c '%t:%T' "$file")"
done
for card in 0 1 2 3; do
    mknod "/tmp/card$card" c 195 "$card" && echo "open $card $( { : <"/tmp/card$card"; } 2>&1 )"
done
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    [ -e "$file" ] && echo "memory $(cat "$file")"
done
[ -e /sys/fs/cgroup/cpu.max ] && echo "cpu $(cat /sys/fs/cgroup/cpu.max)"
quota=/sys/fs/cgroup/cpu/cpu.cfs_quota_us
[ -e "$quota" ] && echo "cpu $(cat "$quota") $(cat /sys/fs/cgroup/cpu/cpu.cfs_period_us)"
for file in /etc/ld.so.preload /usr/local/vgpu/libvgpu.so /usr/lib/*/libnvidia-ml.so.1 /tmp/nvidia-mps; do
    [ -e "$file" ] && echo "file $file"
done
echo done
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Inside:
    """
    `devices`: major and minor, hexadecimal, by path. `cards`, `capabilities`: the minor numbers that can be opened;
    capabilities only if the container tries them (`trying`).
    """

    environment: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)
    cards: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    memory: int | None = None
    """Bytes of host memory that it may use; None for no limit."""
    cpus: float | None = None
    capabilities: tuple[int, ...] = ()


def trying(major: int, minors: Sequence[int]) -> str:
    """The script of a container that also tries these capabilities of slices, with files that it creates itself."""
    make = f'mknod "/tmp/cap$cap" c {major} "$cap"'
    command = 'echo "capability $cap $( { : <"/tmp/cap$cap"; } 2>&1 )"'
    return f"for cap in {' '.join(map(str, minors))}; do {make} && {command}; done\n{SCRIPT}"


def read(printed: str) -> Inside | None:
    """The parsed output of the script; None before it has finished."""
    lines = printed.splitlines()
    if "done" not in lines:
        return None
    facts = [line.partition(" ") for line in lines[: lines.index("done")]]

    def of(kind: str) -> list[str]:
        return [rest for word, _, rest in facts if word == kind]

    def opened(kind: str) -> tuple[int, ...]:
        tried = [line.partition(" ") for line in of(kind)]
        strange = [line for line in tried if _ALLOWED not in line[2] and _DENIED not in line[2]]
        assert not strange, f"a device answered otherwise than with ENXIO or EPERM: {strange}"
        return tuple(int(minor) for minor, _, output in tried if _ALLOWED in output)

    memory = of("memory")
    cpu = of("cpu")
    return Inside(
        environment=dict(sorted(_pair(line, "=") for line in of("env"))),
        devices=dict(sorted(_pair(line, " ") for line in of("device"))),
        cards=opened("open"),
        capabilities=opened("capability"),
        files=tuple(sorted(of("file"))),
        memory=_limit(memory[0]) if memory else None,
        cpus=_cpus(cpu[0]) if cpu else None,
    )


def _pair(line: str, separator: str) -> tuple[str, str]:
    key, _, value = line.partition(separator)
    return key, value


def _limit(text: str) -> int | None:
    """Reads both forms of no limit: `max`, and a number close to 2^63."""
    return None if text == "max" or int(text) >= 1 << 62 else int(text)


def _cpus(text: str) -> float | None:
    quota, period = text.split()
    return None if quota in ("max", "-1") else int(quota) / int(period)
