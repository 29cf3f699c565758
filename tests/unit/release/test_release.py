"""What a release consists of: one version everywhere, notes, krew's manifest, and workflows that linters accept."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_gpufraction.__main__ import COMMANDS
from release import assemble, notes, version
from release.image import renew
from release.image.check import Unfit
from release.plugin import krew
from tests.unit.manifests.kube import ROOT

JSON = dict[str, Any]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
URL = "https://example.com/owner/gpufraction"


# -- the version --------------------------------------------------------------------------------------------------


def test_the_version_is_the_same_everywhere() -> None:
    assert version.differing(ROOT) == []
    assert version.FORM.fullmatch(version.version(ROOT))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the files that contain the version, and with the inputs of a release."""
    for name in ("pyproject.toml", "LICENSE", "CHANGELOG.md", "README.md", "README_zh.md", "docs/installing.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "manifests" / "base", tmp_path / "manifests" / "base")
    shutil.copytree(ROOT / "release", tmp_path / "release")
    (tmp_path / "build" / "dist").mkdir(parents=True)
    (tmp_path / assemble.PLUGIN).write_bytes(b"#!/usr/bin/env python3\n")
    return tmp_path


COPIES = (
    ("docs/installing.md", "gpufraction:{}"),
    ("docs/installing.md", "gpufraction-{}.tgz"),
    ("README.md", "Version {}"),
    ("README_zh.md", "版本 {}"),
)
"""Where the version is, by file and with the surrounding text."""


@pytest.mark.parametrize(("name", "around"), COPIES)
def test_a_copy_that_differs_is_named_with_its_line(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, around: str
) -> None:
    page, held = project / name, version.version(project)
    page.write_text(
        page.read_text(encoding="utf-8").replace(around.format(held), around.format("9.9.9"), 1), encoding="utf-8"
    )
    assert version.main([], project) == 1
    assert re.fullmatch(rf"{re.escape(name)}:\d+: 9\.9\.9, not {held}\n", capsys.readouterr().err)


def test_a_new_version_is_written_everywhere(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert version.main(["--set", "7.8.9rc1"], project) == 0
    written = set(capsys.readouterr().out.split())
    assert {"pyproject.toml", "README.md", "README_zh.md", "docs/installing.md"} <= written
    assert "manifests/base/kustomization.yaml" in written
    assert version.version(project) == "7.8.9rc1"
    assert version.differing(project) == []
    (image,) = yaml.safe_load((project / "manifests/base/kustomization.yaml").read_text())["images"]
    assert image["newTag"] == "7.8.9rc1"


@pytest.mark.parametrize("words", [["--set", "latest"], ["--tag", "v9.9.9"], ["--tag", "0.1.0"]])
def test_what_names_no_version_or_another_one_is_refused(project: Path, words: list[str]) -> None:
    before = (project / "pyproject.toml").read_text()
    assert version.main(words, project) == 1
    assert (project / "pyproject.toml").read_text() == before


# -- the notes ----------------------------------------------------------------------------------------------------


def test_the_changelog_has_a_section_for_this_version_or_unreleased_changes() -> None:
    parts = notes.sections((ROOT / notes.CHANGELOG).read_text(encoding="utf-8"))
    assert next(iter(parts)) in (version.version(ROOT), notes.UNRELEASED)
    assert all(parts.values())
    released = [name for name in parts if name != notes.UNRELEASED]
    assert [name for name in released if not version.FORM.fullmatch(name)] == []


def test_every_renamed_setting_and_metric_of_the_guide_is_in_the_changelog() -> None:
    guide = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8").partition("## Names that changed")[2]
    changelog = (ROOT / notes.CHANGELOG).read_text(encoding="utf-8")
    renamed = re.findall(r"^\|(?: \w+ \|)? `(\w+)`[^|]*\| `(\w+)`", guide, re.MULTILINE)
    assert len(renamed) > 10
    lines = changelog.splitlines()
    assert [
        pair for pair in renamed if not any(f"`{pair[0]}`" in line and f"`{pair[1]}`" in line for line in lines)
    ] == []


def test_the_notes_are_the_versions_part_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = version.version(project)
    parts = ["# Changelog", "## Unreleased", "new", f"## {held} (today)", "### A", "- b", "## 0.0.1", "old"]
    (project / notes.CHANGELOG).write_text("\n\n".join(parts))
    assert notes.main(project) == 0
    assert capsys.readouterr().out == "### A\n\n- b\n"
    (project / notes.CHANGELOG).write_text("# Changelog\n\n## 0.0.1\n\nold\n")
    assert notes.main(project) == 1
    assert f"has no section `## {held}`" in capsys.readouterr().err


# -- the files ----------------------------------------------------------------------------------------------------


def test_the_files_of_a_release(project: Path) -> None:
    held = version.version(project)
    for name in (
        f"dist/gpufraction-{held}-py3-none-any.whl",
        f"dist/gpufraction-{held}.tar.gz",
        f"gpufraction-{held}.tgz",
    ):
        (project / "build" / name).write_text(name)
    (project / "build" / "dist" / "gpufraction-0.0.1.tar.gz").write_text("an older one")
    made = {path.name: path for path in assemble.assemble(project, f"{URL}/")}
    assert sorted(made) == sorted(
        [
            f"gpufraction-{held}-py3-none-any.whl", f"gpufraction-{held}.tar.gz", f"gpufraction-{held}.tgz",
            "gpufraction.krew.yaml", "kubectl-gpufraction", "kubectl-gpufraction.tar.gz",
        ]
    )  # fmt: skip
    plugin = yaml.safe_load(made["gpufraction.krew.yaml"].read_text())
    digest = hashlib.sha256(made[krew.ARCHIVE].read_bytes()).hexdigest()
    assert {(at["uri"], at["sha256"]) for at in plugin["spec"]["platforms"]} == {
        (f"{URL}/releases/download/v{held}/kubectl-gpufraction.tar.gz", digest)
    }


def test_a_release_without_its_wheel_is_not_made(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make dist"):
        assemble.assemble(project, URL)


def test_krews_manifest_is_one_that_krew_takes(project: Path) -> None:
    """It follows krew's own rules (its package internal/index/validation, and its index's naming guide)."""
    packed = krew.archive(project / assemble.PLUGIN, project / "LICENSE")
    plugin = krew.manifest("1.2.3", URL, packed, [command.name for command in COMMANDS])
    assert (plugin["apiVersion"], plugin["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", plugin["metadata"]["name"])
    spec = plugin["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "\n" not in spec["shortDescription"]
    assert "waiting" in spec["description"]
    for platform in spec["platforms"]:
        assert re.fullmatch(r"[a-f0-9]{64}", platform["sha256"])
        assert set(platform["selector"]["matchLabels"]) <= {"os", "arch"}
        assert platform["bin"] in {each["from"] for each in platform["files"]}
        assert all(each["from"] and each["to"] for each in platform["files"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert set(members) == {each["from"] for each in spec["platforms"][0]["files"]}
    assert members["kubectl-gpufraction"].mode & 0o111


def test_the_archive_is_the_same_each_time(project: Path) -> None:
    first = krew.archive(project / assemble.PLUGIN, project / "LICENSE")
    (project / assemble.PLUGIN).touch()
    assert krew.archive(project / assemble.PLUGIN, project / "LICENSE") == first


# -- the workflows ------------------------------------------------------------------------------------------------


def test_there_are_workflows_for_changes_for_nights_and_for_tags() -> None:
    assert [path.name for path in WORKFLOWS] == ["checks.yaml", "nightly.yaml", "release.yaml"]


def linter(name: str) -> str:
    """The program, next to this Python or on PATH. Skips the test without it."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; `make setup` installs it")
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS)),
        ("zizmor", "--offline", "--no-progress", "--quiet", str(ROOT / ".github")),
    ],
    ids=lambda command: command[0],
)
def test_the_linters_accept_the_workflows(command: tuple[str, ...]) -> None:
    done = subprocess.run([linter(command[0]), *command[1:]], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def jobs(path: Path) -> dict[str, JSON]:
    found: dict[str, JSON] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_rights_are_given_to_single_jobs_and_actions_are_pinned_by_commit(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["permissions"] == {}
    for job in document["jobs"].values():
        assert job["permissions"]["contents"] in ("read", "write")
        for step in job.get("steps", []):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + "0" * 40)), step
    # The comment after each commit has its version.
    assert len(re.findall(r"- uses: .*@[0-9a-f]{40} # v\d+\.\d+\.\d+$", path.read_text(), re.MULTILINE)) == len(
        [step for job in document["jobs"].values() for step in job.get("steps", []) if "uses" in step]
    )


def test_only_the_job_that_publishes_a_thing_may_write_it() -> None:
    rights = {name: job["permissions"] for name, job in jobs(ROOT / ".github/workflows/release.yaml").items()}
    assert {name for name, given in rights.items() if given["contents"] == "write"} == {"page"}
    assert {name for name, given in rights.items() if "packages" in given} == {"push", "page"}
    assert {name for name, given in rights.items() if "id-token" in given} == {"push", "page"}
    assert all(set(job["permissions"]) == {"contents"} for job in jobs(ROOT / ".github/workflows/checks.yaml").values())


SIGNERS_ACTIONS = {"actions/download-artifact", "sigstore/cosign-installer"}
SIGNERS_PROGRAMS = {
    "sha256sum", "diff", "printf", "mv", "echo", "sed", "tee", "docker login", "docker buildx imagetools inspect",
    "helm registry login", "helm push", "skopeo copy", "cosign sign", "cosign sign-blob", "gh release create",
}  # fmt: skip
"""Programs that read, verify, push or sign what was built, and none that builds, installs or runs our code."""


def may_write(job: JSON) -> bool:
    return "write" in job["permissions"].values()


def programs(script: str) -> list[str]:
    """What a script runs: the words of each command before its first option, path or variable."""
    script = re.sub(r"\\\n\s*", " ", script)
    script = re.sub(r"2>&1|<<<\"[^\"]*\"|'[^']*'", "", script)
    commands = [part.strip() for part in re.split(r"\n|\|\|?|&&|;|<\(|\$\(|\)", script)]
    commands = [re.sub(r"^\w+=(\"[^\"]*\"|\S*)\s*", "", command) for command in commands]
    words = (re.match(r"[a-z][\w-]*( [a-z][\w-]*)*(?= |$)", command) for command in commands)
    return [found[0] for found in words if found is not None]


def test_what_a_script_runs_is_read_also_inside_substitutions() -> None:
    script = 'a=$(make x)\nb=1 pip install "y" | tee z && helm push "$x"\ndiff - <(curl "$y")\npython3 -m z; gh pr\n'
    assert programs(script) == ["make x", "pip install", "tee z", "helm push", "diff", "curl", "python3", "gh pr"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_that_may_write_or_sign_builds_nothing_of_ours(path: Path) -> None:
    for name, job in jobs(path).items():
        if not may_write(job):
            continue
        for step in job["steps"]:
            assert step.get("uses", "").partition("@")[0] in SIGNERS_ACTIONS | {""}, (name, step)
            for program in programs(step.get("run", "")):
                assert any(program == each or program.startswith(f"{each} ") for each in SIGNERS_PROGRAMS), program


def test_what_is_signed_is_verified_first_against_what_was_built() -> None:
    found = jobs(ROOT / ".github/workflows/release.yaml")
    for name, built in (("push", "image"), ("page", "build")):
        job = found[name]
        assert built in job["needs"]
        assert not may_write(found[built])
        first, second, *_ = job["steps"]
        assert first["uses"].startswith("actions/download-artifact@")
        assert second["env"] == {"SUMS": f"${{{{ needs.{built}.outputs.sums }}}}"}
        assert second["run"].startswith("sha256sum -- * | diff - <(printf '%s\\n' \"$SUMS\")")
        assert second["working-directory"] == first["with"]["path"]
        assert found[built]["outputs"]["sums"] == "${{ steps.sum.outputs.sums }}"


def test_only_jobs_without_rights_have_the_sources() -> None:
    found = jobs(ROOT / ".github/workflows/release.yaml")
    uploads = {
        name: step["with"]["name"]
        for name, job in found.items()
        for step in job.get("steps", [])
        if step.get("uses", "").startswith("actions/upload-artifact@")
    }
    assert uploads == {"build": "files", "image": "image"}
    assert [name for name in uploads if may_write(found[name])] == []


def test_a_release_is_made_of_targets_and_modules_that_there_are() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?m)(?:^ *|run: )make ([a-z-]+)", text):
        assert re.search(rf"(?m)^{target}:", makefile), target
    for module in re.findall(r"python3? -m (release[.\w]+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module


# -- what it is built from ----------------------------------------------------------------------------------------


def reported(python: str) -> list[JSON]:
    found = {"Flask": "4.0", "ruamel.yaml": "1.1" if python == "3.11" else "1.2"}
    found |= {"late": "1.0"} if python == "3.14" else {}
    return [{"metadata": {"name": name, "version": number}} for name, number in found.items()]


def test_the_oldest_python_decides_and_a_newer_one_adds(project: Path) -> None:
    assert renew.main(project, lambda lines, python, machine, environment: reported(python)) == 0
    assert (project / "constraints.txt").read_text() == "Flask==4.0\nlate==1.0\nruamel.yaml==1.1\n"


def test_nothing_is_written_where_one_python_has_no_wheel(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(lines: object, python: str, machine: str, environment: object) -> list[JSON]:
        if python == "3.13":
            raise Unfit("no wheel")
        return reported(python)

    assert renew.main(project, ask) == 1
    assert not (project / "constraints.txt").exists()
    assert capsys.readouterr().err == "no wheel\n"
