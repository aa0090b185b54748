"""A process that was frozen on one machine is thawed on another, or after a restart.

The other machine is simulated. Another start of the machine is a time namespace in which the clocks are ahead. Another
kernel is another name in the image's header, together with a library in place of the kernel's vDSO.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import SOURCES, Case, Engine, Trial, cases_of, compile_c, require
from tests.native.processes import NOBODY, SELF, Identity, end_of

BOOT = cases_of("other_boot")
CASES = {case.name: case for case in cases_of("other_boot", "generations", "waits", "processes")}
AHEAD = Identity(options=("--clocks-ahead",))
NOBODY_AHEAD = Identity(user="nobody", options=(*NOBODY.options, *AHEAD.options))
NO_NAMESPACE = Identity(options=("--no-time-namespace",))
READ_CLOCKS = ("ages", "deadline", "inside_vdso", "clocks", "condition_wait", "sleep_loop")


@pytest.fixture(scope="module")
def forge(engine: Engine) -> Callable[[Path, str, str], None]:
    """Function that sets a field of an image's header to a text."""
    program = engine.folder / "forge_image_text"
    compile_c([SOURCES / "forge_image.c"], program)

    def set_field(image: Path, field: str, text: str) -> None:
        subprocess.run([program, image, field, text], check=True)

    return set_field


@pytest.fixture(scope="module")
def other_vdso(engine: Engine) -> Path:
    """A library that stands for the vDSO of another kernel."""
    library = engine.folder / "other_vdso.so"
    compile_c([SOURCES / "other_vdso.c"], library, "-shared", "-fPIC", "-nostdlib", "-Wl,-z,noseparate-code")
    return library


@pytest.fixture
def ahead(trial: Callable[..., Trial]) -> Callable[..., Trial]:
    """Function that freezes a case on a machine that was started earlier."""

    def freeze(case: Case, *, before: Identity = AHEAD, after: Identity = SELF) -> Trial:
        probe = trial(case, identity=before)
        if end_of(probe.keeper.start(["true"], identity=before)).status != 0:
            pytest.skip("this kernel lets this user have no time namespace")
        assert probe.freeze() is None
        probe.identity = after
        return probe

    return freeze


@pytest.mark.parametrize("case", [*BOOT, *cases_of("waits", "timers"), CASES["clocks"]], ids=str)
def test_clocks_go_on_after_a_restart(case: Case, ahead: Callable[..., Trial]) -> None:
    for outcome in ahead(case).thaw_many(serial=1, parallel=1):
        require(case, outcome)


@pytest.mark.parametrize("case", BOOT, ids=str)
def test_clocks_go_on_for_a_user_without_privileges(case: Case, ahead: Callable[..., Trial]) -> None:
    require(case, ahead(case, before=NOBODY_AHEAD, after=NOBODY).thaw())


def test_a_copy_stays_the_process_that_was_started(ahead: Callable[..., Trial]) -> None:
    one = ahead(CASES["ages"])
    copy = one.start_copy(thaw_options=["--die-at", "check"])
    assert end_of(copy).status == -9, "killed in the time namespace, and not a parent of that process"


def test_copies_of_copies_keep_the_clocks_of_the_first_freeze(ahead: Callable[..., Trial]) -> None:
    one = ahead(CASES["again"])
    images = [one.image]
    for generation in range(1, 4):
        following = one.folder / f"image{generation}"
        assert one.await_freeze(one.start_copy(str(following), image=images[-1])) is None
        require(one.case, one.thaw(image=following))
        images.append(following)


def test_where_no_time_namespace_can_be_made_the_image_is_refused(ahead: Callable[..., Trial]) -> None:
    one = ahead(CASES["condition_wait"], after=NO_NAMESPACE)
    outcome = one.thaw()
    assert outcome.status == 120
    assert "behind their values at the freeze" in outcome.errors
    assert "allow user namespaces" in outcome.errors
    require(one.case, one.thaw(thaw_options=["--clocks-back"]))


def test_an_image_needs_no_time_namespace_if_no_clock_is_behind(trial: Callable[..., Trial]) -> None:
    one = trial(CASES["ages"])
    assert one.freeze() is None
    one.identity = NO_NAMESPACE
    require(one.case, one.thaw())


@pytest.mark.parametrize("name", READ_CLOCKS)
def test_another_vdso_is_used_function_by_function(name: str, trial: Callable[..., Trial], other_vdso: Path) -> None:
    one = trial(CASES[name])
    assert one.freeze() is None
    require(one.case, one.thaw(thaw_options=["--vdso", str(other_vdso)]))
    require(one.case, one.thaw(thaw_options=["--vdso", "none"]))
    require(one.case, one.thaw(thaw_options=["--vdso-jump"]))


def test_another_kernel_vdso_and_start_of_the_machine_together(
    ahead: Callable[..., Trial], forge: Callable[[Path, str, str], None], other_vdso: Path
) -> None:
    one = ahead(CASES["again"])
    forge(one.image, "host.kernel_release", "5.10.0-other")
    forge(one.image, "host.kernel_version", "#1 SMP another build")
    forge(one.image, "host.boot_id", "00000000-0000-4000-8000-000000000000")
    require(one.case, one.thaw(thaw_options=["--vdso", str(other_vdso)]))
    second = one.folder / "second"
    assert one.await_freeze(one.start_copy(str(second), thaw_options=["--vdso-jump"])) is None
    require(one.case, one.thaw(image=second))
    require(one.case, one.thaw(image=second, thaw_options=["--vdso", str(other_vdso)]))


def test_an_image_of_a_newer_kernel_is_refused(
    trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, "host.kernel_release", "99.1.0")
    outcome = one.thaw()
    assert outcome.status == 120
    assert "newer kernel" in outcome.errors


def test_a_thread_that_was_frozen_inside_the_vdso_needs_the_same_vdso(
    trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, "flags", "\x02")  # IMAGE_INSIDE_VDSO
    require(one.case, one.thaw())
    outcome = one.thaw(thaw_options=["--vdso-jump"])
    assert outcome.status == 120
    assert "a thread was frozen inside the vDSO" in outcome.errors
