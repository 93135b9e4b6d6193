"""What mok does not raise, but a wrong use of it causes."""


class Misuse(Exception):
    """A use that mok does not notice, but that is wrong."""


class Trap(RuntimeError):
    """CUDA error: unspecified launch failure."""
