"""Jobs whose servers are threads of this process."""

from tests.distributed.conftest import quick_failures

__all__ = ["quick_failures"]
