"""Arrays that nobody may unpickle."""

import pytest


class Payload:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)
