"""
`kubectl gpufraction conformance`: runs real pods on one node, and writes an anonymous report.

    facts (GPUNode, Node) ──▶ plan: which checks can be tried ──▶ run: one pod after another ──▶ verdicts ──▶ report

`verdicts`, `pods`, `vocabulary` and `report` are pure; `run` and `workspace` talk to the cluster, and clean up in every
case.
"""
