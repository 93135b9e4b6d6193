"""moebench: which expert-parallel MoE implementation is faster on your hardware, by how much and why."""

__version__ = "0.1.0"
