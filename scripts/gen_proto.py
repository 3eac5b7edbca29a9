"""Generate the *_pb2.py modules from the .proto files of the package.

    python scripts/gen_proto.py            write them
    python scripts/gen_proto.py --check    only compare; exit code 1 when a module is out of date

Code generated for one protobuf release runs with that release and later ones, not with earlier ones. Writing
therefore needs the oldest grpcio-tools that pyproject.toml supports (1.72, which generates for protobuf 6.30).
Comparing works with any: it leaves out the lines that name the release.
"""
import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "6.30.0"
_VERSION = re.compile(r"(?<=Domain\.PUBLIC,)\s+\d+,\s+\d+,\s+\d+,|(?<=Python Version: )[\d.]+")


def generate(proto: Path) -> str:
    """The text of the module that protoc makes of `proto`."""
    with tempfile.TemporaryDirectory() as folder:
        source = proto.relative_to(ROOT)
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--python_out={folder}", str(source)],
                       check=True, cwd=ROOT)
        return (Path(folder) / source.with_name(f"{source.stem}_pb2.py")).read_text()


def without_version(text: str) -> str:
    """The generated text without the lines that name the protobuf release."""
    return _VERSION.sub("", text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the *_pb2.py modules of the package.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a module is out of date")
    check = parser.parse_args().check
    stale = False
    for proto in sorted((ROOT / "jfluid").rglob("*.proto")):
        module = proto.with_name(f"{proto.stem}_pb2.py")
        text, committed = generate(proto), ""
        with contextlib.suppress(FileNotFoundError):
            committed = module.read_text()
        if without_version(text) == without_version(committed):
            continue
        stale = True
        print(f"{module.relative_to(ROOT)} is out of date" if check else f"writing {module.relative_to(ROOT)}")
        if not check:
            if f"Python Version: {OLDEST}" not in text:
                print(f"this grpcio-tools does not generate for protobuf {OLDEST}: pip install 'grpcio-tools==1.72.*'")
                return 1
            module.write_text(text)
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
