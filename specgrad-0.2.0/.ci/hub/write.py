"""Write the op as a folder that the library ``kernels`` of Hugging Face loads.

    python .ci/hub/write.py build/hub
    python .ci/hub/write.py build/hub --library x86_64=_kernels.abi3.so

The code is that of ``specgrad_kernels`` with relative imports and an operator namespace of its own,
so that it can be loaded beside an installed package. Without a library there are the variants that
need none: plain PyTorch, and Triton.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "specgrad_kernels"
FILES = {"build.toml": ".", "CARD.md": ".", "benchmark.py": "benchmarks"}
VERSION = 1  # of the interface, as the Hub counts: raised where a caller would have to change


def made_relative(text: str, depth: int, namespace: str) -> str:
    """Rewrite imports of the package, and the namespace of its operator."""
    dots = "." * (depth + 1)
    text = re.sub(
        r"^(\s*)from specgrad_kernels(?:\.([\w.]+))? import ",
        lambda found: f"{found[1]}from {dots}{found[2] or ''} import ",
        text,
        flags=re.MULTILINE,
    )
    text = text.replace('Library("specgrad"', f'Library("{namespace}"')
    return text.replace("torch.ops.specgrad.", f"torch.ops.{namespace}.").replace(
        '"specgrad::', f'"{namespace}::'
    )


def sources() -> dict[Path, str]:
    """Modules of the package by their path in it; the report has no place in a loaded kernel."""
    paths = sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / "__main__.py"})
    return {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in paths}


def write_variant(folder: Path, backend: str, library: Path | None) -> None:
    """Write one build variant: code, metadata and their digests."""
    code = sources()
    content = "".join(code.values()).encode() + (library.read_bytes() if library else b"")
    identity = f"_specgrad_kernels_{backend}_{hashlib.sha256(content).hexdigest()[:8]}"
    for path, text in code.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        relative = made_relative(text, len(path.parent.parts), identity)
        (folder / path).write_text(relative, encoding="utf-8")
    if library:
        shutil.copy(library, folder / "_kernels.abi3.so")
    files = {
        path.relative_to(folder).as_posix(): base64.b64encode(
            hashlib.sha256(path.read_bytes()).digest()
        ).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    metadata = {
        "name": "specgrad-kernels",
        "id": identity,
        "version": VERSION,
        "license": "mit",
        "python-depends": [],
        "backend": {"type": backend},
        "digest": {"algorithm": "sha256", "files": files},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


def write(folder: Path, libraries: dict[str, Path]) -> None:
    """Write build.toml, card, benchmark and a build for each backend and processor."""
    for name, place in FILES.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).parent / name, folder / place / name)
    variants: dict[str, tuple[str, Path | None]] = {
        f"torch-{backend}": (backend, None) for backend in ("cpu", "cuda", "rocm", "xpu", "metal")
    }
    for machine, library in libraries.items():
        variants[f"torch-stable-abi210-cpu-{machine}-linux"] = ("cpu", library)
    shutil.rmtree(folder / "build", ignore_errors=True)
    for name, (backend, taken) in variants.items():
        write_variant(folder / "build" / name, backend, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--library", action="append", default=[], metavar="PROCESSOR=FILE", help="as in a wheel"
    )
    given = parser.parse_args()
    libraries = {}
    for each in given.library:
        machine, _, file = each.partition("=")
        if machine not in ("x86_64", "aarch64") or not Path(file).is_file():
            parser.error(f"--library takes x86_64=FILE or aarch64=FILE; got {each!r}")
        libraries[machine] = Path(file)
    write(given.folder, libraries)
    print(given.folder)


if __name__ == "__main__":
    main()
