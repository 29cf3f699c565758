"""
Certificates and TLS if only approved algorithms are available: OpenSSL's configuration allows AES-GCM, P-256 and P-384,
and MD5 and SHA-1 raise. It is not a validated module, because none is available here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
CONFIGURATION = """
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = restricted
[restricted]
MinProtocol = TLSv1.2
CipherString = ECDHE+AESGCM:@SECLEVEL=2
Ciphersuites = TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256
Groups = P-256:P-384
SignatureAlgorithms = ECDSA+SHA256:ECDSA+SHA384:RSA-PSS+SHA256
"""
SCRIPT = """
import hashlib, json, ssl, sys, datetime
from pathlib import Path

def refused(*given, **more):
    raise ValueError("not approved")

hashlib.md5 = hashlib.sha1 = refused
import nodeagent.app, allocator.app, webhook.app  # all that the programs load
from webhook.certificates.authority import renewed, service_names
from webhook.serving.tls import ServingContext
from runtime.tls import _own

folder = Path(sys.argv[1])
made = renewed(None, datetime.datetime.now(datetime.UTC), service_names("gpufraction-webhook", "gpufraction-system"))
(folder / "tls.crt").write_bytes(made.certificate)
(folder / "tls.key").write_bytes(made.key)

def handshake(server_context, client_context, name):
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up, server_hostname=name)
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return [client.version(), client.cipher()[0]]

found = {}
for version in ("TLSv1_2", "TLSv1_3"):
    client = ssl.create_default_context(cadata=made.ca.decode())
    client.minimum_version = client.maximum_version = getattr(ssl.TLSVersion, version)
    found[version] = handshake(ServingContext(folder).current(), client, "gpufraction-webhook.gpufraction-system.svc")
open_client = ssl._create_unverified_context()
found["metrics"] = handshake(_own(), open_client, None)
print(json.dumps(found))
"""


def test_admission_is_served_with_approved_algorithms_alone(tmp_path: Path) -> None:
    config = tmp_path / "openssl.cnf"
    config.write_text(CONFIGURATION)
    environment = {**os.environ, "OPENSSL_CONF": str(config), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: version for name, (version, _) in found.items()} == {
        "TLSv1_2": "TLSv1.2",
        "TLSv1_3": "TLSv1.3",
        "metrics": "TLSv1.3",
    }
    assert all("AES" in cipher and "GCM" in cipher for _, cipher in found.values())
