"""What the leader of thawd's cluster sees, and what Ray's autoscaler is told because of it.

Only what the leader says is used, so that the numbers come from one place, and a machine that is cut off has no say.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from thawd.ray_nodes.demand import Scaler, Seen, seen_machines
from thawd.ray_nodes.options import AgentReport, Options

_TELL_AGAIN_S = 30.0
_ANSWER_S = 15.0


class LeaderView:
    """Asks the leader through its agent, decides how many machines there should be, and tells Ray's autoscaler.

    Args:
        ray: the module ``ray``.
        options: see `Options`.
        machines: how many machines there are at the beginning.

    Attributes:
        loads: what each machine has to do, by its name, as the leader has said last.
    """

    def __init__(self, ray: Any, options: Options, *, machines: int) -> None:
        self._ray = ray
        self._resource = options.resource
        self._scaler = Scaler(least=options.least, most=options.most, idle_s=options.idle_s, wanted=machines)
        self._call: tuple[Any, str, float] | None = None  # the call, the machine that was asked, and when
        self._leader = ""
        self._told = (-1, 0.0)
        self.loads: Mapping[str, int] = {}

    @property
    def wanted(self) -> int:
        """How many machines there should be."""
        return self._scaler.wanted

    def look(self, agents: Mapping[str, tuple[Any, AgentReport]]) -> None:
        """Use an answer that has come, and ask again. Does not wait.

        Args:
            agents: handle and last report of each agent whose thawd serves, by name of the machine.
        """
        now_s = time.monotonic()
        if self._call is not None:
            call, asked, since_s = self._call
            if self._ray.wait([call], timeout=0)[0]:
                self._call = None
                with contextlib.suppress(self._ray.exceptions.RayError, ValueError, LookupError):
                    self._use(self._ray.get(call), asked, frozenset(agents), now_s)
            elif now_s - since_s > _ANSWER_S:
                self._call, self._leader = None, ""
        if self._call is None and agents:
            name = self._leader if self._leader in agents else min(agents)
            self._call = (agents[name][0].view.remote(), name, now_s)

    def _use(self, document: bytes, asked: str, ours: frozenset[str], now_s: float) -> None:
        if not document:
            self._leader = ""
            return
        self._leader, seen = seen_machines(msgspec.json.decode(document))
        if self._leader != asked:
            return  # the leader is asked next
        self.loads = {each.name: each.used + each.waiting for each in seen}
        here: list[Seen] = [each for each in seen if each.name in ours]
        self._scaler.observe(here, [each for each in seen if each.name not in ours], now_s)

    def tell(self, agents: int) -> None:
        """Tell Ray's autoscaler how many machines there should be, if it does not know, and twice a minute anyway.

        While there are as many agents as machines should be, nothing is asked for: each agent keeps its node from being
        removed. Ray would keep as many nodes as are asked for, but chooses which, and could keep one without an agent.

        Args:
            agents: how many agents run and are to stay.
        """
        self._ask_for(self.wanted if agents < self.wanted else 0)

    def stop_asking(self) -> None:
        """Ask Ray's autoscaler for no machine any more."""
        self._ask_for(0)

    def _ask_for(self, count: int) -> None:
        told, told_s = self._told
        now_s = time.monotonic()
        if told == count and now_s - told_s < _TELL_AGAIN_S:
            return
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=[{self._resource: 1}] * count)
        self._told = (count, now_s)
