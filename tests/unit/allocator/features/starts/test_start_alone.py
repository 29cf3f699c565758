"""A pod that starts alone gets no share of a card on which another such pod is starting."""

from __future__ import annotations

from contract import names
from contract.encoding.protocol import Placed, Wait
from contract.reasons.nodes import Code
from tests.builders import node
from tests.unit.allocator.features.starts.engines import BOUND, PlayedEngines, engine
from tests.unit.allocator.harness import question

WAITS = "waiting: 0 of 1 GPU nodes fit: 1 with room only on GPUs where another pod that starts alone is still starting"


def one_card() -> PlayedEngines:
    return PlayedEngines([node("n").gpus(1)])


def test_the_second_waits_until_the_first_is_ready() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"))
    played.passes()
    assert played.placed() == {"default/a": "n"}, "both were tried in one cycle"
    assert played.waits("default/b") == WAITS
    played.starts("default/a")
    played.passes(60)
    assert played.placed() == {"default/a": "n"}
    played.ready("default/a")
    played.passes()
    assert played.placed() == {"default/a": "n", "default/b": "n"}
    assert played.told == []


def test_the_second_takes_another_card_where_there_is_one() -> None:
    played = PlayedEngines([node("n").gpus(2)])
    played.creates(engine("a"), engine("b"), engine("c"))
    played.passes()
    assert played.placed().keys() == {"default/a", "default/b"}
    assert played.card("default/a") != played.card("default/b")


def test_other_pods_start_alongside() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b", alone=False), engine("c", alone=False))
    played.passes()
    assert len(played.placed()) == 3
    played = one_card()
    played.creates(engine("a", alone=False), engine("b"))
    played.passes()
    assert len(played.placed()) == 2


def test_the_card_opens_once_the_first_has_ended_or_is_gone() -> None:
    for ends in ("fails", "goes"):
        played = one_card()
        played.creates(engine("a"), engine("b"))
        played.passes()
        assert "default/b" not in played.placed()
        if ends == "fails":
            played.api.change("default/a", phase="Failed")
        else:
            played.api.delete("default/a")
        played.passes()
        assert played.placed()["default/b"] == "n"


def test_after_the_bound_an_event_says_so_and_the_next_starts() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"), engine("c"))
    played.passes()
    played.passes(100)
    played.starts("default/a")
    played.passes(BOUND - 2)
    assert played.placed().keys() == {"default/a"}, "counted from the start of its container"
    assert played.told == []
    played.passes(3)
    assert played.placed().keys() == {"default/a", "default/b"}, "and the third waits for the second"
    assert [key for key, _ in played.told] == ["default/a"]
    played.passes(30)
    assert [key for key, _ in played.told] == ["default/a"], "once"


def test_a_pod_that_starts_after_the_bound_closes_its_card_again() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"), engine("c"))
    played.passes()
    played.passes(BOUND + 2)
    assert played.placed().keys() == {"default/a", "default/b"}
    played.ready("default/b")
    played.starts("default/a")
    played.passes()
    assert played.placed().keys() == {"default/a", "default/b"}
    played.passes(BOUND + 2)
    assert played.placed().keys() == {"default/a", "default/b", "default/c"}


def test_a_container_that_ends_again_and_again_closes_its_card_no_longer() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"))
    played.passes()
    for restarts in range(6):
        played.starts("default/a", restarts=restarts)
        played.passes(60)
    assert played.placed().keys() == {"default/a", "default/b"}


def test_a_pod_whose_probe_fails_later_closes_nothing() -> None:
    played = one_card()
    played.creates(engine("a"))
    played.passes()
    played.starts("default/a")
    played.passes(60)
    played.ready("default/a")
    played.passes(60)
    played.ready("default/a", False)
    played.creates(engine("b"))
    played.passes()
    assert played.placed().keys() == {"default/a", "default/b"}


def test_a_new_leader_knows_the_same() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"))
    played.passes()
    played.starts("default/a")
    played.passes(200)
    played.lead()
    played.passes()
    assert played.placed().keys() == {"default/a"}
    played.passes(80)
    assert played.placed().keys() == {"default/a"}
    played.passes(25)
    assert played.placed().keys() == {"default/a", "default/b"}, "the bound has not begun again"
    played.lead()
    played.passes()
    assert len(set(played.told)) == 1, "a replica that tells it again writes the same Event"


def test_what_is_placed_at_admission_obeys_the_same_rule() -> None:
    played = one_card()
    controller = played.replica.controller
    first = controller.reserve(question(engine("a"), uid="1"))
    assert isinstance(first, Placed)
    second = controller.reserve(question(engine("b"), uid="2"))
    assert isinstance(second, Wait), second
    assert second.code == Code.NEIGHBOUR_STARTING.word
    assert isinstance(controller.reserve(question(engine("c", alone=False), uid="3")), Placed)
    controller.check_invariants()


def test_pods_of_a_gang_that_start_alone_have_a_card_each() -> None:
    played = one_card()
    gang = [engine(name).annotated(names.GANG, "g").annotated(names.GANG_MINIMUM, "2") for name in "ab"]
    played.creates(*gang)
    played.passes()
    assert played.placed() == {}
    assert played.waits("default/a").endswith(WAITS.removeprefix("waiting: "))
    played = PlayedEngines([node("n").gpus(2)])
    played.creates(*gang)
    played.passes()
    played.passes()
    assert played.card("default/a") != played.card("default/b")


def test_nobody_is_evicted_for_a_card_that_opens_soon() -> None:
    played = one_card()
    played.creates(engine("a"), engine("small", alone=False), engine("urgent").spec(priority=1_000))
    played.passes()
    assert played.placed().keys() == {"default/urgent", "default/small"}
    played.creates(engine("more").spec(priority=2_000))
    played.passes()
    assert played.replica.controller.preempt() == []
    assert played.waits("default/more") == WAITS


def test_no_node_is_requested_for_a_pod_whose_neighbour_starts() -> None:
    played = one_card()
    played.creates(engine("a"), engine("b"))
    played.passes(60)
    played.passes(60)
    assert played.waits("default/b") == WAITS
    assert played.replica.harness.unserved(30.0) == ()
