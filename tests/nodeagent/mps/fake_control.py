"""
An `nvidia-cuda-mps-control` without a GPU: a real process with a real socket, so that what is tested is the starting,
finding, asking and ending of processes.

With `-f` it is the daemon, without it asks the daemon one line of standard input. What the daemon does is read at every
command from `fake.json` in its pipe directory, so that a test changes its mind for it:

    crash: true         end at once with status 1
    silent: true        take commands and answer none
    deaf: true          do not end when told to
    status: FAULT       of every server; ACTIVE otherwise
    servers: {"71": [72, 73]}    servers and their clients, by process id
    spawn: true         start a process that stands for a server, and outlives the daemon
"""

import json
import os
import select
import socket
import subprocess
import sys
from typing import Any

PIPE = os.environ["CUDA_MPS_PIPE_DIRECTORY"]


def script() -> dict[str, Any]:
    try:
        with open(os.path.join(PIPE, "fake.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        return {}


def answer(words: list[str], said: dict[str, Any]) -> str:
    servers = said.get("servers", {})
    match words:
        case ["get_server_list"]:
            return "".join(f"{pid}\n" for pid in servers)
        case ["get_server_status", pid]:
            return said.get("status", "ACTIVE") + "\n" if pid in servers else "no such server\n"
        case ["get_client_list", pid]:
            return "".join(f"{client}\n" for client in servers.get(pid, []))
    return "unknown command\n"


def serve() -> None:
    said = script()
    if said.get("crash"):
        sys.exit(1)
    if said.get("spawn"):
        server = subprocess.Popen(["sleep", "600"])
        with open(os.path.join(PIPE, "spawned"), "w", encoding="utf-8") as file:
            file.write(str(server.pid))
    # A path longer than 107 characters cannot be bound, and tests' folders are long.
    os.chdir(PIPE)
    if os.path.exists("control"):
        sys.exit("another daemon is there")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("control")
    listener.listen()
    waiting: list[Any] = [0, listener]
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if 0 in ready:
            line = os.read(0, 1024)
            if not line or (b"quit" in line and not script().get("deaf")):
                os.unlink("control")
                sys.exit(0)
        if listener in ready:
            client, _ = listener.accept()
            with client:
                command = client.recv(1024).decode()
                if script().get("silent"):
                    select.select([client], [], [])
                else:
                    client.sendall(answer(command.split(), script()).encode())


def ask() -> None:
    os.chdir(PIPE)
    with socket.socket(socket.AF_UNIX) as daemon:
        try:
            daemon.connect("control")
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        daemon.sendall(sys.stdin.readline().encode())
        while part := daemon.recv(4096):
            sys.stdout.write(part.decode())


if "-f" in sys.argv:
    serve()
else:
    ask()
