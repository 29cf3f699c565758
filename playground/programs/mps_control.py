"""
An `nvidia-cuda-mps-control` without a GPU: a real process with real sockets, so that what is tested is the starting,
finding, asking and ending of processes. What it shares with NVIDIA's was read off that of drivers 535, 550 and 555:

    it closes its standard input; locks `control_lock`; listens on `control` and, for its own user, `control_privileged`
    takes `quit` by the second socket only; leaves both sockets and the lock file behind
    tells what it does not know or find as text, with status 0; refuses to start with a flag that it does not know

With `-f` it is the daemon, without it asks the daemon the lines of standard input. What the daemon does is read at
every command from `fake.json` in its pipe directory, so that a test changes its mind for it:

    crash: true         end at once with status 1
    silent: true        take commands and answer none
    deaf: true          do not end on request
    old: true           know neither `-multiuser-server` nor `get_server_status`, as that of driver 535
    status: FAULT       of every server; ACTIVE otherwise
    servers: {"71": [72, 73]}    servers and their clients, by process id
    spawn: true         start a process that stands for a server, and outlives the daemon
    using: ["Dx1"]      partitions with clients

With `-S` it gives out partitions of a card of ten chunks of eight multiprocessors, as NVIDIA's documentation of MPS
shows it (release 615, "Using Static SM Partitioning"), and with `-v` it says 13010. Neither was read off a real one:

    version: 12090      what it says instead; then it does not know `-S`
    sentence: true      the answer to `sm_partition add` is a sentence around the partition's name
"""

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
from typing import Any

CHUNKS, CHUNK = 10, 8
partitions: dict[str, int] = {}
PIPE = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ".")
PID = "nvidia-cuda-mps-control.pid"


def script() -> dict[str, Any]:
    try:
        with open(os.path.join(PIPE, "fake.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        return {}


def answer(words: list[str], state: dict[str, Any]) -> str:
    servers = state.get("servers", {})
    match words:
        case ["get_server_list"]:
            return "".join(f"{pid}\n" for pid in servers)
        case ["get_server_status", pid] if not state.get("old"):
            return state.get("status", "ACTIVE") + "\n" if pid in servers else f"Server {pid} not found\n"
        case ["get_client_list", pid]:
            return "".join(f"{client}\n" for client in servers.get(pid, ())) or f"Server {pid} not found\n"
        case ["lspart"] if "-S" in sys.argv:
            return listed(state)
        case ["sm_partition", "add", gpu, chunks] if "-S" in sys.argv:
            return added(gpu, int(chunks), state)
        case ["sm_partition", "rm", _, name] if "-S" in sys.argv:
            if name in state.get("using", ()):
                return f"Partition {name} in use. Terminate all clients before removing.\n"
            return "" if partitions.pop(name, 0) else f"Partition {name} not found\n"
    return f'Unknown command "{words[0]}"\n'


def listed(state: dict[str, Any]) -> str:
    gpu, used = os.environ["CUDA_VISIBLE_DEVICES"][:12], sum(partitions.values())
    rows = ["GPU Partition free used free used clients", "chunk chunk SM SM"]
    rows.append(f"{gpu} - {CHUNKS - used} {used} {(CHUNKS - used) * CHUNK + 4} {used * CHUNK} -")
    for name, chunks in partitions.items():
        rows.append(f"{gpu} {name} - {chunks} - {chunks * CHUNK} {'Yes' if name in state.get('using', ()) else 'No'}")
    return "".join(f"{row}\n" for row in rows)


def added(gpu: str, chunks: int, state: dict[str, Any]) -> str:
    if not 0 < chunks <= CHUNKS - sum(partitions.values()):
        error = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"
        return f"Failed to fulfill the requested SM partition of {chunks} chunks, error {error}\n"
    number = next(number for number in range(CHUNKS) if f"D/x{number}A{'A' * 28}" not in partitions)
    name = f"D/x{number}A{'A' * 28}"
    partitions[name] = chunks
    return f"Partition {gpu}/{name} created\n" if state.get("sentence") else f"{gpu}/{name}\n"


def listening(name: str) -> socket.socket:
    if os.path.exists(name):
        os.unlink(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()
    return listener


def serve() -> None:
    state = script()
    if state.get("crash"):
        sys.exit(1)
    if state.get("spawn"):
        server = subprocess.Popen(["sleep", "600"])
        with open(os.path.join(PIPE, "spawned"), "w", encoding="utf-8") as file:
            file.write(str(server.pid))
    # A path longer than 107 characters cannot be bound, and tests' folders are long.
    os.chdir(PIPE)
    os.close(0)
    lock = os.open("control_lock", os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("An instance of this daemon is already running")
    privileged, everybody = listening("control_privileged"), listening("control")
    with open(PID, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    while True:
        for listener in select.select([privileged, everybody], [], [])[0]:
            client, _ = listener.accept()
            with client, client.makefile("rw") as lines:
                for line in iter(lines.readline, ""):
                    obey(line.split(), lines, listener is privileged)


def obey(words: list[str], lines: Any, privileged: bool) -> None:
    print(f"Cmd:{' '.join(words)}", flush=True)
    state = script()
    if state.get("silent") or (words == ["quit"] and state.get("deaf")):
        select.select([lines], [], [])
    elif words == ["quit"] and privileged:
        os.unlink(PID)
        sys.exit(0)
    elif words == ["quit"]:
        lines.write("Not enough privilege to execute quit command\n\n")
    else:
        # Its real form is its own affair; here an empty line ends an answer.
        lines.write(answer(words, state) + "\n")
    lines.flush()


def ask() -> None:
    os.chdir(PIPE)
    with socket.socket(socket.AF_UNIX) as daemon:
        try:
            daemon.connect("control_privileged" if os.path.exists("control_privileged") else "control")
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        with daemon.makefile("rw") as lines:
            for command in sys.stdin:
                lines.write(command)
                lines.flush()
                for line in iter(lines.readline, ""):
                    if line == "\n":
                        break
                    sys.stdout.write(line)


def main() -> None:
    version = script().get("version", 13010)
    known = {"-f"} if script().get("old") else {"-f", "-multiuser-server", "-v", *(("-S",) if version >= 13010 else ())}
    if sys.argv[1:] == ["-v"] and "-v" in known:
        print(version)
    elif not set(sys.argv[1:]) <= known:
        sys.exit("Cannot find MPS control daemon process")
    elif "-f" in sys.argv:
        serve()
    else:
        ask()


if __name__ == "__main__":
    main()
