"""The document of options: which objects it applies to, and the message for one that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.quantity import MIB
from contract.options import NO_OPTIONS, BadOption, Options, PoolOptions, VgpuOptions, pool_options
from contract.scheduling.clusterfilters.objects import Profile, SpreadConstraint
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.needs import Requirement

DOCUMENT = {
    "deviceSplitCount": 10,
    "defaultMem": 1000,
    "resourceName": "example.com/vgpu",
    "pools": [
        {"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, "deviceMemoryScaling": 2, "defaultMem": 0},
        {
            "name": "b",
            "nodeSelector": {
                "matchLabels": {"zone": "z"},
                "matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}],
            },
            "deviceSplitCount": "4",
        },
        {"name": "old", "nodeSelector": {"matchExpressions": [{"key": "new", "operator": "DoesNotExist"}]}},
    ],
}
READ = pool_options(DOCUMENT)
RENAMED = (("example.com/vgpu", "nvidia.com/gpu"),)
CLUSTER = VgpuOptions(device_split_count=10, default_mem=1000 * MIB, resource_names=RENAMED)

NODES: dict[str, tuple[dict[str, str], tuple[str, VgpuOptions]]] = {
    "a pool's own options go before the cluster's": (
        {"pool": "a", "new": ""},
        ("a", VgpuOptions(10, 2.0, 0, resource_names=RENAMED)),
    ),
    "the first pool that fits counts": (
        {"pool": "a", "zone": "z"},
        ("a", VgpuOptions(10, 2.0, 0, resource_names=RENAMED)),
    ),
    "every part of a selector must hold": (
        {"pool": "b", "zone": "z"},
        ("b", VgpuOptions(4, default_mem=1000 * MIB, resource_names=RENAMED)),
    ),
    "a label that is not there": ({"pool": "b"}, ("old", CLUSTER)),
    "in no pool": ({"pool": "c", "new": "yes"}, ("", CLUSTER)),
}


@pytest.mark.parametrize(("labels", "want"), NODES.values(), ids=NODES.keys())
def test_whose_options_count_on_a_node(labels: dict[str, str], want: tuple[str, VgpuOptions]) -> None:
    assert READ.of_node(labels) == want


PODS: dict[str, tuple[Any, Options]] = {
    "it goes to a pool": ({"spec": {"nodeSelector": {"pool": "a"}}}, Options(resource_names=RENAMED)),
    "it may go anywhere, so that what is said by absence is not meant": (
        {"spec": {}},
        Options(default_memory=1000 * MIB, resource_names=RENAMED),
    ),
    "it is no pod at all": ({"spec": [1]}, Options(default_memory=1000 * MIB, resource_names=RENAMED)),
    "nor is its selector one": (
        {"spec": {"nodeSelector": "pool"}},
        Options(default_memory=1000 * MIB, resource_names=RENAMED),
    ),
}


@pytest.mark.parametrize(("pod", "want"), PODS.values(), ids=PODS.keys())
def test_how_a_pod_is_read(pod: Any, want: Options) -> None:
    assert READ.reading(pod) == want


def test_empty_options_change_nothing() -> None:
    assert [pool_options(found) for found in (None, {}, {"pools": None})] == [NO_OPTIONS] * 3
    assert PoolOptions() == NO_OPTIONS
    assert NO_OPTIONS.reading({}) == Options()


def test_how_all_pods_are_read_is_set_once() -> None:
    given = {"aliyunUnit": "MiB", "coreOnlyMemory": "1Gi", "wholeGPUs": "vendor", "minMemory": "512Mi", "minPercent": 5}
    want = Options(aliyun_unit=MIB, core_only_memory=1024 * MIB, whole_gpus="vendor", least_memory=512 * MIB)
    assert pool_options({**given, "defaultCores": 7}).reading({}) == replace(want, least_percent=5, default_cores=7)


def pool(**changes: Any) -> dict[str, Any]:
    return {"pools": [{"name": "a", "nodeSelector": {"matchLabels": {"pool": "a"}}, **changes}]}


def selected(**selector: Any) -> dict[str, Any]:
    return pool(nodeSelector=selector)


def profile(**changes: Any) -> dict[str, Any]:
    return {"schedulerProfiles": [{"schedulerName": "a", **changes}]}


def added(**changes: Any) -> dict[str, Any]:
    return profile(addedAffinity=changes)


EVEN = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def required(expression: Any) -> dict[str, Any]:
    return added(**{REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})


def test_the_arguments_of_a_profile() -> None:
    here = {"key": "pool", "operator": "In", "values": ["gpu"]}
    document = {
        "schedulerProfiles": [
            {
                "addedAffinity": {
                    REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [here]}]},
                    PREFERRED: [{"weight": 3, "preference": {"matchExpressions": [here]}}],
                },
                "defaultConstraints": [
                    {**EVEN, "minDomains": 2, "nodeTaintsPolicy": "Honor"},
                    {**EVEN, "maxSkew": 5, "whenUnsatisfiable": "ScheduleAnyway"},
                ],
            }
        ]
    }
    term, none = (Requirement("pool", "In", ("gpu",)),), LabelSelector(absent=True)
    assert pool_options(document).profiles == {
        "default-scheduler": Profile(
            added_affinity=(term,),
            added_wishes=((3, term),),
            spread=(SpreadConstraint("zone", none, 1, min_domains=2, node_taints="Honor"),),
            preferred_spread=(SpreadConstraint("zone", none, 5),),
        )
    }


WRONG: dict[str, tuple[Any, str]] = {
    "a unit that is none": ({"aliyunUnit": "GB"}, "aliyunUnit: found 'GB'; give GiB, MiB"),
    "nobody who serves whole GPUs": ({"wholeGPUs": True}, "wholeGPUs: found True; give ours, vendor"),
    "less than a share": ({"minMemory": "1Ki"}, "minMemory: found '1Ki'; give at least 1Mi, such as 512Mi"),
    "no amount": ({"coreOnlyMemory": [1]}, "coreOnlyMemory: found [1]; give bytes, such as 512Mi"),
    "a percentage of nothing": ({"minPercent": 0}, "minPercent: found 0; give a whole number from 1 to 100"),
    "the least share of a pool": (pool(minMemory="1Gi"), "pools[0] ('a'): 'minMemory': unknown in a pool"),
    "profiles that are no list": (
        {"schedulerProfiles": {}},
        "schedulerProfiles: found {}; give a list of at most 16",
    ),
    "a profile that is none": (
        {"schedulerProfiles": [5]},
        "schedulerProfiles[0]: found 5; give an object with schedulerName, addedAffinity, defaultConstraints",
    ),
    "a profile's misspelt name": (
        profile(addedAffinities={}),
        "schedulerProfiles[0]: 'addedAffinities': unknown; give one of schedulerName, ",
    ),
    "a schedulerName that no pod can have": (
        profile(schedulerName="My Scheduler"),
        "schedulerProfiles[0].schedulerName: found 'My Scheduler'; give the name",
    ),
    "two profiles of a name": (
        {"schedulerProfiles": [{}, {"schedulerName": "default-scheduler"}]},
        "schedulerProfiles[1].schedulerName: 'default-scheduler' is given twice",
    ),
    "an added affinity of no term": (
        added(**{REQUIRED: {"nodeSelectorTerms": []}}),
        f"schedulerProfiles[0].addedAffinity.{REQUIRED}.nodeSelectorTerms: has no term; give one, or leave out",
    ),
    "an added affinity to a key that is none": (
        required({"key": "no key", "operator": "Exists"}),
        "nodeSelectorTerms[0].matchExpressions[0].key: found 'no key'; give a label",
    ),
    "an added affinity by an operator that is none": (
        required({"key": "pool", "operator": "Is"}),
        "matchExpressions[0].operator: found 'Is'; give one of In, NotIn, Exists, DoesNotExist, Gt, Lt",
    ),
    "an added affinity without values": (
        required({"key": "pool", "operator": "In"}),
        "matchExpressions[0].values: found []; give texts for In and NotIn, one number as text for Gt and Lt",
    ),
    "an added preference that weighs too much": (
        added(**{PREFERRED: [{"weight": 101, "preference": {}}]}),
        f"addedAffinity.{PREFERRED}[0].weight: found 101; give a whole number from 1 to 100",
    ),
    "a default constraint with a selector": (
        profile(defaultConstraints=[{**EVEN, "labelSelector": {}}]),
        "schedulerProfiles[0].defaultConstraints[0]: 'labelSelector': unknown; give one of maxSkew, topologyKey, ",
    ),
    "a default constraint without a key": (
        profile(defaultConstraints=[{**EVEN, "topologyKey": None}]),
        "defaultConstraints[0].topologyKey: found None; give a label of nodes",
    ),
    "a default constraint without a skew": (
        profile(defaultConstraints=[{**EVEN, "maxSkew": 0}]),
        "defaultConstraints[0].maxSkew: found 0; give a whole number from 1 to",
    ),
    "a default constraint that does not say whether it must hold": (
        profile(defaultConstraints=[{**EVEN, "whenUnsatisfiable": "Maybe"}]),
        "defaultConstraints[0].whenUnsatisfiable: found 'Maybe'; give one of DoNotSchedule, ScheduleAnyway",
    ),
    "a default constraint that is there twice": (
        profile(defaultConstraints=[EVEN, {**EVEN, "maxSkew": 2}]),
        "schedulerProfiles[0].defaultConstraints: 'zone' with 'DoNotSchedule' is given twice; give it once",
    ),
    "a list": ([1], "found [1]; give one `name: value` per line"),
    "text": ("deviceSplitCount=5", "give one `name: value` per line"),
    "a misspelt name": ({"deviceSplit": 5}, "'deviceSplit': unknown; give one of aliyunUnit, coreOnlyMemory, "),
    "a key that is no text": ({5: 5}, "5: unknown; give one of"),
    "pools that are no list": ({"pools": {"a": 1}}, "pools: found {'a': 1}; give a list of pools"),
    "a pool that is none": ({"pools": ["a"]}, "pools[0]: found 'a'; give a pool with name and nodeSelector"),
    "a pool without a name": (pool(name=None), "pools[0].name: found None; give a name of 1 to 63 characters"),
    "a name that no object may have": (
        pool(name="My pool", node={"max": 1}),
        "pools[0] ('My pool').name: found 'My pool'; requests for nodes are named after the pool, so give at most 40",
    ),
    "two pools of a name": (
        {"pools": pool()["pools"] * 2},
        "pools: 'a' is given twice; give each pool its own name",
    ),
    "a wrong value in a pool": (
        pool(deviceSplitCount=0),
        "pools[0] ('a'): deviceSplitCount: found 0; give a whole number from 1 to 1024",
    ),
    "a resource's name in a pool": (
        pool(resourceName="a/b"),
        "pools[0] ('a'): 'resourceName': unknown in a pool; give one of defaultCores,",
    ),
    "a pool of every node": (selected(), "pools[0].nodeSelector: found {}; give matchLabels or matchExpressions"),
    "a misspelt selector": (selected(matchLabel={}), "found {'matchLabel': {}}; give matchLabels or matchExpressions"),
    "labels that are empty": (selected(matchLabels={}), "pools[0].nodeSelector: selects nothing; give a label"),
    "a value that is no text": (
        selected(matchLabels={"gpu": True}),
        "nodeSelector.matchLabels: found {'gpu': True}; give labels and values as text",
    ),
    "expressions that are no list": (selected(matchExpressions="a"), "matchExpressions: found 'a'; give a list"),
    "an operator that is none": (
        selected(matchExpressions=[{"key": "a", "operator": "Gt", "values": ["1"]}]),
        "give a key and an operator of In, NotIn, Exists, DoesNotExist",
    ),
    "values where none belong": (
        selected(matchExpressions=[{"key": "a", "operator": "Exists", "values": ["1"]}]),
        "matchExpressions[0].values: found ['1']; give texts for In and NotIn, none for the others",
    ),
    "no values where some belong": (
        selected(matchExpressions=[{"key": "a", "operator": "In"}]),
        "matchExpressions[0].values: found []; give texts for In and NotIn",
    ),
}


@pytest.mark.parametrize(("document", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_document_says_where_and_what_would_work(document: Any, message: str) -> None:
    with pytest.raises(BadOption) as caught:
        pool_options(document)
    assert message in str(caught.value)


_ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 2000)
    | st.floats(allow_nan=True)
    | st.sampled_from(("", "a", "In", "1.5")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                (
                    "pools",
                    "aliyunUnit",
                    "minMemory",
                    "wholeGPUs",
                    "schedulerProfiles",
                    "addedAffinity",
                    "defaultConstraints",
                    REQUIRED,
                    PREFERRED,
                    "nodeSelectorTerms",
                    "matchExpressions",
                    "topologyKey",
                    "weight",
                    "preference",
                    "name",
                    "nodeSelector",
                    "matchLabels",
                    "key",
                    "values",
                    "deviceSplitCount",
                    "node",
                    "max",
                    "taints",
                    "selector",
                    "spare",
                    "x",
                )
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_ANY)
def test_any_document_is_read_or_refused(document: Any) -> None:
    outcome = "read"
    try:
        pool_options(document)
    except BadOption as error:
        outcome = str(error)
    assert 0 < len(outcome) < 600
