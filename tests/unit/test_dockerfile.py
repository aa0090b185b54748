"""Dockerfiles are read and planned as Docker does, and what is outside of the subset is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from thawd.deploy.images.dockerfile.ignoring import Ignored, read_ignored
from thawd.deploy.images.dockerfile.parsing import Dockerfile, parse
from thawd.deploy.images.dockerfile.planning import Plan, plan
from thawd.deploy.images.dockerfile.substitution import SubstitutionError, pairs, split_words, substitute
from thawd.errors import ImageError

FILE = Path("Dockerfile")
PLATFORM = {"TARGETARCH": "amd64", "BUILDPLATFORM": "linux/amd64"}


def parsed(text: str) -> Dockerfile:
    return parse(text, FILE)


def planned(text: str, target: str | None = None, **build_args: str) -> Plan:
    return plan(parsed(text), target=target, build_args=build_args, platform_args=PLATFORM)


def test_lines_continue_over_comments_and_empty_lines() -> None:
    file = parsed("# syntax=docker/dockerfile:1\nFROM a\nRUN one && \\\n  # why\n\n  two \\\n  three\n\nrun four\n")
    assert [(each.keyword, each.rest, each.line) for each in file.instructions] == [
        ("FROM", "a", 2), ("RUN", "one &&   two   three", 3), ("RUN", "four", 9),
    ]  # fmt: skip


def test_the_escape_directive_changes_what_continues_a_line() -> None:
    file = parsed("# escape=`\nFROM a\nRUN dir C:\\ `\n  b\n")
    assert file.instructions[1].rest == "dir C:\\   b"
    assert file.escape == "`"
    assert parsed("FROM a\n# escape=`\nRUN b\n").escape == "\\"


def test_json_and_shell_forms_are_told_apart() -> None:
    file = parsed('FROM a\nCMD ["a b", "c"]\nCMD [not json]\nCMD ["a", 1]\nENTRYPOINT []\nCMD []\n')
    assert [each.words for each in file.instructions[1:]] == [("a b", "c"), None, None, (), ()]


def test_heredocs_belong_to_their_instruction() -> None:
    file = parsed(
        "FROM a\nRUN <<EOF\none\ntwo\nEOF\nCOPY <<-'A' <<B /x/\n\ta $V\n\tA\nb\nB\nRUN cat <<<word && echo $((1<<2))\n"
    )
    run, copy, last = file.instructions[1:]
    assert (run.heredocs[0].content, run.rest) == ("one\ntwo\n", "<<EOF\none\ntwo\nEOF")
    assert [(each.name, each.content, each.expands) for each in copy.heredocs] == [
        ("A", "a $V\n", False),
        ("B", "b\n", True),
    ]
    assert last.heredocs == ()
    with pytest.raises(ImageError, match="line 2: the text <<EOF has no end"):
        parsed("FROM a\nRUN <<EOF\none\n")


def test_flags_are_parted_from_the_rest() -> None:
    [_, copy] = parsed("FROM a\nCOPY --from=b --chown=1:2 --link c d\n").instructions
    assert copy.flags == (("from", "b"), ("chown", "1:2"), ("link", "true"))
    assert copy.rest == "c d"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A/${A}x", "1/1x"), ("${B:-two}", "two"), ("${B-two}", "two"), ("${E:-two}", "two"), ("${E-two}", ""),
        ("${A:+yes}", "yes"), ("${B:+yes}", ""), ("${B:-${A}$A}", "11"), ("'$A'", "$A"), ('"$A b"', "1 b"),
        ("\\$A", "$A"), ("a\\ b", "a b"), ('"a\\b"', "a\\b"), ("$", "$"), ("$1", "$1"), ("$UNSET", ""), ("a}b", "a}b"),
        ("${A:?no}", "1"), ('"a\'b"', "a'b"),
    ],
)  # fmt: skip
def test_variables_are_substituted_as_docker_documents(word: str, value: str) -> None:
    assert substitute(word, {"A": "1", "E": ""}) == value


@pytest.mark.parametrize("word", ["${A", "${A:-b", "${}", "'a", '"a', "${B:?needed}", "${A#x}", "${A/x/y}"])
def test_a_word_that_cannot_be_evaluated_says_why(word: str) -> None:
    with pytest.raises(SubstitutionError):
        substitute(word, {"A": "1"})


def test_env_and_label_have_two_forms() -> None:
    assert list(pairs('A=1 B="2 3" C=4\\ 5')) == [("A", "1"), ("B", '"2 3"'), ("C", "4\\ 5")]
    assert list(pairs("PATH /a b")) == [("PATH", "/a b")]
    assert split_words(" a  'b c'd ") == ["a", "'b c'd"]
    with pytest.raises(SubstitutionError, match="NAME=VALUE"):
        list(pairs("A=1 B"))


def test_a_plan_has_only_the_stages_that_the_target_needs() -> None:
    text = (
        "ARG V=1\nFROM base:$V AS one\nFROM other AS unused\nFROM one AS two\nCOPY --from=one a b\n"
        "FROM scratch\nCOPY --from=two x y\n"
    )
    whole = planned(text)
    assert [(stage.index, stage.base) for stage in whole.stages] == [(0, "base:1"), (2, 0), (3, "scratch")]
    assert [stage.index for stage in planned(text, "two").stages] == [0, 2]
    assert [stage.index for stage in planned(text, "UNUSED").stages] == [1]
    assert planned(text, "0", V="7").stages[0].base == "base:7"
    with pytest.raises(ImageError, match="no stage 'three'; its stages: one, unused, two"):
        planned(text, "three")


def test_a_platform_is_substituted() -> None:
    assert planned("FROM --platform=$BUILDPLATFORM a").stages[0].platform == "linux/amd64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no instruction"),
        ("RUN a\n", "line 1: RUN before the first FROM"),
        ("ARG a\n", "no FROM"),
        ("FROM a\nONBUILD RUN b\n", "line 2: ONBUILD is not supported: build the image with Docker, buildah"),
        ("FROM a\nRUNN b\n", "line 2: RUNN is not an instruction"),
        ("FROM a\n\nRUN --mount=type=secret,id=a b\n", "line 3: RUN --mount=type=secret,id=a is not supported"),
        ("FROM a\nRUN --network=none b\n", "network=none is not supported"),
        ("FROM a\nCOPY --exclude=b c d\n", "exclude=b is not supported"),
        ("FROM a\nCOPY --wrong=b c d\n", "has no flag --wrong"),
        ("FROM a b\n", "form FROM IMAGE"),
        ("FROM a AS 1\n", "not the name of a stage"),
        ("FROM ${A\n", "line 1: .*without its }"),
        ("FROM a\nRUN\n", "line 2: RUN has nothing after it"),
        ("# escape=x\nFROM a\n", "line 1: escape"),
        ("FROM a\nARG 1=2\n", None),
        ("{}\n", "not an instruction"),
        ("FROM a\nCOPY b /c\0d\n", "bytes of zero"),
        ('FROM a\nRUN ["b\\u0000c"]\n', "line 2: RUN has a character in its JSON form that no argument can have"),
        ('FROM a\nCMD ["\\ud800"]\n', "line 2: CMD has a character in its JSON form"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named_with_its_line(text: str, message: str | None) -> None:
    if message is None:
        planned(text)  # ARGs of a stage are evaluated when it is built
        return
    with pytest.raises(ImageError, match=message):
        planned(text)


@pytest.mark.parametrize(
    ("patterns", "ignored", "kept"),
    [
        (["*.pyc", "tmp"], ["a.pyc", "tmp", "tmp/x"], ["a/b.pyc", "tmp2", "x/tmp"]),
        (["**/*.pyc", "**/cache"], ["a.pyc", "a/b/c.pyc", "cache/x", "a/cache"], ["a.py"]),
        (["a/**", "!a/keep"], ["a/x", "a/b/c"], ["a/keep", "a/keep/x", "b"]),
        (["/a/", "./b", "# no", "", "c?[0-9]"], ["a/x", "b", "cx1"], ["d", "c1", "cxa"]),
        (["*", "!src"], ["x", "y/z"], ["src", "src/a"]),
        ([".git"], [".git/config"], [".github"]),
    ],
)
def test_dockerignore_decides_by_the_last_pattern_that_matches(
    patterns: list[str], ignored: list[str], kept: list[str]
) -> None:
    rules = Ignored(patterns)
    assert [path for path in ignored if not rules(path)] == []
    assert [path for path in kept if rules(path)] == []


def test_the_dockerignore_of_the_dockerfile_has_precedence_and_the_data_folder_stays_out(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("a\n!.thawd\n")
    rules = read_ignored(tmp_path / "Dockerfile", tmp_path, always=[tmp_path / ".thawd/oci", tmp_path.parent])
    assert rules("a") and not rules("b") and rules(".thawd/oci/blobs")
    (tmp_path / "Dockerfile.dockerignore").write_text("b\n")
    rules = read_ignored(tmp_path / "Dockerfile", tmp_path)
    assert rules("b") and not rules("a")
    with pytest.raises(ImageError, match="without its"):
        Ignored(["a[b"])
