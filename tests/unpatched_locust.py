"""Import Locust without gevent's patches of the whole process: servers of tests are threads, and pytest is no load.

Import this module before Locust. Child processes are not affected.
"""

from __future__ import annotations

import pytest

with pytest.MonkeyPatch.context() as patched:
    patched.setenv("LOCUST_SKIP_MONKEY_PATCH", "1")
    import locust  # noqa: F401
