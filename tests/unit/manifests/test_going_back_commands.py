"""
What the commands of `To go back` delete, for any two versions and any failure. A shell function replaces kubectl;
`tests/cluster/system/test_going_back.py` types them on both control planes.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.manifests.kube import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
[SECTION] = re.findall(r"^### To go back\n(.*?)^##", PAGE, re.MULTILINE | re.DOTALL)
[COMMANDS] = re.findall(r"^```\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
KUBECTL = """
kubectl() {
  case "$1 $FAILS" in
    "create $4") head -n 1 "$4"; return 1 ;;
    create*) cat "$4" ;;
    "apply apply") return 1 ;;
    apply*) echo "apply $3" >> log ;;
    *) echo "$*" >> log ;;
  esac
}
"""
OLD, NEW = "old/manifests/base", "new/manifests/base"
OBJECTS = st.sets(
    st.tuples(
        st.sampled_from(("CustomResourceDefinition", "Namespace", "NamespaceBinding", "Role", "NetworkPolicy")),
        st.sampled_from(("gpufraction", "gpufraction-ui", "a", "a-b", "zz")),
        st.sampled_from(("<no value>", "gpufraction-system", "kube-system")),
    ),
    max_size=12,
)


@settings(max_examples=examples(25), deadline=None)
@given(old=OBJECTS, new=OBJECTS, fails=st.sampled_from(("", "", OLD, NEW, "apply")))
def test_going_back_deletes_what_only_the_newer_has_once_the_older_is_there(
    old: set[tuple[str, str, str]], new: set[tuple[str, str, str]], fails: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, objects in ((OLD, old), (NEW, new)):
            (Path(folder) / name).parent.mkdir(parents=True)
            lines = [f"{' '.join(each)}\n" for each in sorted(objects)]
            random.Random(len(old)).shuffle(lines)
            (Path(folder) / name).write_text("".join(lines))
        log = Path(folder) / "log"
        log.touch()
        command = ["bash", "-c", f"FAILS={fails}\n{KUBECTL}\n{COMMANDS}"]
        subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=False)
        done = log.read_text().splitlines()
    extra = [] if fails else [each for each in new - old if each[0] not in ("CustomResourceDefinition", "Namespace")]
    deleted = [
        f"-n {space.replace('<no value>', 'default')} delete {kind} {name} --ignore-not-found"
        for kind, name, space in extra
    ]
    assert sorted(done) == sorted([*deleted, *([] if fails else [f"apply {OLD}"])])
    assert fails or done[0] == f"apply {OLD}"
