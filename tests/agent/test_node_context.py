"""What all parts of an agent share."""

from support.stores.memorystore import InMemoryStore

from cloudspot.agent.node_context import NodeContext
from cloudspot.jobstore.access.store_clock import clock_of


class NamedStore(InMemoryStore):
    """Counts how often its name is asked for, for which a store in a directory resolves links."""

    num_asked = 0

    @property
    def canonical_url(self):
        self.num_asked += 1
        return "memory://named"


def test_the_time_of_a_log_line_costs_no_look_at_the_store():
    store = NamedStore()
    context = NodeContext(node=None, store=store, provider=None, job=None, memory=None)
    first = context.now()
    asked = store.num_asked
    assert all(context.now() >= first for _ in range(100))
    assert store.num_asked == asked
    assert context._clock is clock_of(store)
