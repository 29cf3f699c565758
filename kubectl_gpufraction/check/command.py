"""The command `check`: findings in, lines and an exit status out."""

from __future__ import annotations

from kubectl_gpufraction.check import reader, rules
from kubectl_gpufraction.check.findings import COLUMNS, FAIL, by_cause, first_to_fix, in_table, row, summary
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.session import TABLE, Command, Exit, Session


def run(session: Session) -> CommandOutput:
    """Every finding; the status is 1 if one of them fails. An object that the user may not read is not a failure."""
    given = session.given
    found = rules.findings(reader.read(session.kube, session.listening, session.now(), given.namespace or ""))
    failed = any(each.level == FAIL for each in found)
    return CommandOutput(
        COLUMNS,
        [row(each) for each in found],
        in_table=[in_table(each) for each in by_cause(found)],
        head=first_to_fix(found),
        notes=[summary(found)],
        names=[f"check/{each.check}" for each in found],
        status=Exit.FAILED if failed else Exit.OK,
    )


COMMAND = Command(
    "check",
    "check the cluster and the installation; each finding comes with its cure",
    run,
    flags=TABLE | {"namespace"},
    example="""\
# Before the installation, after it, and when something is wrong
kubectl gpufraction check
# Run the test pod in your own namespace, without the right to list namespaces
kubectl gpufraction check -n team""",
)
