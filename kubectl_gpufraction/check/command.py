"""The command `check`: findings in, lines and an exit status out."""

from __future__ import annotations

from kubectl_gpufraction.check import reader, rules
from kubectl_gpufraction.check.findings import COLUMNS, FAIL, in_table, row, summary
from kubectl_gpufraction.output.forms import CommandOutput
from kubectl_gpufraction.session import Command, Exit, Session


def run(session: Session) -> CommandOutput:
    """Every finding; the status is 1 if one of them fails. What may not be seen is no failure."""
    given = session.given
    found = rules.findings(reader.read(session.kube, session.listening, session.now(), given.namespace or ""))
    failed = any(each.level == FAIL for each in found)
    return CommandOutput(
        COLUMNS,
        [row(each) for each in found],
        in_table=[in_table(each) for each in found],
        notes=[summary(found)],
        names=[f"check/{each.check}" for each in found],
        status=Exit.FAILED if failed else Exit.OK,
    )


COMMAND = Command("check", "whether the cluster fits and the installation works; each finding with its cure", run)
