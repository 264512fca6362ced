"""The site's reference has every public name, and every public name explains itself."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from specgrad_fl import cli
from specgrad_study.paper.presets import PRESETS
from specgrad_study.paper.registry import find

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    "specgrad_kernels": "kernels.md",
    "specgrad_study.diagnosis": "diagnosis.md",
    "specgrad_fl": "trainer.md",
}


@pytest.mark.parametrize("package", PAGES)
def test_the_reference_lists_every_public_name(package: str) -> None:
    page = (DOCS / "api" / PAGES[package]).read_text(encoding="utf-8")
    listed = re.findall(rf"^::: {re.escape(package)}\.(\w+)$", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(import_module(package).__all__)


@pytest.mark.parametrize("package", PAGES)
def test_every_public_callable_has_a_docstring(package: str) -> None:
    module = import_module(package)
    public = [getattr(module, name) for name in module.__all__]
    silent = [each.__name__ for each in public if callable(each) and not inspect.getdoc(each)]
    assert silent == []


@pytest.mark.parametrize("package", PAGES)
def test_every_public_method_has_a_docstring(package: str) -> None:
    module = import_module(package)
    classes = [each for name in module.__all__ if inspect.isclass(each := getattr(module, name))]
    silent = [
        f"{each.__name__}.{name}"
        for each in classes
        for name, member in vars(each).items()
        if not name.startswith("_")
        and (inspect.isroutine(member) or isinstance(member, property))
        and not inspect.getdoc(getattr(each, name))
    ]
    assert silent == []


def test_every_page_is_in_the_navigation_once() -> None:
    """But for those that `not_in_nav` names, which readers of a release do not need."""
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    left_out = set(re.findall(r"^not_in_nav: /(\S+)", navigation, re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert left_out <= pages
    counts = {page: navigation.count(f": {page}\n") for page in pages}
    assert {page for page in pages if counts[page] != (page not in left_out)} == set()


@pytest.mark.skipif(not (DOCS.parent / ".git").exists(), reason="git lists the files")
def test_the_map_lists_the_files_there_are() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "write_map.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python docs/write_map.py"


def test_the_table_of_environment_variables_is_complete() -> None:
    sources = [DOCS.parent / "setup.py", *(DOCS.parent / "csrc").glob("*.cpp")]
    sources += [
        *(DOCS.parent / "specgrad_kernels").rglob("*.py"),
        *(DOCS.parent / "python").rglob("*.py"),
    ]
    read = r"(?:environ|getenv)[^\n\"']*[\"'](SPECGRAD_\w+)"
    used = {name for path in sources for name in re.findall(read, path.read_text("utf-8"))}
    page = (DOCS / "index.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(SPECGRAD_\w+)` \|", page, re.MULTILINE)) == used


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    """Those of docs/ are checked by the build of the site."""
    root = DOCS.parent
    text = (root / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "../../actions/")):  # the second is GitHub's own page
            continue
        file, _, anchor = target.partition("#")
        linked = root / (file or page)
        assert linked.exists(), (page, target)
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, (page, target)


def test_the_readme_stays_short() -> None:
    words = (DOCS.parent / "README.md").read_text(encoding="utf-8").split()
    assert len(words) <= 1000, "move what is longer to a page of docs/"


PUBLIC = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in sorted(DOCS.glob("*.md")))]


@pytest.mark.parametrize("page", PUBLIC)
def test_pages_install_from_a_clone(page: str) -> None:
    """Nothing is on a package index yet; extras that are named exist."""
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    assert re.findall(r'pip install "?specgrad', text) == []
    named = {e for extras in re.findall(r'"\.\[([\w,]+)\]"', text) for e in extras.split(",")}
    project = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert {extra for extra in named if f"\n{extra} = [" not in project} == set()


COMMANDS = [
    (page.relative_to(DOCS).as_posix(), line)
    for page in sorted(DOCS.rglob("*.md"))
    for line in page.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    if re.match("(    )?specgrad-fl [a-z]", line)
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_of_the_pages_have_the_flags_there_are(page, line, tmp_path, monkeypatch) -> None:
    """Those of the tutorial are run by test_drift.py, those of the README by test_readme.py."""
    monkeypatch.chdir(tmp_path)
    ratios = tmp_path / "runs/skewed/diagnosis/ratios.toml"  # which an earlier command writes
    ratios.parent.mkdir(parents=True)
    ratios.write_text("[filter_ratios]\nconv1 = 0.1\n")
    arguments, unknown = cli._parser().parse_known_args(shlex.split(line, comments=True)[1:])
    assert unknown == []
    if arguments.command == "reproduce":
        assert find(arguments.names)
        assert arguments.preset in PRESETS
