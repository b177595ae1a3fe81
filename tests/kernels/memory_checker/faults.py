"""The exceptions that are raised when a kernel breaks a rule."""


class MemoryFault(AssertionError):
    """A kernel touched memory that it must not touch, or two of its programs touched the same."""
