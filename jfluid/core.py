"""`fluid.core`: the parts of Fluid's C++ module that scripts use."""

from jfluid.errors import EOFException, JFluidError
from jfluid.ir.backward import get_grad_op_desc
from jfluid.ir.descs import BlockDesc, OpDesc, ProgramDesc, VarDesc
from jfluid.ir.operator import OpRole
from jfluid.ir.variable import EMPTY_NAME, GRAD_SUFFIX
from jfluid.lod_tensor import LoDTensor, LoDTensorArray, SelectedRows, Tensor
from jfluid.places import CPUPlace, CUDAPinnedPlace, CUDAPlace, get_cuda_device_count, is_compiled_with_cuda
from jfluid.scope import Scope

__all__ = [
    "BlockDesc",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "LoDTensorArray",
    "OpDesc",
    "ProgramDesc",
    "Scope",
    "SelectedRows",
    "Tensor",
    "VarDesc",
    "empty_var_name",
    "get_cuda_device_count",
    "get_grad_op_desc",
    "grad_var_suffix",
    "is_compiled_with_brpc",
    "is_compiled_with_cuda",
    "is_compiled_with_dist",
    "is_compiled_with_mkldnn",
    "kEmptyVarName",
    "kGradVarSuffix",
    "kTempVarName",
    "op_proto_and_checker_maker",
]

EnforceNotMet = JFluidError  # the exception of Fluid's C++; here the base class of all raised errors


class op_proto_and_checker_maker:
    """Names of the attributes that every operator may carry, and the roles of operators."""

    OpRole = OpRole

    @staticmethod
    def kOpRoleAttrName() -> str:
        return "op_role"

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        return "op_role_var"

    @staticmethod
    def kOpNameScopeAttrName() -> str:
        return "op_namescope"

    @staticmethod
    def kOpCreationCallstackAttrName() -> str:
        return "op_callstack"

    @staticmethod
    def kOpDeviceAttrName() -> str:
        return "op_device"


def kEmptyVarName() -> str:
    """Return the placeholder name for a missing variable of an operator."""
    return EMPTY_NAME


def kTempVarName() -> str:
    return "@TEMP@"


def kGradVarSuffix() -> str:
    """Return the suffix of gradients' names."""
    return GRAD_SUFFIX


empty_var_name, grad_var_suffix = kEmptyVarName, kGradVarSuffix


def is_compiled_with_mkldnn() -> bool:
    """Return False: XLA has separate kernels."""
    return False


def is_compiled_with_brpc() -> bool:
    """Return False: there is no brpc here."""
    return False


def is_compiled_with_dist() -> bool:
    """Return True: programs may be trained by several processes and parameter servers."""
    return True
