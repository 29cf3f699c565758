"""Which agents are silent, by our clock alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.agents import Agents
from contract.nodes.heartbeat import UNHEARD, Heartbeat

PATIENCE = 300.0


def beat(number: int, every: int = 120) -> Heartbeat:
    return Heartbeat(number, every)


def heard(*nodes: str, now: float = 0.0) -> Agents:
    agents = Agents(PATIENCE)
    for node in nodes:
        agents.hear(node, beat(1), now)
    return agents


def test_an_agent_is_silent_after_its_bound_and_said_so_once() -> None:
    agents = heard("a", "b")
    agents.hear("b", beat(2), 200.0)
    assert agents.take_silent(299.0) == {}
    assert agents.take_silent(300.0) == {"a": 300.0}
    assert agents.take_silent(301.0) == {}
    assert agents.silent == {"a"}


def test_a_write_ends_silence_and_an_event_without_one_does_not() -> None:
    agents = heard("a")
    agents.take_silent(301.0)
    assert [agents.hear("a", beat(1), 302.0, listed=listed) for listed in (False, True)] == [False, False]
    assert (agents.hear("a", beat(2), 303.0), agents.silent) == (True, set())
    assert agents.take_silent(603.0) == {"a": 300.0}


def test_a_list_and_a_new_term_begin_the_count_again() -> None:
    listed, restarted = heard("a"), heard("a")
    listed.hear("a", beat(1), 290.0, listed=True)
    restarted.restart(290.0)
    assert [agents.take_silent(589.0) for agents in (listed, restarted)] == [{}, {}]
    assert [agents.take_silent(590.0) for agents in (listed, restarted)] == [{"a": 300.0}, {"a": 300.0}]


def test_a_deleted_gpunode_has_no_agent_and_one_without_a_promise_none_judged() -> None:
    agents = heard("gone", "older")
    assert not agents.drop("gone")
    assert agents.nodes() == {"older"}
    agents.hear("older", Heartbeat(5), 10.0)
    assert agents.take_silent(10_000.0) == {}
    agents = heard("a")
    agents.take_silent(301.0)
    assert (agents.drop("a"), agents.silent) == (True, set())


def test_a_promise_that_becomes_shorter_counts_at_once() -> None:
    agents = Agents(PATIENCE)
    agents.hear("a", beat(1, every=40_000), 0.0)
    agents.hear("a", beat(2, every=120), 1.0)
    assert agents.take_silent(300.0) == {}
    assert agents.take_silent(301.0) == {"a": 300.0}


@dataclass
class Plain:
    """The same rule, but it checks every agent each time."""

    heard: dict[str, tuple[Heartbeat, float]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def hear(self, node: str, found: Heartbeat, now: float) -> None:
        if self.heard.get(node, (None, 0.0))[0] != found:
            self.heard[node] = (found, now)
            self.silent.discard(node)

    def look(self, now: float) -> set[str]:
        late = {n for n, (b, at) in self.heard.items() if now - at >= (b.bound(PATIENCE) or now + 1)}
        found = late - self.silent
        self.silent |= late
        return found


EVENTS = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(["writes", "goes", "looks"]),
    st.integers(0, 400),
    st.sampled_from([0, 60, 200]),
)


@given(st.lists(EVENTS, max_size=40))
def test_the_heap_finds_whom_a_look_at_everybody_finds(events: list[tuple[str, str, int, int]]) -> None:
    agents, plain, now = Agents(PATIENCE), Plain(), 0.0
    for number, (node, what, pause, every) in enumerate(events):
        now += pause
        if what == "writes":
            plain.hear(node, beat(number, every), now)
            agents.hear(node, beat(number, every), now)
        elif what == "goes":
            plain.heard.pop(node, None)
            plain.silent.discard(node)
            agents.drop(node)
        else:
            assert set(agents.take_silent(now)) == plain.look(now)
            assert agents.silent == plain.silent
        assert len(agents._due) <= 3, "each agent has one place"


def test_a_node_whose_gpunode_comes_and_goes_has_one_place() -> None:
    agents = Agents(PATIENCE)
    for number in range(1_000):
        agents.hear("a", beat(number), float(number) / 100)
        agents.hear("a", UNHEARD, float(number) / 100)
        agents.drop("a")
    assert len(agents._due) == 1
