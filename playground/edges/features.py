"""The edges of single features."""

from __future__ import annotations

from contract import names
from playground.edges.edge import (
    ADMINISTRATOR,
    LOCAL,
    NODE,
    STOLEN,
    STRANGER,
    TENANT,
    TOKEN,
    Edge,
    FeatureEdges,
    fields,
    names_of,
    rights,
    routes,
)

FAIR_ORDER = FeatureEdges(
    "Fair order",
    (
        Edge(
            TENANT,
            "many pods, many shapes, priorities, creation in any order",
            "`allocator.queue`, `contract.scheduling.fairness`",
            "the order within a priority is by what a namespace holds for its weight; a budget of decisions for each "
            "namespace in a cycle",
            (
                "unit/contract/scheduling/test_fairness.py::test_max_min_fairness_among_backlogged_namespaces",
                "cluster/hostile/test_many_shapes.py::test_thousands_of_shapes_of_one_tenant_delay_nobody_else",
                "unit/allocator/queue/test_fair_queue.py::test_no_namespace_is_given_a_card_while_one_that_waits_holds_less",
            ),
        ),
        Edge(
            TENANT,
            "what the message about its pod reveals of others",
            "`allocator.scheduler.messages`",
            "figures, no names of other namespaces",
            (
                "unit/allocator/queue/test_fair_queue.py::"
                "test_a_tenant_reads_that_a_namespace_is_before_its_own_and_not_which",
            ),
        ),
        Edge(
            ADMINISTRATOR,
            "the weight of a namespace",
            "`allocator.workers.namespaces`",
            "a whole number from 1 to 1000; anything else counts as 1 and is logged once",
            (
                "unit/contract/scheduling/test_fairness.py::test_an_unreadable_weight_is_reported",
                "fuzzing words-and-labels",
            ),
            names_of(names.QUEUE_WEIGHT),
        ),
    ),
)

IDLE = FeatureEdges(
    "Idle shares",
    (
        Edge(
            TENANT,
            "consent to eviction of its own pods, and after how long",
            "`contract.scheduling.consent`",
            "it concerns its own pods only; what cannot be read is no consent",
            (
                "unit/allocator/features/idle/test_idle_gives_way.py::"
                "test_an_unreadable_annotation_is_no_consent_even_if_the_namespace_agrees",
                "fuzzing words-and-labels",
            ),
            names_of(names.IDLE_AFTER),
        ),
        Edge(
            NODE,
            "which pods are idle, and since when",
            "`contract.nodes.idle`",
            "256 pods; only those on its own node; an old report marks no pod as idle; a warning and a grace period",
            (
                "unit/allocator/features/idle/test_idle_gives_way.py::test_an_agent_names_pods_of_its_own_node_only",
                "unit/contract/nodes/test_idle_shares.py::test_reading_never_raises",
                "fuzzing gpunode",
            ),
            fields("GPUNode", "status.idle[].", "pod since"),
        ),
    ),
)

LIMITS = FeatureEdges(
    "Memory limits above requests",
    (
        Edge(
            TENANT,
            "a limit above the request",
            "`contract.encoding.codec`",
            "off by default; at most the option's multiple of the pod's own request, and only where a node enforces it",
            (
                "cluster/system/test_memory_limits.py::test_a_limit_is_at_most_the_options_multiple_of_its_own_request",
                "cluster/system/test_memory_limits.py::test_limits_in_all_refuse_pods_that_burst_and_no_others",
                "cluster/system/test_memory_limits.py::test_a_pod_bursts_only_where_its_limit_is_held",
                "fuzzing annotation-request",
            ),
            names_of(names.GPU_MEMORY_LIMIT, names.GPU_PERCENT_LIMIT),
        ),
    ),
)

METERING = FeatureEdges(
    "Share hours",
    (
        Edge(
            TENANT,
            "pods that come and go, names of namespaces",
            "`allocator.features.metering.meter`",
            "bounded accounts, which end when nothing is held; a moment is counted by one replica",
            (
                "unit/allocator/features/metering/test_meter.py::test_accounts_are_bounded_and_end",
                "unit/allocator/features/metering/test_meter.py::test_of_several_replicas_exactly_one_counts_each_moment",
            ),
        ),
        Edge(
            TENANT,
            "the times in its pods' status, with the right to `pods/status`",
            "`allocator.cache.podinfo`",
            "never earlier than the time that the former leader answered for; no time counts twice",
            (
                "unit/allocator/features/metering/test_own_times.py::test_held_between_two_leaders_by",
                "unit/allocator/features/metering/test_own_times.py::test_a_second_list_counts_nothing_twice",
                "fuzzing pod",
            ),
        ),
    ),
)

MOVING = FeatureEdges(
    "Moving pods",
    (
        Edge(
            TENANT,
            "pods whose shape makes another pod's move useful",
            "`allocator.features.defragmentation.moves`",
            "only pods of namespaces that consent; a maximum per hour; no owner twice in a short time; only if each "
            "pod fits elsewhere",
            (
                "unit/allocator/features/defragmentation/test_defragmentation.py::test_nobody_moves",
                "unit/allocator/features/defragmentation/test_defragmentation.py::test_nobody_moves_in_vain_or_for_too_little",
                "unit/allocator/features/defragmentation/test_defragmentation.py::"
                "test_never_more_than_so_many_an_hour_and_never_the_same_owner_soon",
            ),
        ),
        Edge(
            ADMINISTRATOR,
            "the consent of a namespace",
            "`allocator.workers.namespaces`",
            "one fixed value; anything else is no consent",
            (
                "unit/allocator/features/defragmentation/test_defragmentation.py::"
                "test_nobody_moves_any_more_once_the_namespace_does_not_agree",
            ),
            names_of(names.DEFRAGMENT),
        ),
    ),
)

DELIVERY = FeatureEdges(
    "Delivery by ResourceClaims",
    (
        Edge(
            TENANT,
            "ResourceClaims of its namespace, the claims that a pod names",
            "`contract.encoding.resourceclaims`",
            "policies on our name, class and driver; a claim is its owner's alone; its name follows from the review",
            (
                "cluster/system/test_delivery_by_claims.py::test_a_tenant_makes_no_claim_of_ours",
                "cluster/system/test_delivery_by_claims.py::test_a_tenant_changes_nothing_of_a_claim_of_ours",
                "cluster/system/test_delivery_by_claims.py::test_no_pod_names_the_claim_of_another_one",
                "unit/contract/encoding/test_resourceclaims.py::test_a_forged_claim_gives_nothing",
                "fuzzing resourceclaim",
            ),
            names_of(names.POD_CLAIM, names.CLAIM_PREFIX),
        ),
        Edge(
            TOKEN,
            "the allocator's and the agent's: ResourceClaims",
            "API server",
            "a policy: only claims with our name; the agent only reads",
            (STOLEN + "test_what_the_allocators_token_can_write_of_claims",),
            rights("gpufraction-allocator-dra", "get list create delete", "resourceclaims")
            + rights("gpufraction-allocator-dra", "patch", "resourceclaims/status resourceclaims/binding")
            + rights("gpufraction-nodeagent-dra", "get", "resourceclaims"),
        ),
        Edge(
            NODE,
            "kubelet's calls, the agent's checkpoint",
            "`nodeagent.dra.wire`",
            "only root on the host; an unreadable call fails; a broken checkpoint is skipped",
            (
                "unit/nodeagent/dra/test_wire.py::test_any_bytes_are_read_or_refused",
                "unit/nodeagent/dra/test_plugin.py::test_a_broken_checkpoint_costs_one_reading_of_each_claim",
                "fuzzing dra-messages",
                "fuzzing checkpoint",
            ),
            ("path /var/lib/kubelet/plugins", "path /var/lib/kubelet/plugins_registry"),
        ),
    ),
)

_BY_CLAIMS = "cluster/system/test_resource_claims.py::"
SHARES_BY_CLAIMS = FeatureEdges(
    "Shares by ResourceClaims",
    (
        Edge(
            TENANT,
            "ResourceClaims and templates of the DeviceClass share.gpufraction.io",
            "`contract.dialects.resourceclaims`",
            "read strictly, refused by field; at most 32 claims, requests and cards; read again before the allocation",
            (
                "unit/contract/dialects/test_resourceclaims.py::test_any_claim_is_read_refused_or_not_ours",
                "fuzzing share-claim",
                "fuzzing selector",
                "fuzzing claims-question",
                "fuzzing claims-answer",
                "unit/allocator/workers/test_share_claims.py::"
                "test_a_claim_that_asks_for_something_else_than_was_counted_is_not_allocated",
                _BY_CLAIMS + "test_a_tenant_changes_nothing_of_a_claim_in_use",
                _BY_CLAIMS + "test_a_tenant_allocates_no_claim",
                _BY_CLAIMS + "test_a_claim_that_a_tenant_slips_in_gets_no_more_than_was_counted",
            ),
            names_of(names.SHARE_CLASS),
        ),
        Edge(
            ADMINISTRATOR,
            "the namespaces whose pods ask by ResourceClaims",
            "API server",
            "one fixed value; in other namespaces a policy refuses the class",
            (_BY_CLAIMS + "test_the_class_is_refused_where_the_namespace_has_no_label",),
            names_of(names.RESOURCE_CLAIMS_LABEL),
        ),
        Edge(
            TOKEN,
            "the allocator's: ResourceClaims and templates",
            "API server",
            "a policy: only the status of claims of our class, with devices of our driver",
            (_BY_CLAIMS + "test_a_tenant_allocates_no_claim",),
            rights("gpufraction-allocator-resourceclaims", "get", "resourceclaimtemplates")
            + rights("gpufraction-allocator-resourceclaims", "get list patch", "resourceclaims")
            + rights("gpufraction-allocator-resourceclaims", "patch", "resourceclaims/status resourceclaims/binding"),
        ),
    ),
)

ELASTIC = FeatureEdges(
    "ElasticGPUClaims",
    (
        Edge(
            TENANT,
            "ElasticGPUClaims, with the role gpufraction-claims",
            "`allocator.features.elasticgpuclaims.objects`",
            "reading never fails; bounds on claims and amounts of a namespace; a share follows from the claim's uid",
            (
                "unit/allocator/features/elasticgpuclaims/test_shares.py::test_no_object_is_unreadable",
                "unit/allocator/features/elasticgpuclaims/test_shares.py::test_whatever_a_claim_says_the_message_is_short_and_plain",
                "cluster/hostile/test_odd_claims.py::test_any_class_that_a_claim_names_is_reported_in_plain_words",
                "unit/allocator/features/elasticgpuclaims/test_quota.py::"
                "test_claims_of_a_namespace_have_together_what_the_administrator_allows",
                "fuzzing elasticgpuclaims",
            ),
            rights("gpufraction-claims", "get list watch create update patch delete", "elasticgpuclaims")
            + fields(
                "ElasticGPUClaim",
                "spec.",
                "resources.requests resources.limits elasticGPUClassName egpuClassName elasticGPUName egpuName",
            )
            + names_of(names.CLAIM_FINALIZER),
        ),
        Edge(
            TOKEN,
            "the allocator's: shares, cards, the status of claims",
            "API server",
            "the component claims has the rights; policies; an object that is not ours gives no share",
            (
                STOLEN + "test_what_the_allocators_token_can_write_of_claims",
                "unit/allocator/features/elasticgpuclaims/test_gpu_objects.py::test_only_what_differs_is_written_and_what_others_made_is_left_alone",
            ),
            rights("gpufraction-allocator-claims", "get list watch patch", "elasticgpuclaims")
            + rights("gpufraction-allocator-claims", "patch", "elasticgpuclaims/status elasticgpus/status gpus/status")
            + rights("gpufraction-allocator-claims", "list watch", "elasticgpuclasses")
            + rights("gpufraction-allocator-claims", "get list watch create patch delete", "elasticgpus")
            + rights("gpufraction-allocator-claims", "get list create delete", "gpus")
            + fields("ElasticGPUClaim", "status.", "phase reason message")
            + fields(
                "ElasticGPU",
                "",
                "status.phase status.reason status.message spec.capacity spec.gpuShare.gpuName "
                "spec.physicalGPU.gpuNames[] spec.qGPU.gpuName spec.qGPU.deviceName spec.qGPU.paths[]",
            )
            + fields("ElasticGPU", "spec.claimRef.", "apiVersion fieldPath kind name namespace resourceVersion uid")
            + fields(
                "ElasticGPU",
                "spec.nodeAffinity.required.nodeSelectorTerms[].",
                "matchExpressions[].key matchExpressions[].operator matchExpressions[].values[] matchFields[].key "
                "matchFields[].operator matchFields[].values[]",
            )
            + fields(
                "GPU",
                "",
                "spec.index spec.uuid spec.model spec.path spec.memory spec.nodeName status.state "
                "status.capacity status.allocatable status.allocated",
            )
            + names_of(names.SHARE_FINALIZER, names.RECLAIM),
        ),
        Edge(
            ADMINISTRATOR,
            "classes",
            "`allocator.features.elasticgpuclaims.objects`",
            "another provisioner's class is left alone",
            ("unit/allocator/features/elasticgpuclaims/test_shares.py::test_the_class_decides",),
            fields("ElasticGPUClass", "", "provisioner parameters reclaimPolicy egpuBindingMode"),
        ),
    ),
)

KUEUE = FeatureEdges(
    "Kueue's check",
    (
        Edge(
            TENANT,
            "Jobs of which Kueue makes Workloads: pod templates, counts, topology",
            "`allocator.features.kueue.workloads`",
            "one that cannot be read counts as absent; 4,096 domains; as many pods are judged as are tried",
            (
                "cluster/hostile/test_kueue_check.py::test_a_workload_that_cannot_be_read_stops_no_other",
                "unit/allocator/features/kueue/test_judge.py::test_a_large_gang_is_judged_by_as_many_pods_as_are_tried",
                "fuzzing kueue-workload",
                "fuzzing kueue-followed",
            ),
        ),
        Edge(
            TENANT,
            "Workloads that are promised room and never start",
            "`allocator.features.kueue.checks`",
            "a promise ends with its time, its pods, its quota or its Workload",
            (
                "cluster/hostile/test_kueue_check.py::test_what_was_promised_and_never_used_is_free_after_its_time",
                "unit/allocator/features/kueue/test_checks.py::test_a_promise_ends_with_its_time",
            ),
        ),
        Edge(
            TENANT,
            "what the answer reveals of others",
            "`allocator.features.kueue.judge`",
            "figures, but no name of another tenant; at most 1,024 characters",
            ("unit/allocator/features/kueue/test_judge.py::test_an_answer_names_figures_and_nobody_else",),
        ),
        Edge(
            TOKEN,
            "the allocator's: the state of a pending check",
            "API server",
            "a policy: checks of our controller, from Pending to an answer, and nothing else",
            (
                "cluster/hostile/test_kueue_check.py::"
                "test_the_allocators_token_answers_a_pending_check_and_writes_nothing_else",
            ),
            rights("gpufraction-allocator-kueue", "list watch", "workloads admissionchecks resourceflavors")
            + rights("gpufraction-allocator-kueue", "patch", "workloads/status admissionchecks/status")
            + names_of(names.FITS),
        ),
    ),
)

NODES = FeatureEdges(
    "Requested nodes",
    (
        Edge(
            TENANT,
            "pods that wait and that a new node would serve",
            "`allocator.features.provisioning.wishes`",
            "`max` nodes of a pool; a pause that doubles with each failure; pods beyond the bound of packing wait",
            (
                "unit/allocator/features/provisioning/test_wishes.py::"
                "test_a_pool_has_no_more_nodes_than_it_may_and_the_pod_learns_that",
                "unit/allocator/features/provisioning/test_wishes.py::"
                "test_the_pause_doubles_with_each_failure_in_a_row_and_ends_when_nodes_come",
                "unit/allocator/features/provisioning/test_packing.py::test_pods_beyond_the_bound_wait",
            ),
        ),
        Edge(
            NODE,
            "a node of a pool that reports unusual GPUs or taints",
            "`allocator.cache.templates`",
            "one node with a broken GPU, a taint of its own or no GPU does not speak for its pool",
            (
                "unit/allocator/cache/test_empty_nodes.py::test_one_node_with_a_broken_gpu_does_not_speak_for_the_pool",
                "unit/allocator/cache/test_empty_nodes.py::test_a_taint_of_one_node_is_not_the_pools",
            ),
        ),
        Edge(
            TOKEN,
            "the allocator's: requests and placeholder pods in our namespace",
            "API server",
            "roles of our namespace; a policy on the placeholders; one ConfigMap by name",
            (
                "cluster/hostile/test_placeholder_tokens.py::test_what_the_allocators_token_makes_and_ends",
                "cluster/hostile/test_placeholder_tokens.py::test_it_reads_no_other_kinds_of_our_namespace",
                "fuzzing node-request",
                "fuzzing pool-status",
            ),
            rights(
                "gpufraction-allocator-nodes", "list create delete", "provisioningrequests capacitybuffers podtemplates"
            )
            + rights("gpufraction-allocator-nodes", "patch", "capacitybuffers podtemplates configmaps")
            + rights("gpufraction-allocator-placeholders", "create delete", "pods")
            + names_of(names.POOL, names.NODE_REQUEST, names.POOLS),
        ),
    ),
)

PAGE = FeatureEdges(
    "The page and the plugin",
    (
        Edge(
            TENANT,
            "names, labels and messages that somebody else's page shows",
            "`kubectl_gpufraction.ui.pages`",
            "text is never HTML; a content policy allows only the page's own files",
            (
                "unit/kubectl_gpufraction/ui/test_server.py::test_nothing_that_comes_from_the_cluster_becomes_html",
                "unit/kubectl_gpufraction/ui/test_server.py::test_every_file_comes_with_headers_that_keep_others_out",
                "fuzzing views",
            ),
        ),
        Edge(
            STRANGER,
            "what Prometheus has of the use of GPUs, with `--prometheus`",
            "`kubectl_gpufraction.ui.usage`",
            "20 MiB of an answer; 8,192 series of 31 points; finite figures only",
            ("unit/kubectl_gpufraction/ui/test_usage.py", "fuzzing page-use"),
        ),
        Edge(
            LOCAL,
            "requests at the page's port, also from other pages",
            "`kubectl_gpufraction.ui.server`",
            "a random token in the path; a check of the name; 8 parameters of 400 characters; 64 connections",
            (
                "unit/kubectl_gpufraction/ui/test_server.py::test_the_page_is_served_under_a_random_token_and_nowhere_else",
                "unit/kubectl_gpufraction/ui/test_server.py::test_a_name_that_is_not_ours_is_refused",
                "unit/kubectl_gpufraction/ui/test_server.py::test_another_page_gets_no_answer",
                "fuzzing page-query",
                "fuzzing page-host",
            ),
            routes(
                "page",
                "GET /",
                "GET /api/gpus",
                "GET /api/namespaces",
                "GET /api/pod",
                "GET /api/pods",
                "GET /api/queue",
                "GET /api/use",
                "GET /healthz",
            ),
        ),
        Edge(
            TENANT,
            "the names given to the plugin",
            "`kubectl_gpufraction.cluster.targets`",
            "a name with a slash is a kind and a name, or is refused",
            ("fuzzing pod-named",),
        ),
        Edge(
            TOKEN,
            "the allocator's: the reserved nodes on its Lease, which the plugin shows",
            "`contract.nodes.reservations`",
            "64 KiB, 64 nodes; uids, which identify pods only to those who may list them; no decision depends on it",
            (
                "unit/contract/nodes/test_reservations.py::test_what_is_odd_counts_as_absent",
                "unit/contract/nodes/test_reservations.py::test_nothing_ends_the_reader",
                "fuzzing reserved-nodes",
                "unit/kubectl_gpufraction/test_explaining.py::test_a_tenant_who_may_not_read_the_lease_learns_no_name",
            ),
            names_of(names.RESERVED_NODES),
        ),
        Edge(
            STRANGER,
            "with the component ui-viewers: a token, the name and groups that a proxy sends, requests on behalf of "
            "others",
            "`kubectl_gpufraction.ui.viewers`",
            "the API server reviews each token; everything is read with it; a proxy's headers count only with its "
            "token, and never for a system name; 32 viewers are kept",
            (
                "unit/kubectl_gpufraction/ui/test_viewers.py",
                "unit/kubectl_gpufraction/ui/test_viewers_for_real.py::test_each_viewer_sees_what_their_token_may_list",
            ),
            rights("gpufraction-ui-viewers", "create", "tokenreviews"),
        ),
        Edge(
            TOKEN,
            "the page's, with the component ui: nothing; it reads",
            "API server",
            "rights to list, and to get a pod; the roles for tenants only read too",
            (
                "unit/kubectl_gpufraction/ui/test_server.py::"
                "test_a_story_needs_the_right_to_get_the_pod_and_says_what_it_cannot_show",
                "unit/manifests/test_rights.py",
            ),
            rights("gpufraction-ui", "list", "nodes events namespaces gpunodes elasticgpus deployments")
            + rights("gpufraction-ui", "get list", "pods")
            + rights("gpufraction-ui", "get", "mutatingwebhookconfigurations leases configmaps")
            + rights("gpufraction-view", "get list watch", "gpunodes elasticgpuclaims elasticgpuclasses gpus")
            + rights("gpufraction-free-gpus", "get list watch", "gpunodes gpus"),
        ),
    ),
)
