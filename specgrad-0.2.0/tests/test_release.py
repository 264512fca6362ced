"""A release whose version, changelog and citation disagree with its tag is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "specgrad_kernels").mkdir()
    (tmp_path / "specgrad_kernels" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-11-18)\n\n- A line.\n\n"
        "## 1.2.2 (2026-01-01)\n\n- An older line.\n"
    )
    return tmp_path


def test_a_release_that_agrees_passes(release: ModuleType, project: Path) -> None:
    release.check("v1.2.3", project)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("specgrad_kernels/__init__.py", "1.2.3", "1.2.4", "has 1.2.4, the tag v1.2.3"),
        ("CITATION.cff", "\nversion: 1.2.3", "", "CITATION.cff has no version"),
        ("CHANGELOG.md", "## 1.2.3 (2026-11-18)", "## 1.2.3", "no section 1.2.3"),
        ("CHANGELOG.md", "- A line.\n", "", "section 1.2.3 of CHANGELOG.md is empty"),
        ("CHANGELOG.md", "Unreleased\n", "Unreleased\n\n- More.\n", "has unreleased lines"),
    ],
)
def test_what_disagrees_is_named(
    release: ModuleType, project: Path, file: str, old: str, new: str, message: str
) -> None:
    path = project / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(release.ReleaseError, match=re.escape(message)):
        release.check("v1.2.3", project)


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-beta", "v1.2.3\n"])
def test_a_tag_that_is_no_version_is_refused(release: ModuleType, tag: str) -> None:
    with pytest.raises(release.ReleaseError, match="is no version"):
        release.check(tag)


def test_notes_end_at_the_next_version(release: ModuleType, project: Path) -> None:
    changelog = (project / "CHANGELOG.md").read_text()
    assert release.section_of(changelog, "1.2.3") == "- A line.\n"


def test_hashes_are_those_of_the_files(
    release: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["hashes", str(tmp_path)]) == 2
    assert "has no files" in capsys.readouterr().err
    (tmp_path / "a.whl").write_bytes(b"wheel")
    for _ in range(2):  # the second time beside the file of the first
        assert release.main(["hashes", str(tmp_path)]) == 0
    expected = f"{hashlib.sha256(b'wheel').hexdigest()}  a.whl\n"
    assert (tmp_path / "SHA256SUMS").read_text() == expected


def test_this_version_is_in_changelog_and_citation(release: ModuleType) -> None:
    import specgrad_kernels

    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {specgrad_kernels.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.section_of(changelog, specgrad_kernels.__version__)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_actions_and_ask_for_few_rights(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []


def test_workflows_run_targets_and_scripts_that_exist() -> None:
    lines = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    targets = set(re.findall(r"\bmake ([\w-]+)", lines))
    assert targets
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {name for name in targets if not re.search(rf"^{name}:", made, re.MULTILINE)} == set()
    scripts = set(re.findall(r"(?<![\w/])\.ci/[\w.]+", lines))
    assert scripts
    assert {script for script in scripts if not (ROOT / script).is_file()} == set()


def test_shell_scripts_parse() -> None:
    for script in ("run", "try", "wheels", "aarch64"):
        subprocess.run(["bash", "-n", str(ROOT / ".ci" / script)], check=True)


def test_the_lock_has_the_exact_linters_and_every_hash() -> None:
    lock = (ROOT / ".ci" / "development.lock").read_text(encoding="utf-8")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = set(re.findall(r'"((?:ruff|mypy)==[\d.]+)"', project))
    assert {name.partition("=")[0] for name in pinned} == {"ruff", "mypy"}
    assert {name for name in pinned if f"\n{name} \\\n" not in lock} == set()
    names = re.findall(r"^([\w-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}$", lock, re.MULTILINE)
    assert len(names) == lock.count("==")
    assert "torch" not in names
