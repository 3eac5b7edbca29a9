"""What launchers say to each other, and what nobody should say."""

import pytest

from jfluid import errors
from jfluid.launch import messages
from tests.measured import call_within


@pytest.mark.parametrize(
    "data",
    [
        b'{"kind":"join","job":"a","node":1,"count":2,"endpoints":[' + b"1," * 20_000 + b"1]}",
        b'{"kind":"start","attempt":0,"record":"","time":1.5,"endpoints":[' + b"[1]," * 20_000 + b"[1]]}",
        b'{"kind":"finished"' + b"".join(b',"a%d":1' % i for i in range(10_000)) + b"}",
    ],
    ids=["endpoints", "hosts", "fields"],
)
def test_very_many_mistakes_are_one(data):
    """A mistake takes hundreds of bytes of memory, for two in the message."""

    def refuse():
        with pytest.raises(errors.MessageError) as refused:
            messages.decode(data)
        assert len(str(refused.value)) < 400

    call_within(refuse, peak=10 * len(data))
