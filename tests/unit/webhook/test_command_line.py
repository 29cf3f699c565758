"""The two commands: their settings, and the messages about wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.settings import load
from webhook.__main__ import main
from webhook.certificates.store import Directories
from webhook.settings import CertsSettings


def test_defaults_environment_flags_in_rising_order() -> None:
    given = load(
        CertsSettings,
        file=None,
        env={"GPUFRACTION_DIR": "/certs", "GPUFRACTION_DAYS": "4"},
        argv=["--days", "8"],
    )
    assert (given.dir, given.days, given.every) == (Path("/certs"), 8, 0.0)


def test_a_file_of_settings_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "certs.yaml"
    file.write_text(f"dir: {tmp_path / 'made'}\nlog_level: error\n")
    assert [main(["certs", f"--settings={file}"], {}), main(["certs", "--settings", str(file)], {})] == [0, 0]
    assert Directories(tmp_path / "made", tmp_path / "authority").read() is not None
    assert main(["certs", "--settings", str(tmp_path / "none.yaml")], {}) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_names_of_the_certificate() -> None:
    given = load(CertsSettings, file=None, env={}, argv=["--names", "a, b"])
    service = "gpufraction-webhook"
    ours = (service, f"{service}.gpufraction-system", f"{service}.gpufraction-system.svc")
    assert given.dns_names() == (*ours, f"{ours[-1]}.cluster.local", "a", "b")


WRONG = {
    "no number": (["certs", "--days", "many"], {}, "days (flag --days): 'many': expected a whole number"),
    "a setting that is a constant now": (
        ["serve", "--allocator-timeout", "1s"],
        {},
        "allocator_timeout (flag --allocator-timeout): removed; a review waits 800 ms for the allocator",
    ),
    "wrong in the environment": (["certs"], {"GPUFRACTION_DAYS": "9999"}, "expected at most 3650"),
    "a setting that is an option now": (
        ["serve", "--dialects-aliyun-unit", "MiB"],
        {},
        "dialects.aliyun_unit (flag --dialects-aliyun-unit): removed; give aliyunUnit in the document of options",
    ),
    "names without an authority": (["serve", "--client-names", "a"], {}, "give client_ca, the authority that signs"),
    "no port": (["serve", "--listen", "9444"], {}, "listen is '9444'; give address and port such as [::]:9444"),
    "unknown": (["certs", "--directory", "/tmp"], {}, "flag --directory: unknown"),
    "no command": ([], {}, "command: found '', give serve, certs or conditions"),
    "another command": (["run"], {}, "command: found 'run', give serve, certs or conditions"),
}


@pytest.mark.parametrize(("arguments", "environment", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_settings_are_named_with_what_would_work(
    arguments: list[str], environment: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, environment) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["certs", "-h"]])
def test_help_lists_every_setting(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments, {}) == 0
    shown = capsys.readouterr().out
    assert "`GPUFRACTION_HOST_PATHS`" in shown
    assert "`GPUFRACTION_CONFIGURATION`" in shown


def test_certificates_are_made_and_the_deed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = tmp_path / "served"
    arguments = ["certs", "--dir", str(served), "--names", "localhost"]
    assert [main(arguments, {}), main(arguments, {})] == [0, 0]
    assert capsys.readouterr().out.splitlines() == [
        f"a new certificate is in {served} (missing: there is no complete certificate)",
        f"the certificate in {served} is good",
    ]
    assert Directories(served, tmp_path / "authority").read() is not None
