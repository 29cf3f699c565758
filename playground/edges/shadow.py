"""The edges of shadow mode, which reads what other systems wrote and writes nothing."""

from __future__ import annotations

from playground.edges.edge import NODE, TENANT, TOKEN, Edge, FeatureEdges, rights

_CLUSTER = "cluster/shadow/test_beside_hami.py::"
_UNIT = "unit/shadow/"

SHADOW = FeatureEdges(
    "Shadow mode",
    (
        Edge(
            TENANT,
            "pods, in any number, with any annotations",
            "`shadow.recording`",
            "50,000 pods are followed, one in four of them of one namespace; 5,000 new ones of a namespace in an hour; "
            "32 KiB of each; the rest is counted. No image, volume or other variable is kept",
            (
                f"{_UNIT}test_recording.py::test_a_namespace_that_makes_thousands_of_pods_is_counted_and_bounded",
                f"{_UNIT}test_recording.py::test_no_secret_image_or_volume_is_recorded",
                "fuzzing shadow-record",
                f"{_UNIT}test_report.py::test_no_word_of_a_tenant_moves_the_terminal",
                f"{_CLUSTER}test_hostile_annotations_leave_the_recorder_alive_and_others_recorded",
            ),
        ),
        Edge(
            NODE,
            "annotations and labels that name cards",
            "`shadow.systems`",
            "at most 1,024 GPUs of a node, each within the bounds of a GPU; anything else is ignored",
            (f"{_UNIT}test_systems.py::test_a_hostile_register_has_no_cards",),
        ),
        Edge(
            TOKEN,
            "nothing; it only lists and watches nodes, pods and GPUNodes",
            "the API server",
            "a policy refuses every write of its account, another one refuses other roles for it",
            (
                f"{_CLUSTER}test_no_right_that_anybody_gives_its_account_lets_it_write",
                f"{_CLUSTER}test_its_account_is_bound_to_no_other_role",
                f"{_CLUSTER}test_its_role_stays_one_that_reads",
            ),
            rights("gpufraction-shadow", "list watch", "nodes pods gpunodes"),
        ),
    ),
)
