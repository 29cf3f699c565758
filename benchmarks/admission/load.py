"""
`python -m benchmarks.admission.load`: an API server's part in an admission, without the API server.

Sends AdmissionReviews over a few kept-alive TLS connections and prints one JSON object with every latency. With a rate
it is an open loop: reviews are due at fixed times, whether or not earlier ones were answered, and a latency counts from
the time at which the review was due, so that a stall affects everything that it delayed. Without a rate it sends as
fast as answers come.

A process of its own, so that neither what is measured nor the embedded API server shares an interpreter with it.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import math
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.admission import workload
from contract import names

JSON = dict[str, Any]
_TIMEOUT = 10.0
_HEADROOM = 1.0
"""Seconds before the first review is due, in which connections are opened and programs get ready."""


class BrokenAnswer(Exception):
    """The server closed the connection or sent no HTTP."""


class Connection:
    """One kept-alive connection, with no more HTTP than it takes: the generator must cost less than the server."""

    def __init__(self, *, port: int, ca: str, server_name: str) -> None:
        context = ssl.create_default_context(cafile=ca)
        plain = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname=server_name)
        self._host = server_name

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Send one review; status and body of the answer. Raises `BrokenAnswer` or OSError."""
        head = (
            f"POST /mutate?timeout=3s HTTP/1.1\r\nHost: {self._host}:443\r\nUser-Agent: kube-apiserver-admission\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        top, _, rest = answer.partition(b"\r\n\r\n")
        lines = top.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        length = int(fields[b"content-length"])
        while len(rest) < length:
            rest += self._more()
        return int(lines[0].split()[1]), rest

    def _more(self) -> bytes:
        found = self._socket.recv(1 << 16)
        if not found:
            raise BrokenAnswer("the connection was closed")
        return found

    def close(self) -> None:
        self._socket.close()


@dataclass
class Run:
    """The shared state of the senders, and their results."""

    bodies: Sequence[bytes]
    start: float
    until: float
    rate: float
    """Reviews a second; 0: as fast as answers arrive."""
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards what follows
    numbers: Iterator[int] = field(default_factory=itertools.count)
    latencies: list[int] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    last: float = 0.0

    def send(self, connection: Connection) -> None:
        """Take the next review that is due, until the time is over."""
        while True:
            with self.lock:
                number = next(self.numbers)
            due = self.start + (number / self.rate if self.rate else 0.0)
            if due >= self.until or (now := time.perf_counter()) >= self.until + _TIMEOUT:
                return
            if now < due:
                time.sleep(due - now)
            elif not self.rate:
                due = now
                if now >= self.until:
                    return
            try:
                answer = connection.post(self.bodies[number % len(self.bodies)])
            except (OSError, BrokenAnswer) as error:
                with self.lock:
                    self.errors[type(error).__name__] += 1
                return
            ended = time.perf_counter()
            with self.lock:
                self.latencies.append(round((ended - due) * 1e9))
                self.answers.append(answer)
                self.last = max(self.last, ended)


def outcome(status: int, body: bytes) -> str:
    """The outcome of a review: `placed`, `gated`, `untouched`, `denied`, or `status N`."""
    if status != 200:
        return f"status {status}"
    response = json.loads(body)["response"]
    if not response["allowed"]:
        return "denied"
    if "patch" not in response:
        return "untouched"
    for operation in json.loads(base64.b64decode(response["patch"])):
        if operation["path"].startswith("/spec/schedulingGates") and names.GATE in json.dumps(operation):
            return "gated"
    return "placed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Send, and print the figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission.load", description="Send AdmissionReviews.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ca", required=True, help="file with the authority that signed the server's certificate")
    parser.add_argument("--server-name", required=True, help="name that the certificate must be for")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--rate", type=float, default=0.0, help="reviews a second; 0: as fast as answers come")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=4)
    given = parser.parse_args(arguments)
    bodies = list(workload.reviews(1000, namespace=given.namespace))
    connections = [
        Connection(port=given.port, ca=given.ca, server_name=given.server_name) for _ in range(given.connections)
    ]
    start = time.perf_counter() + _HEADROOM
    run = Run(bodies, start, start + given.seconds, given.rate)
    threads = [threading.Thread(target=run.send, args=(each,), name="sender", daemon=True) for each in connections]
    time.sleep(_HEADROOM / 2)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()
    # Reviews that were due and never sent, because those before them took until long after the end, would be missing.
    unsent = math.ceil(given.rate * given.seconds) - len(run.latencies) - run.errors.total()
    if unsent > 0:
        run.errors["unsent"] = unsent
    outcomes = Counter(outcome(*answer) for answer in run.answers)
    json.dump(
        {
            "latency_ns": run.latencies,
            "seconds": max(run.last - run.start, 1e-9),
            "outcomes": dict(outcomes),
            "errors": dict(run.errors),
        },
        sys.stdout,
    )
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
