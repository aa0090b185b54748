"""Which machine of a cluster runs a request."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from thawd.cluster.machine_index import MachineIndex, Summary
from thawd.cluster.placement import Demand, Place, Placement, Reason, Strategy

DEMAND = Demand("predict:1", 512)


def place(
    machines: dict[str, Summary],
    demand: Demand = DEMAND,
    *,
    own: str = "here",
    strategy: Strategy = Strategy.SPREAD,
    now_s: float = 0.0,
) -> Place:
    index = MachineIndex(silence_s=1.0)
    for name, summary in machines.items():
        index.update(name, summary, 0.0)
    return Placement(own, index, strategy=strategy, draw=random.Random(1).random).place(demand, now_s)


def roomy(memory_mb: int = 4096, **fields: object) -> Summary:
    return Summary(free_environments=4, free_mb=memory_mb, **fields)  # type: ignore[arg-type]


IDLE = {"predict:1": 1}
IMAGE = frozenset({"predict:1"})


def test_an_idle_environment_here_comes_before_all_others() -> None:
    assert place({"here": Summary(idle=IDLE), "there": roomy(idle={"predict:1": 9})}) == Place("here", Reason.IDLE)


def test_an_idle_environment_elsewhere_comes_before_a_start_here() -> None:
    assert place({"here": roomy(images=IMAGE), "there": Summary(idle=IDLE)}) == Place("there", Reason.IDLE)


def test_the_snapshot_here_comes_before_one_elsewhere() -> None:
    assert place({"here": roomy(512, images=IMAGE), "there": roomy(images=IMAGE)}) == Place("here", Reason.IMAGE)


def test_the_snapshot_elsewhere_comes_before_room_here() -> None:
    assert place({"here": roomy(9999), "there": roomy(images=IMAGE)}) == Place("there", Reason.IMAGE)


def test_a_machine_with_the_snapshot_but_no_room_is_not_chosen() -> None:
    assert place({"here": roomy(), "there": roomy(511, images=IMAGE)}).machine == "here"
    full = Summary(images=IMAGE, free_environments=0, free_mb=9999)
    assert place({"here": roomy(), "there": full}).machine == "here"


def test_a_zone_that_has_the_snapshot_comes_before_more_room_elsewhere() -> None:
    machines = {
        "here": roomy(9999, zone="a"),
        "holder": Summary(images=IMAGE, zone="b"),
        "near": roomy(1024, zone="b"),
    }
    assert place(machines) == Place("near", Reason.NEARBY)
    machines["here"] = roomy(1024, zone="b")
    machines["near"] = roomy(9999, zone="b")
    assert place(machines) == Place("here", Reason.NEARBY)


def test_without_a_snapshot_spread_takes_the_machine_with_most_room_and_pack_stays_here() -> None:
    machines = {"here": roomy(1024), "b": roomy(2048), "c": roomy(8192)}
    assert place(machines) == Place("c", Reason.ROOM)
    assert place(machines, strategy=Strategy.PACK) == Place("here", Reason.ROOM)


def test_pack_takes_the_fullest_machine_that_fits() -> None:
    machines = {"here": Summary(), "b": roomy(2048), "c": roomy(8192), "d": roomy(500)}
    assert place(machines, strategy=Strategy.PACK) == Place("b", Reason.ROOM)


def test_without_room_anywhere_the_request_waits_here() -> None:
    assert place({"here": Summary(), "there": Summary(images=IMAGE)}) == Place("here", Reason.WAIT)


def test_a_machine_that_is_silent_is_not_chosen() -> None:
    machines = {"here": Summary(), "there": roomy(idle=IDLE)}
    assert place(machines, now_s=1.0).machine == "there"
    assert place(machines, now_s=1.1) == Place("here", Reason.WAIT)


def test_a_machine_that_drains_is_not_chosen() -> None:
    assert place({"here": Summary(), "there": roomy(idle=IDLE, images=IMAGE, draining=True)}).reason is Reason.WAIT


def test_a_machine_that_refused_is_not_chosen_again() -> None:
    machines = {"here": Summary(), "b": roomy(idle=IDLE), "c": roomy()}
    assert place(machines, Demand("predict:1", 512, excluded=frozenset({"b"}))) == Place("c", Reason.ROOM)


def test_only_machines_with_the_required_labels_are_chosen() -> None:
    labels = frozenset({("gpu", "h100")})
    demand = Demand("predict:1", 512, labels=labels)
    machines = {
        "here": roomy(idle=IDLE),
        "b": roomy(9999, images=IMAGE, labels={"gpu": "l4"}, zone="z"),
        "c": roomy(1024, labels={"gpu": "h100", "disk": "ssd"}),
    }
    assert place(machines, demand) == Place("c", Reason.ROOM)
    assert place({"here": machines["here"], "b": machines["b"]}, demand) == Place("here", Reason.WAIT)


def test_an_idle_environment_is_given_to_one_request_until_the_next_summary() -> None:
    index = MachineIndex(silence_s=1.0)
    index.update("here", Summary(), 0.0)
    index.update("there", Summary(idle=IDLE), 0.0)
    placement = Placement("here", index, strategy=Strategy.SPREAD, draw=random.Random(1).random)
    assert [placement.place(DEMAND, 0.1).reason for _ in range(2)] == [Reason.IDLE, Reason.WAIT]
    index.update("there", Summary(idle=IDLE), 0.2)
    assert placement.place(DEMAND, 0.3).reason is Reason.IDLE


def test_an_environment_whose_request_has_ended_is_used_before_the_next_summary() -> None:
    index = MachineIndex(silence_s=1.0)
    index.update("here", Summary(), 0.0)
    index.update("there", Summary(idle=IDLE), 0.0)
    placement = Placement("here", index, strategy=Strategy.SPREAD, draw=random.Random(1).random)
    for _ in range(3):
        assert placement.place(DEMAND, 0.1) == Place("there", Reason.IDLE)
        index.ended("there", DEMAND.version)
    index.ended("gone", DEMAND.version)
    index.update("there", Summary(draining=True), 0.2)
    index.ended("there", DEMAND.version)
    assert placement.place(DEMAND, 0.3).reason is Reason.WAIT


def test_room_is_given_to_as_many_requests_as_fit_until_the_next_summary() -> None:
    index = MachineIndex(silence_s=1.0)
    index.update("here", Summary(), 0.0)
    index.update("b", roomy(1024), 0.0)
    index.update("c", roomy(1600), 0.0)
    placement = Placement("here", index, strategy=Strategy.SPREAD, draw=random.Random(1).random)
    assert sorted(placement.place(DEMAND, 0.1).machine for _ in range(6)) == ["b", "b", "c", "c", "c", "here"]


_summaries = st.builds(
    Summary,
    idle=st.dictionaries(st.sampled_from(["v1", "v2"]), st.integers(1, 3), max_size=2),
    images=st.frozensets(st.sampled_from(["v1", "v2"])),
    free_environments=st.integers(0, 3),
    free_mb=st.integers(0, 2000),
    labels=st.dictionaries(st.just("gpu"), st.sampled_from(["a", "b"])),
    zone=st.sampled_from(["", "z"]),
    draining=st.booleans(),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"m{number}" for number in range(12)]),
            st.one_of(_summaries, st.none()),
            st.sampled_from([frozenset[tuple[str, str]](), frozenset({("gpu", "a")})]),
        ),
        max_size=60,
    ),
    st.sampled_from(Strategy),
    st.randoms(use_true_random=False),
)
def test_a_placement_is_always_the_best_kind_there_is(
    steps: list[tuple[str, Summary | None, frozenset[tuple[str, str]]]], strategy: Strategy, source: random.Random
) -> None:
    """Summaries arrive, machines leave, requests are placed; each decision is compared with a search over all."""
    index = MachineIndex(silence_s=100.0)
    placement = Placement("m0", index, strategy=strategy, draw=source.random)
    known: dict[str, Summary] = {}
    for step, (name, summary, labels) in enumerate(steps):
        if summary is None:
            index.remove(name)
            known.pop(name, None)
        else:
            index.update(name, summary, float(step))
            known[name] = summary
        demand = Demand("v1", 300, labels=labels)
        suitable = {
            name: machine
            for name in known
            if (machine := index.alive(name, step)) is not None
            and not machine.summary.draining
            and labels <= set(machine.summary.labels.items())
        }
        idle = {name for name, machine in suitable.items() if "v1" in machine.idle}
        free = {name for name, machine in suitable.items() if machine.fits(300)}
        images = {name for name in free if "v1" in known[name].images}
        zones = {summary.zone for summary in known.values() if "v1" in summary.images}
        nearby = {name for name in free if known[name].zone in zones}
        place = placement.place(demand, float(step))
        for reason, names in zip(Reason, (idle, images, nearby, free), strict=False):
            if names:
                assert place.reason is reason
                assert place.machine in names
                assert place.machine == "m0" or "m0" not in names or reason is Reason.ROOM
                break
        else:
            assert place == Place("m0", Reason.WAIT)
