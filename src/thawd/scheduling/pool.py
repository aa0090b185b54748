"""The environments of one version: which request gets one, when another is started, when an idle one is ended.

The dispatcher leases environments from the pool. Before each start, the pool reserves room (`thawd.scheduling.room`).

Guarantees:
- the most recently used idle environment is leased first, so that environments a function no longer needs stay idle
  and are ended;
- while the machine has room, as many environments start in parallel as the waiting requests need;
- the first waiting request gets the first environment that has started or has become idle;
- while the processor cores are occupied, requests wait (`thawd.scheduling.core_admission`), and no environment starts;
- synchronous requests are served before asynchronous ones;
- if the handler takes lists, the requests that wait are joined (`thawd.scheduling.pool_requests`);
- the keep-alive policy decides how long idle environments are kept, and when one is prewarmed;
- if the handler runs several invocations at a time, a request joins the busy environment with the fewest invocations.
  Another environment is started when all are full, or when they compute without a pause and a core is free;
- when a start fails and no environment is busy or starts, the waiting requests fail with its error. The next start is
  tried after a back-off (`thawd.scheduling.start_failures`).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine

from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.environments.version import Version
from thawd.errors import ServiceException
from thawd.invocation import Invocation
from thawd.scheduling.batch_runs import BatchRun
from thawd.scheduling.busy_environments import BusyEnvironments
from thawd.scheduling.core_admission import Share
from thawd.scheduling.idle_timer import IdleTimer
from thawd.scheduling.keep_alive import FixedPolicy, Keeper, Policy
from thawd.scheduling.leases import Lease, PoolRetiredError, kill_after, throttled
from thawd.scheduling.pool_requests import Line, Waiter
from thawd.scheduling.pool_spare import PoolSpare
from thawd.scheduling.room import Room
from thawd.scheduling.start_failures import StartFailures, copy_of
from thawd.system.flag import Flag


class Pool(PoolSpare):
    """The environments of one version.

    Attributes:
        version: the version whose environments these are.
        retired: True once a newer version serves, or the version was deleted. Then no environment stays idle.
        provisioned: number of environments to keep initialised.
        share: how much processor time the version's invocations use.
        on_started: called each time an environment has started; None: nothing is called.
        empty: set while no environment and no spare exists or is starting.
        account: see `thawd.scheduling.room.Occupant`.
    """

    def __init__(
        self,
        version: Version,
        room: Room,
        *,
        max_waiting: int,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
        policy: Policy | None = None,
    ) -> None:
        """Make a pool without environments of `version`.

        Args:
            room: limits the number of environments on the machine, and starts them.
            max_waiting: highest number of requests that wait; further requests are throttled.
            spawn_task: runs a coroutine in the background.
            policy: decides how long idle environments are kept; None: for the function's ``idle_timeout_s``.
        """
        self.version = version
        self.account: object = self
        self.retired = False
        self.on_started: Callable[[], None] | None = None
        self.empty = Flag()
        self.empty.set()
        self._room = room
        self._cores = room.cores
        self._max_waiting = max_waiting
        self._spawn_task = spawn_task
        self._idle: list[Environment] = []
        self._busy = BusyEnvironments(version.function.concurrency)
        # Used as a set; an empty set takes three times the memory of an empty dict.
        self._dying: dict[Environment, None] = {}  # killed, with their room released, but the process still exists
        self._starting = 0
        self._starting_provisioned = 0
        self._line = Line(version.function, self)
        self.provisioned = version.function.provisioned_concurrency
        idle_timeout_s = version.function.idle_timeout_s
        self._keeper = Keeper(policy or FixedPolicy(idle_timeout_s), surplus_s=idle_timeout_s)
        self._timer = IdleTimer(self, self._keeper)
        self.share = Share()

    # These two objects are made at their first use, because most functions have no failed start.
    @functools.cached_property
    def failures(self) -> StartFailures:
        """Failed starts of on-demand environments.

        During the back-off, a request gets the last start's error if no environment is idle or busy.
        """
        return StartFailures(self.grow)

    @functools.cached_property
    def provisioned_failures(self) -> StartFailures:
        """Failed starts of provisioned environments. Meanwhile, requests start on-demand environments, as on Lambda."""
        return StartFailures(self.grow)

    @property
    def waiting(self) -> int:
        """Number of requests in line."""
        return len(self._line)

    def counts(self) -> dict[str, int]:
        """Return the number of environments by state."""
        return {"idle": len(self._idle), "busy": len(self._busy), "starting": self._starting}

    def keeping(self) -> dict[str, float]:
        """Return the keep-alive policy's current `Windows` as a dict, in seconds."""
        return self._keeper.describe()

    def all(self) -> list[Environment]:
        """Return all environments that are ready, idle and busy."""
        return [*self._idle, *self._busy]

    async def acquire(self, invocation: Invocation) -> Lease:
        """Lease an environment for `invocation`: an idle one, or the first one that starts or becomes idle.

        Raises:
            InitError: the function's init phase failed.
            PoolRetiredError: the pool is retired; lease from the pool that replaced it.
            ServiceException: no process can be started (500).
            TooManyRequestsException: too many requests wait, or the deadline passed (429).
        """
        self._keeper.asked(time.monotonic())
        if self.version.function.concurrency > 1 and (lease := self._join(invocation)) is not None:
            return lease
        is_served = self._idle and not self._line and self._cores.passes(self.share)
        if is_served and (environment := self._take_idle()) is not None:
            return self._lease(environment, None, alone=invocation.alone)
        if self.retired:
            raise PoolRetiredError
        if not (self._has_idle() or self._busy):
            self.failures.check()
        self.failures.asked()
        if len(self._line) >= self._max_waiting:
            raise throttled("the queue of waiting requests is full")
        waiter = self._line.add(invocation)
        self._cores.queue(self, self.share)
        try:
            return await waiter.lease
        except BaseException:
            waiter.give_back(self.release)
            raise
        finally:
            if self._line.remove(waiter):
                self._check_at_rest()

    def expire(self, waiter: Waiter) -> None:
        """Throttle a waiting request because its deadline has passed, unless an environment is starting.

        A request that waits for a core gets the function's timeout as additional time: the cores make it slower.
        """
        last_s = waiter.invocation.queue_deadline + self.version.function.timeout_s
        goes_on = self._starting or self.version.debugged  # a debugger holds its function's time limits
        if not goes_on and not (self._cores.holds(self) and time.monotonic() < last_s):
            waiter.fail(throttled("no execution environment became free in time"))

    def release(self, lease: Lease) -> None:
        """End a lease. The first waiting request gets the environment."""
        environment = lease.environment
        if environment not in self._busy:
            return  # the environment died during the lease
        self._failures_of(environment).used()
        if self._busy.release(lease):
            self._let_join(environment)
            return
        self._cores.ended(environment)
        if self.retired or environment.dying or (not environment.provisioned and self._room.must_yield(self)):
            self._end(environment)
        else:
            self._available(environment, init_ms=None)
        self._check_at_rest()

    def grow(self) -> None:
        """Start the missing provisioned environments while there is room, and queue the requests in line for cores."""
        if self.retired:
            return
        while self._wants_provisioned() and self._room.reserve(self):
            self._spawn_task(self._begin_start(provisioned=True))
        if self.wants_core() and not self.failures.backs_off():
            self._cores.queue(self, self.share)

    def wants_core(self) -> bool:
        """Return whether a request in line could begin in an environment, or needs a new one (see `Candidate`)."""
        if not self._line:
            return False
        if self._has_idle() or self._can_join():
            return True
        return self._lacks_starts() and not self.retired and not self.failures.backs_off()

    def _has_idle(self) -> bool:
        """Return whether `_take_idle` may find an environment."""
        return bool(self._idle)

    def _can_join(self) -> bool:
        """Return whether the next request could join others in a busy environment."""
        return not self.retired and self._busy.with_free_place() is not None and not self._line.is_next_alone()

    def _lacks_starts(self) -> bool:
        """Return whether the requests in line need more environments than are starting."""
        wanted = self._line.environments_wanted(is_served=bool(self._busy or self._starting))
        return self._starting < wanted

    def let_in(self) -> bool:
        """Lease an environment to the first request in line, or start one for it (see `Candidate`)."""
        if self._can_join():
            environment = self._busy.with_free_place()
            return environment is not None and self._busy.fill(environment, self._line, None)
        if (environment := self._take_idle()) is not None:
            if self._give(environment, None):
                return True
            self._keep_idle(environment)
        elif self._lacks_starts():
            spare = self._take_spare()
            if spare is not None or self._room.reserve(self):
                self._spawn_task(self._begin_start(provisioned=False, spare=spare))
                return True
        return False

    async def provision(self) -> None:
        """Start the missing provisioned environments and wait until each is ready or has failed."""
        starts = []
        while self._missing_provisioned() > 0 and self._room.reserve(self):
            starts.append(self._begin_start(provisioned=True))
        await asyncio.gather(*starts)

    def set_provisioned(self, count: int | None) -> None:
        """From now on, keep `count` environments initialised; None: as many as the function declares."""
        self.provisioned = self.version.function.provisioned_concurrency if count is None else count
        too_many = self.provisioned_ready() - self.provisioned
        for environment in [e for e in self.all() if e.provisioned][: max(0, too_many)]:
            environment.provisioned = False
            self._timer.set()
        self.grow()

    def provisioned_ready(self) -> int:
        """Return how many provisioned environments are ready."""
        return sum(environment.provisioned for environment in self.all())

    def wants_room(self) -> bool:
        """Return whether the pool would start an environment if it got room (`Occupant.wants_room`)."""
        if self.retired:
            return False
        return self._wants_provisioned() or (not self._idle and self._lacks_starts() and not self.failures.backs_off())

    def is_urgent(self) -> bool:
        """Return whether a synchronous request waits (`Occupant.is_urgent`)."""
        return self._line.is_urgent()

    def retire(self) -> None:
        """Retire the pool: end idle environments now and busy ones when they become idle, and start no more."""
        self.retired = True
        self._cores.leave(self)
        self._room.spares.drop(self)
        self._timer.cancel()
        for environment in list(self._idle):
            self._end(environment)
        self._line.fail(PoolRetiredError)
        self._set_if_empty()

    def _wants_provisioned(self) -> bool:
        """Return whether a provisioned environment is missing and may be started now."""
        return self._missing_provisioned() > 0 and not self.provisioned_failures.backs_off()

    def _missing_provisioned(self) -> int:
        return self.provisioned - self.provisioned_ready() - self._starting_provisioned

    def _begin_start(self, *, provisioned: bool, spare: Environment | None = None) -> Coroutine[None, None, None]:
        """Count a start, for which room is already reserved. The returned coroutine performs it."""
        self._starting += 1
        self._starting_provisioned += provisioned
        self._cores.start_began(self.share, self.version)
        self.empty.clear()
        return self._start(provisioned=provisioned, spare=spare)

    async def _start(self, *, provisioned: bool, spare: Environment | None) -> None:
        """Start one environment, or make one from `spare`. A failure is not raised; `_failed` handles it."""
        environment: Environment | None = None
        failure: InitError | ServiceException | None = None
        try:
            if not self.retired:
                environment = await self._room.start(self.version, provisioned=provisioned, spare=spare)
            elif spare is not None:
                spare.kill()
        except (InitError, ServiceException) as error:
            failure = error
        except Exception as error:  # a bug in thawd must not end the server: only the waiting requests fail
            failure = ServiceException(f"an execution environment could not be started: {error!r}")
        finally:
            self._starting -= 1
            self._starting_provisioned -= provisioned
            self._cores.start_ended(self.version, environment)
            if environment is None:
                self._room.release(self)
                self._check_at_rest()
                self._set_if_empty()
        if failure is not None:
            self._failed(failure, provisioned=provisioned)
        if environment is not None:
            self._started(environment, provisioned=provisioned)

    def _started(self, environment: Environment, *, provisioned: bool) -> None:
        environment.provisioned = provisioned
        environment.on_end = self._on_end
        self._busy.add(environment)
        if environment.ended.is_set():  # the environment died immediately after it became ready
            self._on_end(environment)
        elif self.retired:
            self._end(environment)
        elif not environment.dying:  # else its process ends soon, and `_on_end` counts a death before the first use
            self._busy.discard(environment)
            self._failures_of(environment).succeeded()
            if self.on_started is not None:
                self.on_started()
            self._available(environment, init_ms=None if provisioned else environment.init_ms)
            self._check_at_rest()

    def _failures_of(self, environment: Environment) -> StartFailures:
        return self.provisioned_failures if environment.provisioned else self.failures

    def _failed(self, error: InitError | ServiceException, *, provisioned: bool = False) -> None:
        """Record a failed start. Fail the waiting requests if nothing else can serve them."""
        if provisioned:
            self.provisioned_failures.failed(error, is_repeated=True)
            self.grow()  # requests that waited for this start get one of their own
            return
        is_served = bool(self._starting or self._busy)
        self.failures.failed(error, is_repeated=is_served and bool(self._line))
        if not is_served:
            self._line.fail(lambda: copy_of(error))

    def _available(self, environment: Environment, *, init_ms: float | None) -> None:
        """Lease a free environment to the first waiting request. If none waits, keep the environment idle.

        If a request waited for this start, the lease begins immediately. Otherwise it begins when `Cores` lets it.

        Args:
            environment: the environment.
            init_ms: duration of the start for which a request waits, milliseconds; None: no request waited for it.
        """
        if init_ms is not None and self._give(environment, init_ms):
            return
        self._keep_idle(environment)
        if self._line:
            self._cores.queue(self, self.share)
        elif not environment.provisioned and self._room.should_yield(self):
            self._end(environment)
        if environment in self._idle and not environment.provisioned and not self._timer.is_set:
            self._timer.set()  # a timer that was set before fires early enough: this environment is the last to end

    def _take_idle(self) -> Environment | None:
        """Remove the most recently used idle environment from the idle ones and return it; end those that are dying."""
        while self._idle:
            environment = self._idle.pop()
            if not environment.dying:
                return environment
            self._end(environment)
        return None

    def _keep_idle(self, environment: Environment) -> None:
        environment.idle_since = time.monotonic()
        self._idle.append(environment)

    def _give(self, environment: Environment, init_ms: float | None) -> bool:
        """Lease the environment to the first waiting request, or to a batch. Return False if no request waits."""
        waiters = self._line.take()
        if not waiters:
            return False
        lease = self._lease(environment, init_ms, alone=waiters[0].invocation.alone)
        if len(waiters) > 1:
            lease.batch = BatchRun(environment, [waiter.invocation for waiter in waiters])
        if lease.batch is None and self.version.function.concurrency == 1:
            waiters[0].lease.set_result(lease)  # the last step: the invocation may begin within this call
            return True
        for waiter in waiters:
            waiter.lease.set_result_soon(lease)
        self._busy.fill(environment, self._line, init_ms)
        if lease.batch is not None:
            # This task runs after the callers' tasks: a caller that was cancelled has removed its item by then.
            self._spawn_task(lease.batch.run(self._room, init_ms=init_ms, on_end=lambda: self.release(lease)))
        return True

    def _lease(self, environment: Environment, init_ms: float | None, *, alone: bool) -> Lease:
        self._cores.began(self.share, environment)
        return self._busy.lease(environment, init_ms, alone=alone)

    def _join(self, invocation: Invocation) -> Lease | None:
        """Lease the request a place in a busy environment. Return None if there is none, or others come first.

        If that environment computes without a pause, the request gets an idle one instead. If there is none, another is
        started for later requests, as long as the cores can carry it.
        """
        if self._line or self.retired or invocation.alone or not self._cores.is_alone(self):
            return None
        if (environment := self._busy.with_free_place()) is None:
            return None
        if self._cores.is_saturated(environment):
            if self._idle:
                return None
            if not self._starting and self._cores.carries_start() and self._room.reserve(self):
                self._spawn_task(self._begin_start(provisioned=False))
        return self._busy.lease(environment, None)

    def _let_join(self, environment: Environment) -> None:
        """Let waiting requests join those that still run in `environment`.

        If it has to end, or if another function waits for a core, none joins, so that the environment becomes idle.
        """
        if self.retired or environment.dying:
            return
        if not environment.provisioned and self._room.must_yield(self):
            environment.dying = True
        elif self._line and self._cores.is_alone(self):
            self._busy.fill(environment, self._line, None)

    def _end(self, environment: Environment, *, after_turns: int = 0) -> None:
        """End an environment. Its room is released immediately, before the kernel has ended the process.

        Args:
            environment: the environment.
            after_turns: turns of the event loop before the kill, so that the environment that gets the room is spawned
                first. Otherwise its start would wait, for about as long as a thaw takes, until the kernel has freed the
                memory of the ended environment.
        """
        if environment in self._idle:
            self._idle.remove(environment)
        self._busy.discard(environment)
        self._cores.ended(environment)
        self._dying[environment] = None
        environment.dying = True
        kill_after(environment, after_turns)
        self._room.release(self)

    def end_idle(self, environment: Environment) -> None:
        """End an idle environment (`Idle.end_idle`)."""
        self._end(environment)

    def _on_end(self, environment: Environment) -> None:
        """Remove an environment that has died, whether or not this pool killed it."""
        if environment in self._dying:
            self._dying.pop(environment, None)
        else:
            if environment in self._idle:
                self._idle.remove(environment)
            self._busy.discard(environment)
            self._cores.ended(environment)
            self._room.release(self)
            if environment.served == 0 and not self.retired:
                error = InitError.of_exit(environment.child)
                if self._failures_of(environment).died_unused(error):
                    self._failed(InitError(str(error), error.document), provisioned=environment.provisioned)
            self._check_at_rest()
        self.grow()
        self._set_if_empty()

    def _set_if_empty(self) -> None:
        if not (self._idle or self._busy or self._dying or self._starting or self._room.spares.concern(self)):
            self.empty.set()

    def _check_at_rest(self) -> None:
        """If the version has become idle, report that to its keep-alive policy, and ask for a spare."""
        if not (self._busy or self._starting or self._line or self.retired):
            self._keeper.at_rest(time.monotonic())
            if not (self._timer.is_set and self._keeper.is_fixed):  # fixed: the timer's time is early enough
                self._timer.set()
            self._want_spare()

    def idle_longest_first(self) -> list[Environment]:
        """Return the idle environments without the provisioned ones, longest idle first (`Idle.idle_longest_first`)."""
        return [each for each in self._idle if not each.provisioned]

    def prewarm(self) -> None:
        """Start an environment for the expected request, if the pool has none, does not back off, and gets room."""
        if not (self.all() or self._starting or self.failures.backs_off()) and self._room.reserve(self):
            self._spawn_task(self._begin_start(provisioned=False))
