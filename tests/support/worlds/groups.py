"""Requests for machines, as the tests of provisioners need them: whatever does not matter is filled in."""

from cloudspot.model import InstanceGroup, Offer, Resources

JOB = "digits-1"


def group_of(offer: Offer, *, num_nodes: int = 1, **fields: object) -> InstanceGroup:
    """Return a group of machines, all or none, that together are the first launch of a job."""
    return InstanceGroup(
        **{
            "job_id": JOB,
            "launch": 1,
            "num_nodes": num_nodes,
            "job_nodes": num_nodes,
            "min_nodes": num_nodes,
            "offer": offer,
            "resources": Resources(),
            "user_data": "#!/bin/sh\n",
            "max_seconds": 60.0,
            **fields,
        }
    )
