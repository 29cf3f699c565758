"""`::` means every address of the machine; on a machine without IPv6 it means every IPv4 address."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from runtime import httpserver
from runtime.httpserver import ANYWHERE, listening, source_of

IPV6 = pytest.mark.skipif(not httpserver.has_ipv6(), reason="this machine has no IPv6")


def reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


@IPV6
@pytest.mark.parametrize(
    ("host", "want"),
    [(ANYWHERE, (True, True)), ("::1", (False, True)), ("127.0.0.1", (True, False)), ("0.0.0.0", (True, False))],
)
def test_who_reaches_what_listens_there(host: str, want: tuple[bool, bool]) -> None:
    with listening((host, 0)) as made:
        port = made.getsockname()[1]
        assert (reached("127.0.0.1", port), reached("::1", port)) == want


@IPV6
def test_a_client_by_ipv4_counts_as_itself_where_both_are_listened_on() -> None:
    with listening((ANYWHERE, 0)) as made, socket.create_connection(made.getsockname()[:2], timeout=5):
        accepted, _ = made.accept()
        accepted.close()
        with socket.create_connection(("127.0.0.1", made.getsockname()[1]), timeout=5):
            other, address = made.accept()
            other.close()
    assert source_of(address) == "127.0.0.1"


_ONLY_IPV4 = """
import socket
from runtime.httpserver import ANYWHERE, has_ipv6, listening
with listening((ANYWHERE, 0)) as made:
    print(has_ipv6(), made.family.name, made.getsockname()[0])
"""


def test_without_ipv6_it_is_every_address_of_ipv4() -> None:
    """A socket that refuses the family simulates a kernel with ipv6.disable=1."""
    source = "import socket\n_real = socket.socket\n" + _REFUSING + _ONLY_IPV4
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["False", "AF_INET", "0.0.0.0"], "")


_REFUSING = """
class _Refusing(_real):
    def __init__(self, family=socket.AF_INET, *rest, **more):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        super().__init__(family, *rest, **more)
socket.socket = _Refusing
"""
