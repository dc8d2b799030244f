"""Refuses answers that cannot become a project: all of them at once, before any file is written.

Cookiecutter renders this file and runs it inside the new, still empty folder. Standard library only.
"""

from __future__ import annotations

import json
import keyword
import re
import sys
import unicodedata
from typing import Any

ANSWERS: dict[str, Any] = json.loads(r"""<< cookiecutter | tojson >>""")

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
PACKAGE = re.compile(r"[a-z][a-z0-9_]*")
EMAIL = re.compile(r"[^\s@<>]+@[^\s@<>]+")

EXAMPLES = {
    "project_name": "Image Classifier",
    "author_name": "The project's authors",
    "author_email": "authors@example.com",
}


def kebab(text: str) -> str:
    """Turn any text into a valid slug."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall("[a-z0-9]+", ascii_text))[:50].strip("-") or "vision-project"


def why_taken(name: str, taken: dict[str, str]) -> str | None:
    """Say what already bears the name of a package, or None."""
    if keyword.iskeyword(name):
        return "a Python keyword"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    return next((owner for owner, names in taken.items() if name in names.split()), None)


def slug_problems(slug: str, taken: dict[str, str]) -> list[str]:
    dependencies = taken["a dependency"].split()
    proposal = kebab(slug)
    if proposal.replace("-", "_") in dependencies:
        proposal += "-project"
    if not SLUG.fullmatch(slug) or len(slug) > 100:
        rule = "must be lower-case letters, digits and single hyphens, at most 100 characters"
    elif slug.replace("-", "_") in dependencies:
        rule = "is a dependency, and no project can require itself"
    else:
        return []
    return [f"project_slug {slug!r} {rule}. Try project_slug={proposal}"]


def package_problems(package: str, taken: dict[str, str]) -> list[str]:
    proposal = kebab(package).replace("-", "_")
    if proposal[0].isdigit():
        proposal = f"project_{proposal}"
    if why_taken(proposal, taken):
        proposal += "_project"
    owner = why_taken(package, taken)
    if owner:
        rule = f"is {owner}: a package of that name would hide it"
    elif not PACKAGE.fullmatch(package) or len(package) > 100:
        rule = "must be lower-case letters, digits and underscores after a letter, at most 100 characters"
    else:
        return []
    return [f"package_name {package!r} {rule}. Try package_name={proposal}"]


def text_problems(answers: dict[str, Any]) -> list[str]:
    """Find characters that no TOML, YAML or Python text may hold, and answers that must not be empty."""
    problems = []
    for question in ("project_name", "description", "author_name", "author_email"):
        text = str(answers[question])
        allowed = "\n\t" if question in ("description", "author_name") else ""
        # Cc: control, Cs: half a surrogate pair, Zl and Zp: separators that YAML takes for line breaks.
        bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in "\ufffe\uffff"}
        for character in sorted(bad - set(allowed)):
            problems.append(f"{question} holds the character U+{ord(character):04X}. Leave it out")
        if not text.strip() and question != "description":
            problems.append(f'{question} is empty. Try {question}="{EXAMPLES[question]}"')
    email = str(answers["author_email"])
    if email.strip() and not EMAIL.fullmatch(email):
        problems.append(f"author_email {email!r} is no address. Try author_email={EXAMPLES['author_email']}")
    return problems


def main() -> int:
    if hasattr(sys.stderr, "reconfigure"):
        sys.stderr.reconfigure(errors="backslashreplace")
    taken = ANSWERS["_taken"]
    problems = [
        *slug_problems(ANSWERS["__slug_typed"], taken),
        *package_problems(str(ANSWERS["package_name"]), taken),
        *text_problems(ANSWERS),
    ]
    if problems:
        print("\nNo project was made. Please change:", *problems, sep="\n  - ", end="\n\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
