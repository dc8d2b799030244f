"""Hostile answers: a valid project is derived, or all problems are told and nothing remains on disk."""

from __future__ import annotations

import ast
import json
import keyword
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from conftest import ROOT, answer
from cookiecutter.exceptions import FailedHookException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HOSTILE_NAMES = [
    "My Net", "  blanks  everywhere ", "3d-net", "class", "torch", "test", "data", "train", "random", "configs",
    "北京 网络", "Größe", "🚀", "-rf", "../evil", "a/b", "/etc/passwd", "x" * 200, "a" * 49 + " b", "it's \"quoted\"",
    "true", "None", "LICENSE", "é", "hydra", "a&b;c", "C:\\net", "__init__", "pytorch lightning",
]  # fmt: skip
HOSTILE_TEXTS = [
    'quotes " and \' and """ and \'\'\'',
    "braces { } {{ }} ${x} ${oc.env:HOME} %s", "back\\slash \\n \\", "two\nlines\n",
    "emoji 😀 and é and 北京", "tab\there", "# not a comment: [x] - *y &z", "</script> & <b>", "$(touch /tmp/x) `id`",
    "ends with a quote\"", "{% raw %} {# no #}", "no\u00a0break",
]  # fmt: skip


@pytest.fixture
def pre_gen(hook):
    return hook("pre_gen_project")


def derived(**answers: str) -> tuple[str, str]:
    """Return the slug and package that follow from the answers."""
    context = answer(**answers)["cookiecutter"]
    return context["project_slug"], context["package_name"]


def refusals(hook, **answers: str) -> list[str]:
    """Return what pre_gen says about the answers."""
    module = hook("pre_gen_project", **answers)
    taken = module.ANSWERS["_taken"]
    return [
        *module.slug_problems(module.ANSWERS["__slug_typed"], taken),
        *module.package_problems(module.ANSWERS["package_name"], taken),
        *module.text_problems(module.ANSWERS),
    ]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_project_name_becomes_a_valid_slug_and_package(name, hook):
    slug, package = derived(project_name=name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert package.isidentifier()
    assert not keyword.iskeyword(package)
    assert package not in sys.stdlib_module_names
    assert not refusals(hook, project_name=name)


@pytest.mark.parametrize(
    ("name", "slug", "package"),
    [
        ("My Net", "my-net", "my_net"),
        ("3d-net", "3d-net", "project_3d_net"),
        ("torch", "torch-project", "torch_project"),
        ("class", "class-project", "class_project"),
        ("../evil", "evil", "evil"),
        ("🚀", "vision-project", "vision_project"),
        ("Größe", "grosse", "grosse"),
    ],
)
def test_derived_names_are_the_ones_a_person_would_choose(name, slug, package):
    assert derived(project_name=name) == (slug, package)


def test_a_typed_slug_still_gives_a_valid_package():
    assert derived(project_slug="class") == ("class", "class_project")
    assert derived(project_slug="3d") == ("3d", "project_3d")


# Angle brackets are the template's own delimiters, which cookiecutter renders in answers given without prompts.
@given(st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=80))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_project_name_gives_names_that_are_accepted(pre_gen, name):
    slug, package = derived(project_name=name)
    taken = pre_gen.ANSWERS["_taken"]
    assert not pre_gen.slug_problems(slug, taken)
    assert not pre_gen.package_problems(package, taken)


@given(st.text(max_size=150) | st.sampled_from(HOSTILE_NAMES))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_proposal_is_itself_accepted(pre_gen, typed):
    taken = pre_gen.ANSWERS["_taken"]
    for problem in pre_gen.slug_problems(typed, taken):
        assert not pre_gen.slug_problems(problem.rsplit("=", 1)[1], taken)
    for problem in pre_gen.package_problems(typed, taken):
        assert not pre_gen.package_problems(problem.rsplit("=", 1)[1], taken)


@pytest.mark.parametrize(
    "slug", ["My Net", "-rf", "../evil", "a/b/c", "{tmp_path}/evil", "a--b", "torch", "x" * 101, "é", "a\nb"]
)
def test_a_typed_slug_that_names_no_folder_is_refused_and_nothing_remains(slug, bake, small_template, tmp_path):
    out = tmp_path / "out"
    before = sorted(tmp_path.parent.iterdir())
    with pytest.raises(FailedHookException):
        bake(small_template, project_slug=slug.format(tmp_path=tmp_path))
    assert not list(out.iterdir())
    assert sorted(tmp_path.parent.iterdir()) == before
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "package",
    [
        "class",
        "torch",
        "random",
        "train",
        "doctor",
        "configs",
        "tests",
        "benchmarks",
        "My_Net",
        "3d",
        "a-b",
        "",
        "_x",
        "é",
    ],
)
def test_a_typed_package_that_cannot_be_imported_is_refused(package, hook):
    (problem,) = refusals(hook, package_name=package)
    assert repr(package) in problem
    assert "Try package_name=" in problem


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x1b", "\x7f", "\x85", "\u2028", "\ufffe"])
@pytest.mark.parametrize("question", ["project_name", "description", "author_name", "author_email"])
def test_control_characters_are_refused(question, character, hook):
    problems = refusals(hook, **{question: f"x{character}y@example.com"})
    assert any(f"{question} holds the character U+{ord(character):04X}" in problem for problem in problems)


@pytest.mark.parametrize("question", ["project_name", "author_email"])
def test_a_newline_is_refused_where_one_line_is_meant(question, hook):
    assert any("U+000A" in problem for problem in refusals(hook, **{question: "a\nb@example.com"}))


@pytest.mark.parametrize("email", ["nobody", "a b@c", "<a@b>", "", "a@"])
def test_an_address_that_is_none_is_refused(email, hook):
    assert any("author_email" in problem for problem in refusals(hook, author_email=email))


def test_all_problems_are_told_at_once(hook, capsys):
    module = hook("pre_gen_project", project_slug="Bad Slug", package_name="class", author_name="", description="\x07")
    assert module.main() == 1
    message = capsys.readouterr().err
    for part in ("'Bad Slug'", "'class'", "author_name is empty", "U+0007", "project_slug=bad-slug"):
        assert part in message


def test_good_answers_are_accepted_in_silence(hook, capsys):
    assert hook("pre_gen_project").main() == 0
    assert capsys.readouterr() == ("", "")


def test_a_refusal_is_readable_where_only_ascii_can_be_printed(hook, tmp_path):
    hook("pre_gen_project", project_slug="Größe")
    done = subprocess.run(
        [sys.executable, tmp_path / "rendered_pre_gen_project.py"],
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"project_slug=groe" in done.stderr


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_text_gives_files_that_parse_to_the_literal_text(text, bake, small_template):
    project = bake(
        small_template, description=text, author_name=text, project_name=text.replace("\n", " ").replace("\t", " ")
    )
    toml = tomllib.loads((project / "answers.toml").read_text(encoding="utf-8"))
    assert toml["description"] == toml["author_name"] == text
    assert yaml.safe_load((project / "answers.yaml").read_text(encoding="utf-8")) == toml
    python = ast.parse((project / "answers.py").read_text(encoding="utf-8"))
    assert {node.targets[0].id: node.value.value for node in python.body} == toml
    assert text in (project / "README.md").read_text(encoding="utf-8")
    assert text in (project / "LICENSE").read_text(encoding="utf-8")


@given(
    st.text(
        st.characters(exclude_characters="<\x85\u2028\u2029\ufffe\uffff", exclude_categories=["Cs", "Cc"])
        | st.sampled_from("\n\t\"'\\"),
        max_size=60,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_allowed_text_survives_quoting(text):
    quoted = answer(description=text)["cookiecutter"]["__description_quoted"]
    assert tomllib.loads(f"x = {quoted}")["x"] == text
    assert yaml.safe_load(f"x: {quoted}")["x"] == text
    assert ast.literal_eval(quoted) == json.loads(quoted) == text


@pytest.mark.parametrize(
    ("licence", "first"),
    [
        ("MIT", "MIT License"),
        ("Apache-2.0", "Apache License"),
        ("BSD-3-Clause", "BSD 3-Clause"),
        ("Proprietary", "Copyright"),
    ],
)
def test_each_licence_is_one_file_with_year_and_author(licence, first, bake, small_template):
    text = (bake(small_template, license=licence, author_name="Zoë & Co") / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith(first)
    assert re.search(r"Copyright .*\b20\d\d,? Zoë & Co\n", text)
    assert "<<" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_every_question_has_a_readable_prompt():
    questions = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))
    prompts = questions["__prompts__"]
    for question, default in questions.items():
        if not question.startswith("_"):
            assert question in prompts
            if isinstance(default, list):
                assert set(prompts[question]) == {"__prompt__", *default}


def test_the_table_of_taken_names_covers_this_python():
    taken = json.loads((ROOT / "cookiecutter.json").read_text(encoding="utf-8"))["_taken"]
    names = " ".join(taken.values()).split()
    public = {name.lower() for name in [*sys.stdlib_module_names, *keyword.kwlist] if not name.startswith("_")}
    assert public <= set(names)
    assert len(names) == len(set(names))
