"""Tells a kernel that cannot be compiled, or launched on this device, from other errors. Imports no Triton."""

import sys

# The errors that Triton raises for one kernel, by module. Not the interpreter's errors: those are about values.
_ERRORS = {
    "triton.compiler.errors": ("CompilationError",),
    "triton.runtime.errors": ("OutOfResources", "PTXASError"),
}
# A pass over the code raises a bare RuntimeError.
_FAILED_PASS = "PassManager::run failed"


def is_kernel_error(error: Exception) -> bool:
    """Whether Triton could not compile or launch a kernel. Nothing was computed by it then."""
    if isinstance(error, RuntimeError) and _FAILED_PASS in str(error):
        return True
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, names in _ERRORS.items()
        if module in sys.modules
        for name in names
    )
