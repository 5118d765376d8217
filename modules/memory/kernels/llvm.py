"""The common parts of kernels written in LLVM's language: their compiler, and constants as text.

Importing this file imports llvmlite, the compiler that numba brings, and not numba, which takes longer to import.
"""

from __future__ import annotations

import struct

import llvmlite.binding


def compiled(program: str) -> llvmlite.binding.ExecutionEngine:
    """A module in LLVM's language, compiled for this CPU in 0.01 s. Its code lies in memory of what is returned, which
    is to be kept for as long as a function of it may be called."""
    llvmlite.binding.initialize_native_target()
    llvmlite.binding.initialize_native_asmprinter()
    cpu, features = llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()
    found = llvmlite.binding.Target.from_default_triple()
    machine = found.create_target_machine(cpu=cpu, features=features, opt=2)
    return llvmlite.binding.create_mcjit_compiler(llvmlite.binding.parse_assembly(program), machine)


def float_constant(number: float) -> str:
    """A float32 constant as LLVM writes it: the bits of the same float64."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def repeated(element: str, constant: str | int, lanes: int) -> str:
    """A vector of one constant."""
    return "<" + ", ".join([f"{element} {constant}"] * lanes) + ">"


def broadcast(to: str, number: str, lanes: int) -> list[str]:
    """Lines that make a vector `to` of the float32 value `number`; both are names."""
    floats = f"<{lanes} x float>"
    return [
        f"{to}.first = insertelement {floats} poison, float {number}, i32 0",
        f"{to} = shufflevector {floats} {to}.first, {floats} poison, <{lanes} x i32> zeroinitializer",
    ]
