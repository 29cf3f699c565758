"""The plugin in one file: what it contains, and that the same sources give the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from release.image import check, lock, renew
from release.plugin import single_file as plugin
from tests.unit.manifests.kube import ROOT

LOCK = (ROOT / lock.PLUGIN_LOCK).read_text(encoding="utf-8")
PINS = (ROOT / lock.PLUGIN_PINS).read_text(encoding="utf-8")


def test_the_lock_has_every_pin_of_the_plugin_with_hashes_and_no_other() -> None:
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", LOCK, re.MULTILINE)
    assert {check.normal(name): number for name, number in entries} == check.pins(PINS)
    assert len(entries) == LOCK.count("==")
    assert "://" not in LOCK, "no index is named"


def test_what_the_plugin_requires_is_locked() -> None:
    needed = {check.normal(re.split(r"[<>=!~ \[]", line)[0]) for line in lock.PLUGIN_REQUIREMENTS}
    assert needed <= set(check.pins(PINS))


def test_the_release_installs_the_plugins_packages_by_hash_alone() -> None:
    recipe = re.search(r"(?m)^plugin:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert recipe is not None
    installs = recipe[1].replace("\\\n\t\t", "").splitlines()[1]
    assert "$(if $(LOCKED),--require-hashes)" in installs
    assert installs.endswith("--requirement release/plugin/plugin.$(if $(LOCKED),lock,txt)")
    assert len(re.findall(r"\binstall\b", recipe[1])) == 1


def test_renewing_pins_the_plugins_packages_too(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (tmp_path / lock.PLUGIN_PINS).parent.mkdir(parents=True)

    def ask(lines: object, python: str, machine: str, environment: object) -> list[dict[str, object]]:
        old = list(lines) == list(lock.PLUGIN_REQUIREMENTS)  # type: ignore[call-overload]
        return [{"metadata": {"name": "kubernetes", "version": "33.1.0" if old else "37.0"}}]

    assert renew.main(tmp_path, ask) == 0
    assert (tmp_path / lock.PLUGIN_PINS).read_text() == "kubernetes==33.1.0\n"
    assert (tmp_path / "constraints.txt").read_text() == "kubernetes==37.0\n"


# -- the file -----------------------------------------------------------------------------------------------------


def project(at: Path, *locked: str) -> Path:
    """A project of one module in each of our folders, with a lock of these pins."""
    for name in plugin.OURS:
        (at / name).mkdir(parents=True)
        (at / name / "__init__.py").write_text(f"NAMES = frozenset({{'a', 'b', {name!r}}})\n")
    (at / "kubectl_gpufraction" / "__main__.py").write_text("import yaml\n\ndef run():\n    print(yaml.SAID)\n")
    (at / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (at / lock.PLUGIN_LOCK).parent.mkdir(parents=True)
    found = {pin: {hashlib.sha256(pin.encode()).hexdigest()} for pin in locked}
    (at / lock.PLUGIN_LOCK).write_text(lock.plugin_text(found))
    return at


def installed(at: Path, name: str, module: str, compiled: str = "") -> Path:
    """A package as pip installs it, built on some machine."""
    about = at / f"{name}-1.0.dist-info"
    for folder in (about, at / module, at / "bin", at / module / "__pycache__"):
        folder.mkdir(parents=True, exist_ok=True)
    (at / module / "__init__.py").write_text("SAID = 'ours'\n")
    (at / module / "__pycache__" / "x.pyc").write_bytes(b"")
    record = f"{module}/__init__.py,,\n"
    if compiled:
        (at / module / compiled).write_bytes(os.urandom(8))
        record += f"{module}/{compiled},,\n"
    (about / "RECORD").write_text(record)
    (about / "WHEEL").write_text(f"Tag: cp311-{compiled}\n")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    return at


def test_packages_other_than_the_locks_make_no_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = project(tmp_path / "project", "PyYAML==1.0", "requests==2.0", "six==1.0")
    packages = installed(tmp_path / "packages", "PyYAML", "yaml")
    installed(packages, "requests", "requests")
    installed(packages, "typo_squatted", "typo", compiled="_fast.cpython-311-x86_64-linux-gnu.so")
    output = tmp_path / "out"
    assert plugin.main(["--packages", str(packages), "--output", str(output)], ours) == 1
    assert capsys.readouterr().err.splitlines() == [
        "requests: 1.0, and the lock has 2.0",
        "six: not installed, and the lock has 1.0",
        "typo-squatted: 1.0, and the lock has none",
        "typo-squatted: it has compiled modules, which one file cannot hold",
    ]
    assert not output.exists()


PINNED = st.dictionaries(st.sampled_from(("PyYAML", "requests", "google_auth")), st.sampled_from(("1.0", "1.0.1", "2")))


@given(locked=PINNED, found=PINNED, compiled=st.sampled_from(("", "_fast.so", "_fast.pyd", "deep/_fast.dylib")))
def test_whatever_is_installed_only_what_the_lock_has_makes_a_plugin(
    locked: dict[str, str], found: dict[str, str], compiled: str
) -> None:
    text = lock.plugin_text({f"{name}=={number}": {"0" * 64} for name, number in locked.items()})
    with tempfile.TemporaryDirectory() as folder:
        for name, number in found.items():
            about = Path(folder) / f"{name}-{number}.dist-info"
            about.mkdir()
            (about / "RECORD").write_text(f"{name}/{compiled or 'plain.py'},sha256=x,1\n")
        lines = plugin.wrong(Path(folder), text)
    differ = {check.normal(name) for name, _ in {*locked.items()} ^ {*found.items()}}
    differ |= {check.normal(name) for name in found if compiled} - plugin.WITH_SPEEDUPS
    assert {line.partition(":")[0] for line in lines} == differ


def test_the_same_sources_make_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    made = []
    for number, compiled in enumerate(("_yaml.cpython-311-x86_64-linux-gnu.so", "_yaml.cpython-311-aarch64-gnu.so")):
        ours = project(tmp_path / f"project{number}", "PyYAML==1.0")
        packages = installed(tmp_path / f"packages{number}", "PyYAML", "yaml", compiled)
        output = tmp_path / f"out{number}"
        words = ["--packages", str(packages), "--output", str(output)]
        script = tmp_path / "script.py"
        script.write_text(
            "import sys\nfrom pathlib import Path\nfrom release.plugin import single_file as plugin\n"
            f"sys.exit(plugin.main({words!r}, Path({str(ours)!r})))\n"
        )
        environment = {**os.environ, "PYTHONHASHSEED": str(number + 1), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, str(script)], env=environment, timeout=60, check=True)
        made.append(output)
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as single:
        assert sorted(name for name in single.namelist() if not name.endswith((".pyc", "/"))) == [
            "PyYAML-1.0.dist-info/METADATA",
            "__main__.py",
            "contract/__init__.py",
            "gpufraction-1.2.3.dist-info/METADATA",
            "kubectl_gpufraction/__init__.py",
            "kubectl_gpufraction/__main__.py",
            "runtime/__init__.py",
            "yaml/__init__.py",
        ]
    done = subprocess.run([sys.executable, "-I", str(made[0])], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ours\n"


def test_a_package_without_an_init_file_is_found_in_the_file(tmp_path: Path) -> None:
    ours = project(tmp_path / "project", "google-auth==1.0", "PyYAML==1.0")
    packages = installed(tmp_path / "packages", "PyYAML", "yaml")
    installed(packages, "google-auth", "google/auth")
    (packages / "yaml" / "__init__.py").write_text("from google.auth import SAID\n")
    output = tmp_path / "out"
    assert plugin.main(["--packages", str(packages), "--output", str(output)], ours) == 0
    done = subprocess.run([sys.executable, "-I", str(output)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ours\n"


@pytest.mark.image
def test_the_locked_packages_make_one_file_that_holds_them_all(tmp_path: Path) -> None:
    packages, output = tmp_path / "packages", tmp_path / "kubectl-gpufraction"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:", "--no-deps"]
    pip += ["--no-compile", "--target", str(packages), "--requirement", str(ROOT / lock.PLUGIN_LOCK)]
    subprocess.run(pip, timeout=100, check=True)
    assert plugin.main(["--packages", str(packages), "--output", str(output)]) == 0
    with zipfile.ZipFile(output) as single:
        about = {name.partition("/")[0] for name in single.namelist() if ".dist-info/" in name}
    pairs = [name.removesuffix(".dist-info").rpartition("-") for name in about]
    held = {check.normal(name): number for name, _, number in pairs if name != "gpufraction"}
    assert held == check.pins(PINS)
    command = [sys.executable, "-I", str(output), "version", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("usage: kubectl gpufraction version")
    config = tmp_path / "config"
    config.write_text("{apiVersion: v1, kind: Config, clusters: [], contexts: [], users: []}\n")
    command = [sys.executable, "-I", str(output), "version", "--kubeconfig", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stdout + done.stderr, "the client and all that it imports are found"
