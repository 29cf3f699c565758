"""
Calls a webhook: the address behind its Service, TLS with its CA bundle, one POST on a connection that is kept open.
"""

import base64
import binascii
import http.client
import json
import random
import ssl
import tempfile
import threading
from typing import Any
from urllib.parse import urlsplit

import urllib3

from playground.api.admission.webhookcaller import CallFailed
from playground.api.kinds.values import JSON, dig
from playground.api.store.store import Store

_CONNECTIONS = 8
_SLICE_LABEL = "kubernetes.io/service-name"


class WebhookClient:
    """A `WebhookCaller` over HTTPS. Connections are kept open per address, server name and CA bundle."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pools: dict[tuple[str, int, str, str], urllib3.HTTPSConnectionPool] = {}
        self._lock = threading.Lock()
        self._identity: tuple[bytes, bytes] | None = None

    def identify(self, certificate: bytes, key: bytes) -> None:
        """Show every webhook this certificate, as an API server does if its admission configuration names one."""
        self._identity = certificate, key

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.close()
            self._pools.clear()

    def call(self, hook: JSON, review: JSON) -> Any:
        """POST a review; the answer as a JSON value. Raises `CallFailed`."""
        timeout = float(hook.get("timeoutSeconds") or 10)
        client = hook["clientConfig"]
        name, port, path = _target(client)
        url = f"https://{name}:{port}{path}{'&' if '?' in path else '?'}timeout={int(timeout)}s"
        address = self._address(client["service"], url) if "service" in client else (name, port)
        pool = self._pool(address, name, client.get("caBundle") or "")
        body = json.dumps(review).encode()
        return self._answer(self._post(pool, urlsplit(url), url, body, timeout), url)

    def _post(self, pool: urllib3.HTTPSConnectionPool, parts: Any, url: str, body: bytes, timeout: float) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Host": parts.netloc}
        limit = urllib3.Timeout(total=timeout)
        target = f"{parts.path}?{parts.query}"
        for attempt in (1, 2):
            try:
                return pool.urlopen("POST", target, body=body, headers=headers, timeout=limit, retries=False)
            except urllib3.exceptions.ProtocolError as failure:
                # The webhook closed a kept connection while we wrote to it, so it never saw the request.
                closed = any(isinstance(part, http.client.RemoteDisconnected) for part in failure.args)
                if not closed or attempt == 2:
                    raise CallFailed(f'failed to call webhook: Post "{url}": EOF') from None
            except (urllib3.exceptions.HTTPError, OSError) as failure:
                raise CallFailed(f'failed to call webhook: Post "{url}": {_words(failure, pool)}') from None
        return None

    def _answer(self, response: Any, url: str) -> Any:
        if response.status != 200:
            text = response.data[:512].decode("utf-8", "replace").strip()
            why = "the server rejected our request for an unknown reason"
            if response.status >= 500:
                why = f'an error on the server ("{text}") has prevented the request from succeeding'
            raise CallFailed(f"failed to call webhook: {why}")
        try:
            return json.loads(response.data)
        except ValueError as failure:
            raise CallFailed(f"failed to call webhook: the answer of {url} is not JSON: {failure}") from None

    def _pool(self, address: tuple[str, int], name: str, bundle: str) -> urllib3.HTTPSConnectionPool:
        key = (*address, name, bundle)
        with self._lock:
            if (pool := self._pools.get(key)) is None:
                pool = self._pools[key] = urllib3.HTTPSConnectionPool(
                    address[0],
                    address[1],
                    maxsize=_CONNECTIONS,
                    ssl_context=self._context(bundle),
                    server_hostname=name,
                    assert_hostname=name,
                )
            return pool

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = _context(bundle)
        if self._identity is not None:
            with tempfile.NamedTemporaryFile() as file:  # the library takes files only
                file.write(b"".join(self._identity))
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def _address(self, service: JSON, url: str) -> tuple[str, int]:
        namespace, name, port = service["namespace"], service["name"], service.get("port", 443)
        found = self._store.get("services", (namespace, name))
        if found is None:
            raise CallFailed(f'failed to call webhook: Post "{url}": service "{name}" not found')
        ports = dig(found, "spec", "ports") or ()
        wanted = next((entry for entry in ports if entry.get("port") == port), None)
        if wanted is None:
            raise CallFailed(f'failed to call webhook: Post "{url}": no service port {port} found for service "{name}"')
        addresses = [*self._from_slices(namespace, name, wanted), *self._from_endpoints(namespace, name, wanted)]
        if not addresses:
            raise CallFailed(f'failed to call webhook: Post "{url}": no endpoints available for service "{name}"')
        return random.choice(addresses)

    def _from_slices(self, namespace: str, name: str, wanted: JSON) -> list[tuple[str, int]]:
        found = []
        for entry in self._store.scan("endpointslices.discovery.k8s.io", namespace):
            if (entry["metadata"].get("labels") or {}).get(_SLICE_LABEL) != name:
                continue
            port = _port(entry.get("ports") or (), wanted)
            for endpoint in entry.get("endpoints") or ():
                if port is not None and dig(endpoint, "conditions", "ready") is not False:
                    found += [(address, port) for address in endpoint.get("addresses") or ()]
        return found

    def _from_endpoints(self, namespace: str, name: str, wanted: JSON) -> list[tuple[str, int]]:
        found = []
        for subset in (self._store.get("endpoints", (namespace, name)) or {}).get("subsets") or ():
            port = _port(subset.get("ports") or (), wanted)
            if port is not None:
                found += [(address["ip"], port) for address in subset.get("addresses") or ()]
        return found


def _words(failure: Exception, pool: urllib3.HTTPSConnectionPool) -> str:
    """Why there is no response, in the words of a real API server, for which people and `check` look."""
    if isinstance(failure, urllib3.exceptions.NewConnectionError):  # it counts as a timeout in every case
        refused = isinstance(failure.__cause__, ConnectionRefusedError)
        return f"dial tcp {pool.host}:{pool.port}: connect: connection refused" if refused else str(failure)
    if isinstance(failure, urllib3.exceptions.TimeoutError):
        return "context deadline exceeded"
    cause = failure.args[0] if failure.args else None
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = _UNTRUSTED.get(cause.verify_code, cause.verify_message)
        return f"tls: failed to verify certificate: x509: {why}"
    return str(failure)


_OUTSIDE_ITS_TIME = "certificate has expired or is not yet valid"
_STRANGER = "certificate signed by unknown authority"
_UNTRUSTED = {9: _OUTSIDE_ITS_TIME, 10: _OUTSIDE_ITS_TIME, **dict.fromkeys((18, 19, 20, 21), _STRANGER)}
"""By X509_V_ERR_... of OpenSSL."""


def _port(ports: Any, wanted: JSON) -> int | None:
    """The endpoint port of a service port: the one of the same name."""
    name = wanted.get("name") or ""
    return next((int(entry["port"]) for entry in ports if (entry.get("name") or "") == name), None)


def _target(client: JSON) -> tuple[str, int, str]:
    """Server name, port and path. A Service is called by its DNS name, at any address."""
    if service := client.get("service"):
        name = f"{service['name']}.{service['namespace']}.svc"
        return name, int(service.get("port", 443)), service.get("path") or "/"
    parts = urlsplit(client.get("url") or "")
    if parts.scheme != "https" or not parts.hostname:
        raise CallFailed(f"failed to call webhook: url {client.get('url')!r} is not an https URL")
    return parts.hostname, parts.port or 443, parts.path + (f"?{parts.query}" if parts.query else "") or "/"


def _context(bundle: str) -> ssl.SSLContext:
    """TLS that trusts exactly the bundle (base64 of PEM), or the system's roots where there is none."""
    if not bundle:
        return ssl.create_default_context()
    try:
        pem = base64.b64decode(bundle, validate=True).decode()
        return ssl.create_default_context(cadata=pem)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as failure:
        raise CallFailed(f"failed to call webhook: unable to load root certificates: {failure}") from None
