"""The edges of gangs, of engines that start alone, of the conformance kit and of canaries."""

from __future__ import annotations

from contract import names
from playground.edges.edge import ADMINISTRATOR, NODE, STRANGER, TENANT, TOKEN, Edge, FeatureEdges, names_of

_GANGS = "unit/contract/test_gangs.py::"
_KIT = "unit/kubectl_gpufraction/conformance/"

GANGS = FeatureEdges(
    "Pods that start together",
    (
        Edge(
            TENANT,
            "names and sizes of gangs, in our annotations and in labels of other programs",
            "`contract.gangs`",
            "a gang has one namespace and few pods; wrong annotations of ours are refused, wrong labels of others "
            "make no gang",
            (
                f"{_GANGS}test_no_text_makes_a_gang_beyond_the_bounds",
                f"{_GANGS}test_what_is_wrong_in_our_own_annotations_is_refused",
                "fuzzing gang-pod",
                "unit/allocator/features/gangs/test_crashes.py::test_gangs_that_arrive_mixed_never_hold_each_other_up",
            ),
            names_of(names.GANG, names.GANG_MINIMUM),
        ),
        Edge(
            TOKEN,
            "the allocator's: a gang's plan on its first pod",
            "`contract.encoding.gangplans`",
            "policies refuse it from everyone else; 128 KiB; an unreadable plan is no plan",
            (f"{_GANGS}test_any_other_text_is_malformed", "fuzzing gang-plan"),
            names_of(names.GANG_PLAN),
        ),
    ),
)
STARTS = FeatureEdges(
    "Engines that start one at a time",
    (
        Edge(
            TENANT,
            "that a pod starts alone, and its status since when it has been starting",
            "`contract.starts`",
            "one fixed value, others are refused; no time in a status closes a GPU for longer than the bound",
            (
                "unit/contract/test_starts.py::test_since_when_a_pod_is_starting",
                "unit/allocator/features/starts/test_start_alone.py::"
                "test_after_the_bound_an_event_says_so_and_the_next_starts",
                "fuzzing pod",
            ),
            names_of(names.START),
        ),
    ),
)
CONFORMANCE = FeatureEdges(
    "Conformance and canaries",
    (
        Edge(
            STRANGER,
            "a report that is sent to the project",
            "`kubectl_gpufraction.conformance.report`",
            "only words of closed tables and digits of versions; anything else is refused",
            (
                f"{_KIT}test_report.py::test_a_report_with_a_wrong_part_is_refused",
                f"{_KIT}test_vocabulary.py::test_no_text_of_a_node_passes",
                "fuzzing conformance-report",
            ),
        ),
        Edge(
            NODE,
            "logs of the kit's pods, and the status of canaries",
            "`kubectl_gpufraction.conformance.pods`, `allocator.features.canary.pods`",
            "the last complete output counts; anything unusual is no verdict",
            (f"{_KIT}test_verdicts.py::test_any_log_is_read", "fuzzing conformance-log", "fuzzing canary"),
        ),
        Edge(
            ADMINISTRATOR,
            "pods in the kit's namespace",
            "API server",
            "what a run creates has its id, and is removed when it ends or by the next run",
            ("cluster/kit/test_leftovers.py",),
        ),
    ),
)
