"""
The image's build without an engine, on a small project with the same structure: what it accepts, and what it refuses.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from release.image import check, lock, pin, rehearse
from release.image.check import Unfit
from release.image.rehearse import Step
from tests.unit.manifests.kube import ROOT

FOLDERS = ("runtime", *check.PROGRAMS, check.PLUGIN)
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")

# Builds our wheel with only the standard library, so that no test asks an index for setuptools.
BACKEND = textwrap.dedent("""\
    import zipfile
    from pathlib import Path

    NAME = "gpufraction-1.0"
    ABOUT = "Metadata-Version: 2.1\\nName: gpufraction\\nVersion: 1.0\\nRequires-Dist: one\\n"
    PROGRAMS = ("gpufraction-webhook = webhook.__main__:main", "gpufraction-allocator = allocator.__main__:main",
                "gpufraction-nodeagent = nodeagent.__main__:main",
                "kubectl-gpufraction = kubectl_gpufraction.__main__:main")

    def build_wheel(folder, config_settings=None, metadata_directory=None):
        files = {str(file): file.read_text() for file in Path().glob("*/*.py")}
        files |= {
            f"{NAME}.dist-info/METADATA": ABOUT,
            f"{NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any",
            f"{NAME}.dist-info/entry_points.txt": "\\n".join(["[console_scripts]", *PROGRAMS]),
        }
        with zipfile.ZipFile(Path(folder) / f"{NAME}-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)
            wheel.writestr(f"{NAME}.dist-info/RECORD", "".join(f"{name},,\\n" for name in files))
        return f"{NAME}-py3-none-any.whl"
    """)
PROJECT = textwrap.dedent("""\
    [build-system]
    requires = []
    build-backend = "backend"
    backend-path = ["."]

    [project]
    name = "gpufraction"
    version = "1.0"
    dependencies = ["one"]
    """)


def put(path: Path, text: str) -> None:
    """Write a file, and create the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def wheel(index: Path, name: str, *needs: str, tag: str = "py3-none-any") -> None:
    """A wheel of version 1.0 with one empty module."""
    about = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": "",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{about}",
        f"{name}-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(index / f"{name}-1.0-{tag}.whl", "w") as file:
        for path, text in files.items():
            file.writestr(path, text)
        file.writestr(f"{name}-1.0.dist-info/RECORD", "".join(f"{path},,\n" for path in files))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The only place where pip finds distributions."""
    made = tmp_path / "index"
    made.mkdir()
    return made


@pytest.fixture
def environment(index: Path) -> dict[str, str]:
    """The environment with no other index."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**mine, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three programs that print something, a package that they all need, and the real steps."""
    made = tmp_path / "project"
    for name in FOLDERS:
        put(made / name / "__init__.py", "")
        put(
            made / name / "__main__.py",
            "import runtime\ndef main():\n    print('well')\nif __name__ == '__main__': main()",
        )
    for name in ("build.sh", "check.py"):
        put(made / "release" / "image" / name, (ROOT / "release" / "image" / name).read_text(encoding="utf-8"))
    put(made / "backend.py", BACKEND)
    put(made / "pyproject.toml", PROJECT)
    put(made / "constraints.txt", "one==1.0\n")
    copies = "".join(f"COPY {name} {name}\n" for name in (*FOLDERS, "release/image"))
    put(
        made / "Containerfile",
        "FROM base AS build\nWORKDIR /src\n"
        f"COPY pyproject.toml backend.py constraints.txt requirements.lock ./\n{copies}"
        "RUN sh release/image/build.sh \\\n    /opt/gpufraction\nFROM base\nRUN exit 1\n",
    )
    put(made / lock.LOCK, lock.text({}, {}, {}))
    kept = ("pyproject.toml", "backend.py", "constraints.txt", lock.LOCK, *FOLDERS, "release/image")
    put(made / ".containerignore", "".join(["*\n", *(f"!{name}\n" for name in kept)]))
    return made


def locked(project: Path, index: Path) -> None:
    """Write the hashes of every wheel in the index into the project's lock."""
    found = {
        f"{file.name.split('-')[0]}==1.0": {hashlib.sha256(file.read_bytes()).hexdigest()}
        for file in index.glob("*.whl")
    }
    put(project / lock.LOCK, lock.text(found, {}, {}))


def without(file: Path, line: str) -> None:
    """Remove one line."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert f"{line}\n" in lines
    file.write_text("".join(found for found in lines if found != f"{line}\n"), encoding="utf-8")


@pytest.mark.image
def test_the_first_stage_makes_an_environment_with_the_programs_and_without_pip(
    project: Path, index: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    wheel(index, "one")
    locked(project, index)
    place = rehearse.rehearse(project, tmp_path / "scratch", environment)
    commands = {file.name for file in (place / "bin").iterdir()}
    assert {name for name in commands if "gpufraction" in name or name.startswith("pip")} == {
        *(f"gpufraction-{program}" for program in check.PROGRAMS),
        "kubectl-gpufraction",
    }
    output = subprocess.run(
        [place / "bin" / "gpufraction-allocator"], cwd="/", capture_output=True, timeout=60, check=True
    )
    assert output.stdout == b"well\n"


def _folder_forgotten(project: Path, index: Path) -> None:
    wheel(index, "one")
    without(project / "Containerfile", "COPY runtime runtime")


def _folder_left_out(project: Path, index: Path) -> None:
    without(project / ".containerignore", "!runtime")


def _program_forgotten(project: Path, index: Path) -> None:
    wheel(index, "one")
    without(project / "Containerfile", "COPY nodeagent nodeagent")


def _no_wheel(project: Path, index: Path) -> None:
    put(project / "PKG-INFO", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
    with tarfile.open(index / "one-1.0.tar.gz", "w:gz") as source:
        source.add(project / "PKG-INFO", "one-1.0/PKG-INFO")


def _no_pin(project: Path, index: Path) -> None:
    wheel(index, "one", "another")
    wheel(index, "another")


def _undeclared_dependency(project: Path, index: Path) -> None:
    wheel(index, "one")
    put(project / "runtime" / "later.py", "import another")


def _writes(project: Path, index: Path) -> None:
    wheel(index, "one")
    text = "from pathlib import Path\nPath(__file__).with_name('written').write_text('')"
    put(project / "webhook" / "__init__.py", text)


def _not_locked(project: Path, index: Path) -> None:
    wheel(index, "one")
    put(project / lock.LOCK, lock.text({}, {}, {"one==1.0": {"0" * 64}}))


def _exchanged(project: Path, index: Path) -> None:
    wheel(index, "one")
    locked(project, index)
    wheel(index, "one", "two")


def _half_locked(project: Path, index: Path) -> None:
    wheel(index, "one")
    wheel(index, "another")
    locked(project, index)
    text = (project / lock.LOCK).read_text(encoding="utf-8")
    wheel(index, "one", "another")
    new = hashlib.sha256((index / "one-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    put(project / lock.LOCK, lock.text({"one==1.0": {new}}, {}, {}) if "another" in text else "")


LOCKED_BY_ITSELF = (_not_locked, _exchanged, _half_locked)
FAULTS = {
    "a folder that a program needs is not copied": (_folder_forgotten, "No module named 'runtime'"),
    "a program is not copied": (_program_forgotten, "No module named nodeagent"),
    "a folder is kept from the engine": (_folder_left_out, "COPY runtime: .containerignore leaves it out"),
    "a dependency has no wheel": (_no_wheel, "No matching distribution found for one"),
    "a dependency is not in the lock": (
        _not_locked,
        "requirements.lock lacks a dependency; `make lock` writes the file",
    ),
    "a wheel was exchanged": (_exchanged, "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"),
    "a dependency of a dependency is not in the lock": (_half_locked, "another"),
    "a dependency's dependency has no pin": (
        _no_pin,
        "constraints.txt: another==1.0 is installed, it has no pin; pin the version that was tested",
    ),
    "a dependency is not told": (_undeclared_dependency, "runtime.later cannot be imported: No module named 'another'"),
    "a program writes beside its code": (_writes, "written"),
}


@pytest.mark.image
@pytest.mark.parametrize(("make", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_that_would_be_in_the_image_fails(
    make: Callable[[Path, Path], None],
    says: str,
    project: Path,
    index: Path,
    environment: dict[str, str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    make(project, index)
    if make not in LOCKED_BY_ITSELF:
        locked(project, index)
    with pytest.raises(Unfit) as unfit:
        rehearse.rehearse(project, tmp_path / "scratch", environment)
    assert says in f"{unfit.value}\n{capfd.readouterr().err}"


@pytest.mark.image
def test_every_architecture_needs_its_wheel_and_the_pins(
    project: Path, index: Path, environment: dict[str, str]
) -> None:
    wheel(index, "one", tag="cp312-cp312-manylinux_2_28_aarch64")
    assert rehearse.wheels(project, "3.12", "aarch64", environment) == 1
    assert rehearse.wheels(project, "3.12", "x86_64", environment) is None, "a mirror with nothing for it says nothing"
    wheel(index, rehearse.CONTROL)
    with pytest.raises(Unfit, match=r"x86_64: a dependency has no wheel for Python 3\.12") as unfit:
        rehearse.wheels(project, "3.12", "x86_64", environment)
    assert "The user requested (constraint) one==1.0" in str(unfit.value)
    wheel(index, "two")
    put(project / "pyproject.toml", PROJECT.replace('"one"', '"one", "two"'))
    with pytest.raises(Unfit, match=r"two==1\.0 is installed, it has no pin"):
        rehearse.wheels(project, "3.12", "aarch64", environment)


def test_what_a_containerfile_says_is_read_stage_by_stage() -> None:
    first = "ARG PYTHON=python:3.12-slim\n\n# COPY no no\nFROM a AS b\nRUN one \\\n    && two\ncopy x y\n"
    found = rehearse.steps(f"{first}FROM c\nRUN three\n")
    assert rehearse.build_stage(found) == (Step("RUN", "one && two"), Step("COPY", "x y"))
    assert rehearse.python_of(found) == "3.12"
    for bad in ("", "ARG PYTHON=debian:12\n"):
        with pytest.raises(Unfit, match="the base is not python:VERSION"):
            rehearse.python_of(rehearse.steps(bad))
    with pytest.raises(Unfit, match="no FROM"):
        rehearse.build_stage(rehearse.steps("RUN one"))


def test_what_is_not_understood_is_reported(project: Path, environment: dict[str, str], tmp_path: Path) -> None:
    put(project / "Containerfile", "FROM base\nADD a b\n")
    with pytest.raises(Unfit, match="ADD in the build stage is not supported here"):
        rehearse.rehearse(project, tmp_path / "scratch", environment)
    with pytest.raises(Unfit, match="does not begin with"):
        rehearse.let_through("!a\n", "a")


def test_pins_are_exact_and_names_have_one_spelling() -> None:
    assert check.pins("Flask==3.1.3  # why\n\nast_serialize==0.13\n") == {"flask": "3.1.3", "ast-serialize": "0.13"}
    for loose in ("flask>=3", "flask", "flask==3.*", "flask==3 ; python_version<'3.12'"):
        with pytest.raises(check.Unfit, match=r"is not NAME==VERSION"):
            check.pins(loose)
    assert check.unpinned({"gpufraction": "1", "a": "1", "b": "1"}, {"a": "1", "b": "2"}) == [
        "constraints.txt: b==1 is installed, 2 is pinned; pin the version that was tested"
    ]


def test_what_others_may_write_is_reported(tmp_path: Path) -> None:
    put(tmp_path / "kept", "")
    put(tmp_path / "open", "")
    (tmp_path / "kept").chmod(0o644)
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert check.writable(tmp_path) == [f"{tmp_path / 'open'} can be written to by user 65532"]


def test_a_misplaced_module_and_a_failing_program_are_reported() -> None:
    assert check.strays(("json", "no_such_module")) == ["json is in the image, and has no place there"]
    assert check.started(["sh", "-c", "echo well"], os.environ) == []
    assert check.started(["sh", "-c", "echo why >&2; exit 3"], os.environ) == [
        "sh -c echo why >&2; exit 3: status 3, 0 characters of output\nwhy\n"
    ]
    assert check.started(["true"], os.environ) == ["true: status 0, 0 characters of output\n"]
    [missing] = check.started(["no-such-program"], {"PATH": "/nonexistent"})
    assert missing.startswith("no-such-program: ")


def test_every_engine_reads_the_same_list_of_what_it_may_see() -> None:
    assert (ROOT / ".dockerignore").resolve() == ROOT / ".containerignore"


def _made(*words: str) -> list[str]:
    """What `make image` would run, whichever make runs this test."""
    command = ["make", "--no-print-directory", "-n", "image", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True, timeout=60
    )
    return [" ".join(line.split()) for line in done.stdout.splitlines() if not line.startswith("test ")]


def test_several_platforms_are_a_new_list_or_a_tag_as_the_engine_has_it() -> None:
    several, last = "PLATFORMS=linux/amd64,linux/arm64", "a:1 --file Containerfile ."
    for engine in ("podman", "buildah --storage-driver vfs"):
        assert _made(f"ENGINE={engine}", "IMAGE=a:1", several) == [
            f"{engine} manifest rm a:1 >/dev/null 2>&1 || {engine} rmi a:1 >/dev/null 2>&1 || true",
            f"{engine} build --platform linux/amd64,linux/arm64 --manifest {last}",
        ]
    assert _made("ENGINE=docker", "IMAGE=a:1", several, "BUILD=--push") == [
        f"docker build --push --platform linux/amd64,linux/arm64 --tag {last}"
    ]
    assert _made("ENGINE=podman", "IMAGE=a:1") == [f"podman build --tag {last}"]


def test_the_containerfile_is_what_the_checks_assume() -> None:
    found = rehearse.steps(CONTAINERFILE)
    stage = rehearse.build_stage(found)
    assert stage[0] == Step("WORKDIR", "/src")
    assert [step.rest for step in stage if step.word == "RUN"] == [f"sh release/image/build.sh {rehearse.PLACE}"]
    last = found[len(found) - found[::-1].index(next(step for step in found[::-1] if step.word == "FROM")) :]
    assert Step("COPY", f"--from=build {rehearse.PLACE} {rehearse.PLACE}") in last
    assert Step("USER", f"{check.NOBODY}:{check.NOBODY}") in last
    assert Step("WORKDIR", "/") in last
    assert Step("ENTRYPOINT", '["python", "-m"]') in last
    [variables] = [step.rest for step in last if step.word == "ENV"]
    assert set(re.findall(r"(\w+=\S+)", variables)) == {
        f"PATH={rehearse.PLACE}/bin:$PATH",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
    }


# -- hashes and digests -------------------------------------------------------------------------------------------


def test_a_lock_has_its_parts_and_no_pin_twice() -> None:
    made = lock.text({"a==1": {"2", "1"}}, {"b==2": {"3"}}, {"a==1": {"1"}, "c==3": {"4"}})
    assert made.partition("\n\n")[2] == textwrap.dedent("""\
        # -- the programs
        a==1 \\
            --hash=sha256:1 \\
            --hash=sha256:2

        # -- what builds our wheel
        b==2 \\
            --hash=sha256:3

        # -- the tools of this repository
        c==3 \\
            --hash=sha256:4
        """)


def test_wheels_of_several_machines_are_of_one_pin() -> None:
    assert lock.together([{"a==1": {"1"}}, {"a==1": {"2"}, "b==1": {"3"}}]) == {"a==1": {"1", "2"}, "b==1": {"3"}}


def test_every_pin_has_hashes_and_every_hash_a_pin() -> None:
    text = (ROOT / lock.LOCK).read_text(encoding="utf-8")
    locked_pins = check.pins("\n".join(re.findall(r"^[\w.-]+==[^ ]+", text, re.MULTILINE)))
    pinned = check.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert {name: version for name, version in locked_pins.items() if pinned.get(name) != version} == {}
    assert set(pinned) - set(locked_pins) == set()
    entries = re.findall(r"^[\w.-]+==\S+ \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", text, re.MULTILINE)
    assert len(entries) == len(locked_pins)
    assert "://" not in text, "no index is named"


def test_the_image_installs_all_that_the_programs_and_their_wheel_need() -> None:
    parts = re.split(r"^(# -- .+)$", (ROOT / lock.LOCK).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert parts[1::2] == [lock.PROGRAMS, lock.BUILD, lock.TOOLS]
    named = [{check.normal(name) for name in re.findall(r"^([\w.-]+)==", part, re.MULTILINE)} for part in parts[2::2]]
    programs, build, tools = lock.wanted(ROOT)
    for listed, found in ((programs, named[0]), (build, named[1])):
        assert {check.normal(re.split(r"[<>=!~ \[]", line)[0]) for line in listed} <= found
    assert {check.normal(re.split(r"[<>=!~ \[]", line)[0]) for line in tools} <= set().union(*named)
    assert named[0] & named[2] == set()


def test_the_base_is_named_by_digest() -> None:
    [named] = [step.rest for step in rehearse.steps(CONTAINERFILE) if step.word == "ARG"]
    assert re.fullmatch(r"PYTHON=\S+:3\.12\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", named)


def test_digests_are_those_of_the_list_and_written_where_images_are_named() -> None:
    raw = b'{"manifests": []}'
    commands: list[list[str]] = []

    def run(command: object) -> bytes:
        commands.append(list(command))  # type: ignore[call-overload]
        return raw

    want = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert pin.digest("a:1", run, lambda name: name == "skopeo") == want
    assert pin.digest("a:1", run, lambda name: name == "docker") == want
    assert commands == [
        ["skopeo", "inspect", "--raw", "docker://a:1"],
        ["docker", "buildx", "imagetools", "inspect", "--raw", "a:1"],
    ]
    with pytest.raises(Unfit, match="none of skopeo, crane, docker is installed"):
        pin.digest("a:1", run, lambda name: False)
    with pytest.raises(Unfit, match="no list for several architectures"):
        pin.digest("a:1", lambda command: b"{}", lambda name: True)


def test_pinning_again_changes_the_digest_alone(tmp_path: Path) -> None:
    for path, _ in pin.NAMED:
        put(tmp_path / path, (ROOT / path).read_text(encoding="utf-8"))
    images: list[str] = []

    def of(image: str, digest: str) -> str:
        images.append(image)
        return f"sha256:{digest * 64}"

    assert pin.main(tmp_path, lambda image: of(image, "a")) == 0
    once = {path: (tmp_path / path).read_text(encoding="utf-8") for path, _ in pin.NAMED}
    assert pin.main(tmp_path, lambda image: of(image, "b")) == 0
    twice = {path: (tmp_path / path).read_text(encoding="utf-8") for path, _ in pin.NAMED}
    assert twice == {path: text.replace("a" * 64, "b" * 64) for path, text in once.items()}
    assert [image.rpartition("/")[2].partition(":")[0] for image in images] == ["python", "hami"] * 2
