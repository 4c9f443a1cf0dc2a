"""An emulated account for the kits: the plugin's real SDK, and machines that only stand in a list."""

import gzip
from types import MappingProxyType

from cloudspot.model import EndReason, InstanceState
from cloudspot.testing import plaincalls
from cloudspot.testing.account import Account, Bought, Call, Fault

ALWAYS = 1000
"""More often than any test asks."""
GZIP = b"\x1f\x8b"


class EmulatedAccount(Account):
    """A cloud's own file says by which calls it creates and lists, and its words for each fault."""

    options = MappingProxyType({})
    calls = MappingProxyType({})
    """The API's action by Call."""
    errors = MappingProxyType({})
    """Code and HTTP status by Fault; UNWELL's is that of a lost answer too."""

    def __init__(self, cloud):
        self.cloud = cloud

    def provider(self):
        return self.cloud.provider(**self.options)

    def provider_with(self, **options):
        """Return the provider with more options."""
        return self.cloud.provider(**self.options, **options)

    def limit(self, num_machines):
        self.cloud.faults.capacity["*", "*", "*"] = num_machines

    def inject(self, call, fault):
        is_lost = fault is Fault.LOST_ANSWER
        code, status = self.errors[Fault.UNWELL if is_lost else fault]
        self.cloud.faults.inject(
            self.calls[call], code, status=status, happens=is_lost, times=1 if is_lost else ALWAYS
        )

    def heal(self):
        self.cloud.faults.withdraw()

    def lag(self, seconds):
        self.cloud.faults.describe_lag_seconds = seconds

    def pass_time(self, seconds):
        self.cloud.now += seconds

    def reclaim(self, instance_id):
        self.cloud.host.end(self.host_id(instance_id), EndReason.RECLAIMED)

    def running(self):
        """Return what runs by the host's word; what a listing adds to an id is looked up in one."""
        host = set(self.cloud.alive)
        known = {
            one.id
            for one in plaincalls.instances(self.provider().provisioner())
            if one.state is not InstanceState.ENDED
        }
        assert {self.host_id(one) for one in known} == host
        return known

    def bought(self, instance_id):
        """Return what the host was told to boot, and what the cloud's own books say besides."""
        machine = self.cloud.host.machines[self.host_id(instance_id)]
        script = machine.user_data
        if script.startswith(GZIP):
            script = gzip.decompress(script)
        return Bought(user_data=script.decode(), market=machine.market, **self.facts(instance_id))

    def facts(self, instance_id):
        """Return the other fields, as the cloud has them."""
        raise NotImplementedError

    def host_id(self, instance_id):
        """Return what the host of the machines calls the one of this id."""
        return instance_id


__all__ = ["Call", "EmulatedAccount", "Fault"]
