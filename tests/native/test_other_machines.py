"""A process that was frozen on one machine is thawed on another, or after a restart.

The other machine is simulated. Another CPU is one with more or fewer features in the image's header. Another start of
the machine is a time namespace in which the clocks are ahead. Another kernel is another name in the image's header,
together with a library in place of the kernel's vDSO.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.engine import SOURCES, Case, Engine, Trial, cases_of, compile_c, give, require
from tests.native.processes import NOBODY, SELF, Identity, end_of
from thawd.snapshot.store.binding import bind

BOOT = cases_of("other_boot")
CASES = {case.name: case for case in cases_of("other_boot", "generations", "waits", "processes", "signals")}
AHEAD = Identity(options=("--clocks-ahead",))
NOBODY_AHEAD = Identity(user="nobody", options=(*NOBODY.options, *AHEAD.options))
NO_NAMESPACE = Identity(options=("--no-time-namespace",))
OTHER_BOOT = ("host.boot_id", "00000000-0000-4000-8000-000000000000")
REFUSED = 120
READ_CLOCKS = ("ages", "deadline", "inside_vdso", "clocks", "condition_wait", "sleep_loop")


@pytest.fixture(scope="module")
def forge(engine: Engine) -> Callable[..., None]:
    """Function that sets a field of an image's header to a text."""
    program = engine.folder / "forge_image_text"
    compile_c([SOURCES / "forge_image.c"], program)

    def set_field(image: Path, field: str, *text: str) -> None:
        subprocess.run([program, image, field, *text], check=True)

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


@pytest.mark.parametrize("rights", [(), ("--rights", "none"), ("--rights", "namespace")], ids=" ".join)
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("name", ["same_rights", "descendants", "forked_disk"])
def test_clocks_go_on_in_an_environment_with_its_own_temporary_folder(
    name: str, user: str, rights: tuple[str, ...], ahead: Callable[..., Trial]
) -> None:
    if name == "forked_disk" and rights == ("--rights", "none"):
        rights = ()  # thawd's templates have not dropped their capabilities; their forks drop them after mounting
    before, after = (AHEAD, SELF) if user == "root" else (NOBODY_AHEAD, NOBODY)
    one = ahead(CASES[name], before=before, after=after)
    own = one.folder / "own"
    own.mkdir(mode=0o700)
    give(own, after)
    options = ["--environment", "--disk-at", str(own), "--disk-own", str(own), *rights]
    outcome = one.thaw(thaw_options=options)
    if outcome.status == REFUSED and "mount namespace" in outcome.errors:
        pytest.skip(outcome.errors)
    require(one.case, outcome)


@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("name", ["same_rights", "deadline"])
def test_clocks_go_on_in_an_environment_with_its_own_root(name: str, user: str, ahead: Callable[..., Trial]) -> None:
    before, after = (AHEAD, SELF) if user == "root" else (NOBODY_AHEAD, NOBODY)
    one = ahead(CASES[name], before=before, after=after)
    root = one.folder / "root"
    root.mkdir()
    give(root, after)
    options = ["--root", str(root), "--root-share", f"{one.engine.folder}={one.engine.folder}"]
    for folder in ("/usr", "/lib", "/lib64", "/bin"):
        options += ["--root-bind", f"{Path(folder).resolve()}={folder}"] if Path(folder).exists() else []
    made = one.thaw(thaw_options=[*options, "--root-make", "--try", "disk"])
    if made.status == REFUSED:
        pytest.skip(made.errors)
    assert made.status == 0, made
    require(one.case, one.thaw(thaw_options=["--environment", "--rights", "none", *options]))


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


@pytest.mark.parametrize("is_restarted", [True, False])
def test_memory_of_an_earlier_image_is_recognised_after_devices_got_other_numbers(
    is_restarted: bool, trial: Callable[..., Trial], forge: Callable[..., None]
) -> None:
    one = trial(CASES["again"])
    assert one.freeze() is None
    second, third = one.folder / "second", one.folder / "third"
    assert one.await_freeze(one.start_copy(str(second))) is None
    device, inode = _numbers_of(one.image)
    forge(second, "earlier", str(device), str(inode), str(device + 1))
    if is_restarted:
        forge(second, *OTHER_BOOT)
    else:
        forge(second, "device-of", str(inode))
    assert one.await_freeze(one.start_copy(str(third), image=second)) is None
    require(one.case, one.thaw(image=third))


def test_memory_of_an_earlier_image_is_recognised_in_an_image_that_is_bound_to_this_machine(
    trial: Callable[..., Trial],
) -> None:
    """The earlier image is another file at the same path, as on a machine that received both."""
    one = trial(CASES["again"])
    assert one.freeze() is None
    second, third = one.folder / "second", one.folder / "third"
    assert one.await_freeze(one.start_copy(str(second))) is None
    received = one.folder / "received"
    shutil.copyfile(one.image, received)
    received.chmod(0o600)
    received.rename(one.image)
    outcome = one.thaw(image=second)
    assert outcome.status == REFUSED
    assert "a file has changed since the freeze" in outcome.errors
    status = one.image.stat()
    bind(second, {str(one.image): (status.st_mtime_ns, status.st_ino)})
    require(one.case, one.thaw(image=second))
    assert one.await_freeze(one.start_copy(str(third), image=second)) is None
    require(one.case, one.thaw(image=third))


def _numbers_of(image: Path) -> tuple[int, int]:
    """Return a file's device and inode as they are in `/proc/self/maps`."""
    with open(image, "rb") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_READ):
        lines = Path("/proc/self/maps").read_text().splitlines()
    fields = next(line.split() for line in lines if line.endswith(f" {image}"))
    major, minor = (int(number, 16) for number in fields[3].split(":"))
    return major << 32 | minor, int(fields[4])


def test_the_time_of_times_goes_on_after_a_restart(trial: Callable[..., Trial], forge: Callable[..., None]) -> None:
    one = trial(CASES["ticks"])
    assert one.freeze() is None
    later = str(int(os.times().elapsed * os.sysconf("SC_CLK_TCK")) + 1_000_000)
    forge(one.image, "ticks", later)
    require(one.case, one.thaw(later))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose groups")
def test_a_copy_in_a_time_namespace_is_in_no_group_that_the_frozen_process_was_not_in(
    trial: Callable[..., Trial],
) -> None:
    frozen, more = (Identity(options=(f"--user=65534:65534{group}",)) for group in ("", ":4"))
    one = trial(CASES["ages"])
    one.folder.chmod(0o777)
    one.identity = Identity(options=(*AHEAD.options, *frozen.options))
    assert one.freeze() is None
    one.identity = frozen
    require(one.case, one.thaw())
    one.identity = more
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert "the frozen process was in other groups" in outcome.errors


def test_a_handler_that_has_interrupted_the_vdso_needs_the_same_vdso(trial: Callable[..., Trial]) -> None:
    one = trial(CASES["handler_inside_vdso"])
    assert one.freeze() is None
    require(one.case, one.thaw())
    outcome = one.thaw(thaw_options=["--vdso-jump"])
    assert outcome.status == REFUSED
    assert "a thread was frozen inside the vDSO" in outcome.errors


def test_a_thread_inside_the_vdso_is_not_frozen_in_a_time_namespace(trial: Callable[..., Trial]) -> None:
    outcome = trial(CASES["handler_inside_vdso"], identity=AHEAD).freeze()
    assert outcome is not None
    assert "a thread was stopped inside the vDSO, in a time namespace" in outcome.output


def test_a_thread_that_was_frozen_inside_the_vdso_needs_the_same_clocks(
    ahead: Callable[..., Trial], forge: Callable[..., None]
) -> None:
    one = ahead(CASES["condition_wait"])
    forge(one.image, "flags", "\x02")  # IMAGE_INSIDE_VDSO
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert "a thread was frozen inside the vDSO" in outcome.errors


def test_where_user_namespaces_are_disabled_the_refusal_names_their_limit(ahead: Callable[..., Trial]) -> None:
    outcome = ahead(CASES["ages"], after=Identity(options=("--no-user-namespace",))).thaw()
    assert outcome.status == REFUSED
    assert "user.max_user_namespaces" in outcome.errors


def test_where_no_time_namespace_can_be_made_the_image_is_refused(ahead: Callable[..., Trial]) -> None:
    one = ahead(CASES["condition_wait"], after=NO_NAMESPACE)
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert "behind their values at the freeze" in outcome.errors
    assert "allow user namespaces" in outcome.errors
    require(one.case, one.thaw(thaw_options=["--clocks-back"]))


def test_clocks_that_may_go_back_go_on_where_a_time_namespace_can_be_made(ahead: Callable[..., Trial]) -> None:
    one = ahead(CASES["ages"])
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
    forge(one.image, *OTHER_BOOT)
    require(one.case, one.thaw(thaw_options=["--vdso", str(other_vdso)]))
    second = one.folder / "second"
    assert one.await_freeze(one.start_copy(str(second), thaw_options=["--vdso-jump"])) is None
    require(one.case, one.thaw(image=second))
    require(one.case, one.thaw(image=second, thaw_options=["--vdso", str(other_vdso)]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide the file")
def test_where_the_start_of_the_machine_is_hidden_the_machine_is_examined(
    trial: Callable[..., Trial], forge: Callable[..., None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, "host.boot_id", "")
    hide = 'mount --bind /dev/null /proc/sys/kernel/random/boot_id || exit 77; exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", hide, "sh", one.engine.thaw, one.image]
    require(one.case, end_of(one.keeper.start(hidden, stdin=subprocess.PIPE)))
    forge(one.image, "host.kernel_release", "99.1.0")
    outcome = end_of(one.keeper.start(hidden, stdin=subprocess.PIPE))
    assert outcome.status == REFUSED
    assert "newer kernel" in outcome.errors


def test_an_image_of_a_newer_kernel_is_refused(
    trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, *OTHER_BOOT)
    forge(one.image, "host.kernel_release", "99.1.0")
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert "newer kernel" in outcome.errors


def test_a_thread_that_was_frozen_inside_the_vdso_needs_the_same_vdso(
    trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, "flags", "\x02")  # IMAGE_INSIDE_VDSO
    require(one.case, one.thaw())
    outcome = one.thaw(thaw_options=["--vdso-jump"])
    assert outcome.status == REFUSED
    assert "a thread was frozen inside the vDSO" in outcome.errors


def test_a_cpu_with_more_features_of_another_model_thaws_the_image(
    trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, *OTHER_BOOT)
    forge(one.image, "host.cpu_vendor", "OtherVendor")
    forge(one.image, "host.cpu_signature", "+9")
    forge(one.image, "host.xsave_bytes", "-9")
    for bit in (9, 12, 28, *range(64, 96), 32 * 4 + 8, 32 * 7 + 6):  # SSSE3, FMA, AVX, AVX2 and more, …
        forge(one.image, "host.cpu_features", f"-{bit}")
    forge(one.image, "host.cpu_features", "+6")  # SMX, which only the kernel can use
    require(one.case, one.thaw())


@pytest.mark.parametrize(
    ("bit", "named"),
    [(10 + 32, "CPUID 1 EDX bit 10"), (31 + 9 * 32, "CPUID 13.1 EAX bit 31"), (30 + 12 * 32, "CPUID 30.1 EAX bit 30")],
)
def test_a_cpu_that_lacks_a_feature_of_the_freeze_is_refused(
    bit: int, named: str, trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    """The bits are reserved, so no CPU of these tests has them."""
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, *OTHER_BOOT)
    forge(one.image, "host.cpu_features", f"+{bit}")
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert f"a feature that this one lacks: {named}\n" in outcome.errors


@pytest.mark.parametrize(
    ("field", "bit", "named"), [("host.xcr0", 62, "XCR0 bit 62"), ("host.xsave_places", 31, "XCR0 bit 2")]
)
def test_registers_that_the_kernel_does_not_save_there_are_refused(
    field: str, bit: int, named: str, trial: Callable[..., Trial], forge: Callable[[Path, str, str], None]
) -> None:
    one = trial(CASES["condition_wait"])
    assert one.freeze() is None
    forge(one.image, *OTHER_BOOT)
    forge(one.image, field, f"+{bit}")
    outcome = one.thaw()
    assert outcome.status == REFUSED
    assert named in outcome.errors
