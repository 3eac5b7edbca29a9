"""Generate the *_pb2.py modules from the .proto files of the package, and beside each the *_pb2.pyi
of its types.

    python scripts/gen_proto.py            write them
    python scripts/gen_proto.py --check    only compare; exit code 1 when a file is out of date

Code generated for one protobuf release runs with that release and later ones, not with earlier
ones. Writing therefore needs the oldest grpcio-tools that pyproject.toml supports (1.72, which
generates for protobuf 6.30). Comparing works with any: it leaves out in what releases differ.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "6.30.0"
_VERSION = re.compile(r"(?<=Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,|(?<=Python Version: )[\d.]+")


def generate(proto: Path) -> dict[Path, str]:
    """The text of the module and of the stub that protoc makes of `proto`, by the paths where they
    belong.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = proto.relative_to(ROOT)
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"-I{ROOT}",
                f"--python_out={folder}",
                f"--pyi_out={folder}",
                str(source),
            ],
            check=True,
            cwd=ROOT,
        )
        made = [source.with_name(f"{source.stem}_pb2{suffix}") for suffix in (".py", ".pyi")]
        return {ROOT / path: (Path(folder) / path).read_text() for path in made}


def without_version(text: str) -> str:
    """The generated text without the protobuf release, and with the types of flags that older
    releases write.
    """
    return _VERSION.sub("", text).replace("_Optional[bool]", "bool")


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the *_pb2 modules of the package and their stubs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    check = parser.parse_args().check
    texts = {
        path: text for proto in sorted((ROOT / "jfluid").rglob("*.proto")) for path, text in generate(proto).items()
    }
    stale = [
        path
        for path, text in texts.items()
        if not path.exists() or without_version(path.read_text()) != without_version(text)
    ]
    if stale and not check and not any(f"Python Version: {OLDEST}" in text for text in texts.values()):
        print(f"this grpcio-tools does not generate for protobuf {OLDEST}: pip install 'grpcio-tools==1.72.*'")
        return 1
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date" if check else f"writing {path.relative_to(ROOT)}")
        if not check:
            path.write_text(texts[path])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
