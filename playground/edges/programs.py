"""The edges of admission and placement, which every installation has."""

from __future__ import annotations

from contract import names
from contract.dialects import DIALECTS
from playground.edges.edge import (
    ADMINISTRATOR,
    LOCAL,
    NODE,
    STOLEN,
    STRANGER,
    TENANT,
    TOKEN,
    WEBHOOKS,
    Edge,
    FeatureEdges,
    fields,
    names_of,
    rights,
    routes,
)

_FUZZED_PODS = "cluster/hostile/test_fuzz.py::test_made_up_pods_and_reviews_leave_nothing_and_delay_nobody"
_FOREIGN = (
    STOLEN + "test_what_a_token_can_write_on_pods",
    "unit/manifests/test_policies.py::test_the_server_judges",
)

ADMISSION = FeatureEdges(
    "Admission",
    (
        Edge(
            TENANT,
            "containers, limits, affinity, tolerations, gates, volumes of a new pod",
            "`webhook.admission.review`",
            "bounds on each, all checked before the allocator is called; an answer has at most 16 times the size of "
            "the review",
            (
                _FUZZED_PODS,
                "cluster/hostile/test_large_pods.py::test_eight_thousand_expressions_are_refused",
                "fuzzing review",
            ),
            tuple(f"dialect {dialect.name}" for dialect in DIALECTS)
            + names_of(
                names.GPU_MEMORY,
                names.GPU_CORES,
                names.GPU_PERCENT,
                names.GPU_MEMORY_LIMIT,
                names.GPU_PERCENT_LIMIT,
                names.GPU_COUNT,
            ),
        ),
        Edge(
            TENANT,
            "requirements on nodes, models and GPUs in annotations",
            "`contract.dialects.base`",
            "closed words, at most 256 of them, each at most 128 characters; anything else is refused",
            ("unit/contract/encoding/test_codec.py::test_any_text_is_malformed", "fuzzing pod-of-the-api"),
            names_of(
                names.PLACEMENT,
                names.NODE_POLICY,
                names.GPU_POLICY,
                names.USE_MODELS,
                names.LEAST_MEMORY,
                names.AVOID_MODELS,
                names.USE_UUIDS,
                names.AVOID_UUIDS,
                names.ISOLATION,
                names.NUMA_BIND,
            ),
        ),
        Edge(
            TENANT,
            "our own annotations, the condition, a holder's label",
            "`contract.pods`",
            "policies: only our accounts write them on a stored pod; the webhook replaces them on a new one; what is "
            "read must agree with the containers' resources",
            (
                *_FOREIGN,
                "cluster/hostile/test_poison_pods.py::test_whatever_stands_in_our_annotations_ends_nobody",
                "fuzzing annotation-request",
                "fuzzing annotation-allocation",
                "fuzzing pod",
            ),
            names_of(
                names.REQUEST,
                names.ALLOCATION,
                names.FENCE,
                names.PIN,
                names.RETURNED,
                names.WITHDRAWN,
                names.PROTECTED,
                names.GATE,
                names.ALLOCATED_CONDITION,
                names.SCHEDULABLE_CONDITION,
                names.HOLDER,
                names.HELD_GPUS,
                *names.CONTAINER_PREFIXES,
            ),
        ),
        Edge(
            TENANT,
            "variables of our names in a container",
            "`webhook.admission.containers`",
            "replaced; without an annotation they are empty, which is no GPU",
            ("cluster/system/test_failures.py::test_what_a_tenant_wrote_into_our_names_is_replaced",),
            names_of(names.VISIBLE_DEVICES, names.MEMORY_FRACTION),
        ),
        Edge(
            STRANGER,
            "any bytes at the webhook's port",
            "`webhook.serving.http1`",
            "16 KiB of headers, 3 MiB and 200,000 values of body, 5 s for each step; component `client-certificate`",
            (
                "cluster/hostile/test_slow_clients.py::test_a_hundred_slow_clients_delay_nobody",
                "cluster/hostile/test_large_bodies.py::test_a_body_that_is_not_a_review_is_refused_and_nothing_else",
                "cluster/hostile/test_forged_reviews.py::test_strangers_reviews_end_nothing_and_leave_nothing",
                "fuzzing http",
            ),
            routes("webhook", "POST /mutate", "POST /mutate/claims", "GET /healthz", "GET /readyz"),
        ),
        Edge(
            WEBHOOKS,
            "any field of a pod, before or after ours",
            "`webhook.admission.admit`",
            "an earlier answer stands only while all that it was based on is unchanged",
            (
                "cluster/hostile/test_later_webhooks.py::test_a_pod_that_is_changed_after_us_goes_where_it_says_now",
                "cluster/hostile/test_foreign_gates.py::test_a_gate_that_comes_after_our_last_pass_takes_the_share_back",
            ),
        ),
        Edge(
            LOCAL,
            "questions at the unix socket, answers from it",
            "`contract.encoding.protocol`",
            "only this pod's user may use the file; 1 MiB; names, uids and amounts are checked on both sides",
            (
                "cluster/hostile/test_socket_strangers.py::test_what_is_no_question_is_refused_in_words",
                "fuzzing socket-question",
                "fuzzing socket-answer",
                "fuzzing socket-http",
            ),
            routes(
                "allocator",
                "POST /v1/reserve",
                "POST /v1/offered",
                "POST /v1/claims",
                "POST /v1/scraper",
                "GET /v1/cards",
                "GET /debug/snapshot",
                "GET /debug/waiting",
            ),
        ),
        Edge(
            STRANGER,
            "requests at the ports for probes and metrics",
            "`runtime.httpserver`",
            "64 connections, no body; slow clients delay only each other; a token for metrics",
            (
                "cluster/hostile/test_slow_clients.py::test_slow_clients_of_the_ports_for_probes_keep_no_probe_waiting",
                "cluster/hostile/test_scrapers.py::test_prometheus_is_served_and_nobody_else",
            ),
            routes("metrics", "GET /healthz", "GET /readyz", "GET /metrics"),
        ),
    ),
)

PLACEMENT = FeatureEdges(
    "Placement",
    (
        Edge(
            TOKEN,
            "the allocator's: pods, their status, two annotations of GPUNodes, Events, its Lease",
            "API server",
            "policies name the fields; a resourceVersion on each placement; one Lease by name",
            (
                STOLEN + "test_what_a_token_can_write_on_pods",
                STOLEN + "test_what_events_nodes_and_bindings_take",
                "unit/manifests/test_policies.py::test_the_server_judges",
                "fuzzing lease",
                "fuzzing api-server",
                "fuzzing api-page",
            ),
            rights("gpufraction-allocator", "get list watch patch", "pods gpunodes")
            + rights("gpufraction-allocator", "get list watch", "nodes")
            + rights("gpufraction-allocator", "patch", "pods/status")
            + rights("gpufraction-allocator", "list watch", "namespaces")
            + rights("gpufraction-allocator", "create", "events tokenreviews subjectaccessreviews")
            + rights("gpufraction-allocator", "create get update watch", "leases")
            + names_of(names.BEYOND, names.REPEATED, names.EVICTION_REASON),
        ),
        Edge(
            TENANT,
            "labels, affinity and volumes of any pod, labels of namespaces, claims for volumes and devices",
            "`allocator.neighbours.pods`, `allocator.neighbours.storage`",
            "32 terms and 16 KiB of each kind, 256 labels; 100,000 pairs compared for a preference; "
            "rows of `contract.kinds`; nothing is written to them",
            (
                "unit/contract/test_bounds_of_other_pods.py",
                "unit/allocator/scheduler/test_other_pods.py",
                "unit/runtime/kubernetes/test_kinds.py",
                "fuzzing storage",
            ),
            rights(
                "gpufraction-allocator",
                "list watch",
                "persistentvolumeclaims persistentvolumes storageclasses csinodes csidrivers csistoragecapacities "
                "volumeattachments resourceclaims deviceclasses",
            ),
        ),
        Edge(
            TENANT,
            "a pod's owner references, and the labels by which it names its JobSet or its InferenceService",
            "`allocator.workers.owners`",
            "names and uids as Kubernetes has them; one InferenceService of the pod's own namespace is read for its "
            "uid; an Event has only the pod's own reason, in its own namespace",
            ("unit/allocator/workers/test_owners.py",),
            rights("gpufraction-allocator", "get", "inferenceservices"),
        ),
        Edge(
            TENANT,
            "with default topology spread constraints: selectors of Services, ReplicaSets, StatefulSets and "
            "ReplicationControllers",
            "`allocator.neighbours.spreading`",
            "rows of `contract.kinds`; a selector counts only where it matches the pod's labels, or is its "
            "controller's; nothing is written to them",
            ("unit/allocator/neighbours/test_spreading.py", "unit/runtime/kubernetes/test_kinds.py"),
            rights(
                "gpufraction-allocator-default-spread",
                "list watch",
                "services replicationcontrollers replicasets statefulsets",
            ),
        ),
        Edge(
            TOKEN,
            "the allocator's, with the component allocator-eviction: evictions",
            "API server",
            "only the component has the right; a policy, PodDisruptionBudgets and the rates in the settings bound it",
            (
                "unit/allocator/features/defragmentation/test_defragmentation.py::"
                "test_no_more_are_evicted_in_an_hour_than_allowed_and_no_owner_twice",
                STOLEN + "test_what_a_token_can_write_on_pods",
            ),
            rights("gpufraction-allocator-eviction", "create", "pods/eviction"),
        ),
        Edge(
            NODE,
            "its Node: labels, taints, capacity, conditions",
            "`contract.nodes.attributes`",
            "100 taints; amounts above 2^52 count as 2^52; an invalid quantity counts as 0",
            ("fuzzing node", "fuzzing quantities"),
        ),
        Edge(
            NODE,
            "its GPUNode: cards, options, ways of delivery",
            "`contract.nodes.inventories`",
            "a policy: only its own object; bounds on GPUs, memory and texts; an unreadable one has no GPU",
            (
                "unit/contract/encoding/test_codec.py::test_a_damaged_gpunode_is_read_or_malformed",
                "unit/contract/encoding/test_codec.py::"
                "test_whatever_a_node_says_of_its_gpus_it_is_short_and_can_be_printed",
                STOLEN + "test_what_events_nodes_and_bindings_take",
                "fuzzing gpunode",
                "fuzzing gpunode-own",
                "fuzzing annotation-beyond",
            ),
            fields(
                "GPUNode",
                "status.",
                "driverVersion cudaVersion problem kernelVersion cgroupMode isolation[] isolationProof "
                "pool observedAt heartbeatSeconds options[].name options[].value "
                "summary.gpus summary.healthy summary.models summary.memory",
            )
            + fields(
                "GPUNode",
                "status.delivery.",
                "modes[] runtimeClasses[] cdiKind byAnnotation byClaim mounts oneGpuPerContainer partitions",
            )
            + fields(
                "GPUNode",
                "status.gpus[].",
                "uuid index model memoryBytes usableBytes health reason pciAddress "
                "computeCapability numaNode nvlinks links[].uuid links[].path parent",
            )
            + fields("GPUNode", "status.conditions[].", "type status reason message lastTransitionTime"),
        ),
        Edge(
            NODE,
            "reports about pods on its cards, for Events and evictions",
            "`contract.nodes.reports`",
            "only pods that hold that share on the same node, by uid; closed codes; bounded number and rate",
            (
                "cluster/hostile/test_agent_reports.py::test_a_stolen_agent_ends_pods_of_its_own_node_only",
                "unit/allocator/preemption/test_agent_reports.py::test_no_history_of_reports_reaches_a_pod_of_another_node",
                "fuzzing gpunode",
            ),
            fields(
                "GPUNode",
                "status.reports[].",
                "code container evict evictAfterSeconds gpu othersUsedBytes pod since usedBytes",
            ),
        ),
        Edge(
            TOKEN,
            "an agent's: GPUNodes, its Node's capacity, Events",
            "API server",
            "policies: the node of the token only, two resources of the capacity, its own reasons of Events",
            (
                STOLEN + "test_what_events_nodes_and_bindings_take",
                STOLEN + "test_an_agent_reads_no_pods_without_the_components_that_need_it",
            ),
            rights("gpufraction-nodeagent", "get list watch create patch", "gpunodes")
            + rights("gpufraction-nodeagent", "patch", "gpunodes/status nodes/status")
            + rights("gpufraction-nodeagent", "get list watch", "nodes")
            + rights("gpufraction-nodeagent", "list", "runtimeclasses")
            + rights("gpufraction-nodeagent", "create", "events tokenreviews subjectaccessreviews")
            + rights("gpufraction-nodeagent-options", "list watch", "configmaps")
            + rights("gpufraction-nodeagent-pods", "list watch", "pods")
            + rights("gpufraction-nodeagent-startup-taint", "patch", "nodes"),
        ),
        Edge(
            TOKEN,
            "a holder's: the cards that its own pod got",
            "`nodeagent.sharing.residents`",
            "a policy: only its own annotation of its own pod, in our namespace",
            (
                STOLEN + "test_what_a_token_can_write_on_pods",
                "unit/nodeagent/sharing/test_ownership.py::test_what_counts_as_held",
            ),
            rights("gpufraction-holder", "patch", "pods"),
        ),
        Edge(
            ADMINISTRATOR,
            "labels and annotations of Nodes and namespaces, the options, lists of excluded cards",
            "`nodeagent.sharing`, `contract.options`",
            "a misspelt word is reported and excludes nothing; a document with an error is refused as a whole",
            (
                "unit/nodeagent/sharing/test_cordoning.py::test_it_is_one_event_on_the_node_and_shown_while_it_lasts",
                "unit/contract/nodes/test_excluded.py::test_what_of_a_list_names_no_card",
                "fuzzing options",
                "fuzzing options-file",
                "fuzzing settings-file",
                "fuzzing settings-texts",
                "fuzzing words-and-labels",
                "fuzzing excluded-cards",
            ),
            names_of(
                names.INJECT_LABEL,
                names.GPUS_LABEL,
                names.METRICS_LABEL,
                names.QUOTA_LABEL,
                names.CORDON,
                names.OWNERSHIP,
                names.STARTUP_TAINT,
                names.MPS_NODE,
                names.DELIVERY,
                names.OPTIONS,
            )
            + rights("gpufraction-kept-out", "list watch", "configmaps"),
        ),
        Edge(
            TOKEN,
            "the certificates' keeper's: one webhook configuration, one Secret",
            "API server",
            "a policy: the authority and the match conditions; one Secret by name",
            (
                STOLEN + "test_what_the_certificate_keepers_token_can_write",
                "cluster/hostile/test_certificate_keeper.py::"
                "test_the_keepers_token_is_enough_to_make_trust_and_keep_a_certificate",
            ),
            rights("gpufraction-certs", "get patch", "mutatingwebhookconfigurations secrets"),
        ),
        Edge(
            LOCAL,
            "files that describe a runtime, CDI devices, a machine; snapshots",
            "`nodeagent.isolation.delivery`",
            "an unreadable file counts as missing: no way of delivery is detected from it",
            ("fuzzing host-files", "fuzzing simulated-machine", "fuzzing snapshot"),
            ("path /", "path /var/run/cdi", "path /var/lib/gpufraction/preload", "path /home/kubernetes/bin/nvidia"),
        ),
        Edge(
            NODE,
            "the status of canaries on it, which is a proof of its own limits",
            "`allocator.features.canary.pods`",
            "a verdict is one of two exit codes; it counts only for that node, for the time in the agent's setting",
            (
                "unit/allocator/features/canary/test_canaries.py::test_only_two_exit_codes_are_a_verdict",
                "unit/contract/nodes/test_proofs.py::test_any_text_is_a_proof_or_none",
            ),
            names_of(names.PROOF, names.CANARY, names.CONFORMANCE)
            + rights("gpufraction-allocator-canary", "create delete", "pods"),
        ),
        Edge(
            NODE,
            "what the MPS supervisor and the agent exchange",
            "`nodeagent.mps.exchange`",
            "only root on the host; an old or unreadable report is ignored",
            ("unit/nodeagent/mps/test_exchange.py::test_what_is_not_understood_claims_nothing", "fuzzing mps-exchange"),
            ("path /run/gpufraction/mps", "path /run/gpufraction/mps/shm"),
        ),
    ),
)
