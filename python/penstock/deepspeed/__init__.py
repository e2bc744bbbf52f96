"""DeepSpeed's operations on the host, served by Penstock: one line before deepspeed.initialize().

    import penstock.deepspeed
    penstock.deepspeed.install()
"""

from .install import install

__all__ = ["install"]
