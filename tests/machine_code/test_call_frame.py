"""Offsets of XLA's call frame in `ffi_runtime.py` are those of the header that jaxlib ships."""

import re
from pathlib import Path

import jaxlib
import pytest

from jfluid.machine_code import ffi_runtime

HEADER = Path(jaxlib.__file__).parent / "include/xla/ffi/api/c_api.h"
_STRUCT = re.compile(r"struct (XLA_FFI_\w+) \{([^}]*)\}", re.DOTALL)
_TYPEDEF = re.compile(r"typedef (\w+) (XLA_FFI_\w+);")
_MEMBER = re.compile(r"(?:const )?(?:struct )?(\w+)\s*((?:\*(?:\s*const)?\s*)*)(\w+)")
_SIZES = {"size_t": 8, "int64_t": 8, "uint64_t": 8, "int32_t": 4, "uint32_t": 4, "int": 4, "bool": 1, "char": 1}


@pytest.fixture(scope="module")
def header():
    return re.sub(r"//.*", "", HEADER.read_text())


class Layout:
    """Offsets of the members of each struct of a header, on a machine with pointers of 8 bytes."""

    def __init__(self, text):
        self._bodies = dict(_STRUCT.findall(text))
        enums = re.findall(r"typedef enum \{[^}]*\} (XLA_FFI_\w+);", text)
        self._kinds = dict.fromkeys(enums, "int") | {new: old for old, new in _TYPEDEF.findall(text)}

    def of(self, struct):
        """Return the offset of each member, the size and the alignment."""
        offsets, at, most = {}, 0, 1
        for line in self._bodies[struct].split(";"):
            line = " ".join(line.split())
            if not line:
                continue
            name, size, alignment = self._member(line)
            at = -(-at // alignment) * alignment
            offsets[name], at, most = at, at + size, max(most, alignment)
        return offsets, -(-at // most) * most, most

    def _member(self, line):
        if call := re.fullmatch(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", line):
            return call[1], 8, 8
        kind, pointer, name = _MEMBER.fullmatch(line).groups()
        if pointer:
            return name, 8, 8
        if kind in self._bodies:
            return name, *self.of(kind)[1:]
        size = _SIZES[self._kinds.get(kind, kind)]
        return name, size, size


def test_offsets_are_those_of_the_header(header):
    layout = Layout(header)
    frame, base = layout.of("XLA_FFI_CallFrame")[0], layout.of("XLA_FFI_Extension_Base")[0]
    arguments, results = layout.of("XLA_FFI_Args")[0], layout.of("XLA_FFI_Rets")[0]
    api = layout.of("XLA_FFI_Api")[0]
    found = {
        "_EXTENSION": frame["extension_start"],
        "_API": frame["api"],
        "_CONTEXT": frame["ctx"],
        "_ARGUMENTS": frame["args"] + arguments["args"],
        "_RESULTS": frame["rets"] + results["rets"],
        "_FUTURE": frame["future"],
        "_DATA": layout.of("XLA_FFI_Buffer")[0]["data"],
        "_TYPE": base["type"],
        "_METADATA": layout.of("XLA_FFI_Metadata_Extension")[0]["metadata"],
    }
    metadata = layout.of("XLA_FFI_Metadata")[0]
    version = layout.of("XLA_FFI_Api_Version")[0]
    found |= {
        "_MAJOR": metadata["api_version"] + version["major_version"],
        "_MINOR": metadata["api_version"] + version["minor_version"],
        "_TRAITS": metadata["traits"],
        "_CREATE_ERROR": api["XLA_FFI_Error_Create"],
        "_DESTROY_ERROR": api["XLA_FFI_Error_Destroy"],
        "_SCHEDULE": api["XLA_FFI_ThreadPool_Schedule"],
        "_NUM_THREADS": api["XLA_FFI_ThreadPool_NumThreads"],
        "_CREATE_FUTURE": api["XLA_FFI_Future_Create"],
        "_SET_AVAILABLE": api["XLA_FFI_Future_SetAvailable"],
        "_SET_ERROR": api["XLA_FFI_Future_SetError"],
    }
    assert found == {name: getattr(ffi_runtime, name) for name in found}


def test_numbers_are_those_of_the_header(header):
    versions = re.findall(r"#define XLA_FFI_API_M(?:AJ|IN)OR (\d+)", header)
    assert tuple(map(int, versions)) == ffi_runtime.VERSION
    assert re.search(r"XLA_FFI_Extension_Metadata = (\d+)", header)[1] == str(ffi_runtime._OF_METADATA)
    assert re.search(r"XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = (\d+)", header)[1] == str(ffi_runtime._EXHAUSTED)


def test_requests_have_the_arguments_of_the_header(header):
    layout = Layout(header)
    for request, members in {
        "XLA_FFI_Error_Create_Args": ["message", "errc"],
        "XLA_FFI_Error_Destroy_Args": ["error"],
        "XLA_FFI_ThreadPool_Schedule_Args": ["ctx", "task", "data"],
        "XLA_FFI_ThreadPool_NumThreads_Args": ["ctx", "num_threads"],
        "XLA_FFI_Future_Create_Args": ["future"],
        "XLA_FFI_Future_SetAvailable_Args": ["future"],
        "XLA_FFI_Future_SetError_Args": ["future", "error"],
    }.items():
        offsets = layout.of(request)[0]
        assert list(offsets) == ["struct_size", "extension_start", *members], request
        assert list(offsets.values()) == [8 * i for i in range(2 + len(members))], request
