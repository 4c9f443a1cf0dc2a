"""The bucket of an AWS account's setup: private, encrypted, and without unfinished uploads.

Source: S3 API reference, the operations' pages, and user guide, "Verifying bucket ownership with bucket owner
condition" (checked 2026-11).
"""

from __future__ import annotations

import json
from typing import Any, Final

import botocore.exceptions

from cloudspot.model import PartState
from cloudspot.plugin import policydocuments
from cloudspot.plugin.setupparts import state_of
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.errors import ERRORS
from cloudspot_aws.setupcalls import AwsCall
from cloudspot_aws.setuppart import TAGS, AwsPart, unless

ABORT_DAYS: Final = 3
"""The age, in days, at which the parts of an unfinished upload are deleted."""
_BLOCKS: Final = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")


class Bucket(AwsPart):
    """A private, encrypted bucket that deletes unfinished uploads."""

    is_store = True

    def __init__(self, clients: AwsClients, name: str, *, account: str) -> None:
        """Do no I/O except to find the region."""
        owner: dict[str, Any] = {"Bucket": name, "ExpectedBucketOwner": account}
        region = clients.region
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        rule = {
            "ID": "cloudspot-unfinished-uploads",
            "Status": "Enabled",
            "Filter": {},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS},
        }
        encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
        blocks = dict.fromkeys(_BLOCKS, True)
        making = [
            AwsCall("s3", "CreateBucket", {"Bucket": name, **place}, ("BucketAlreadyOwnedByYou",)),
            AwsCall("s3", "PutPublicAccessBlock", {**owner, "PublicAccessBlockConfiguration": blocks}),
            AwsCall("s3", "PutBucketEncryption", {**owner, "ServerSideEncryptionConfiguration": encryption}),
            AwsCall(
                "s3",
                "PutBucketLifecycleConfiguration",
                {**owner, "LifecycleConfiguration": {"Rules": [rule]}},
            ),
            AwsCall("s3", "PutBucketTagging", {**owner, "Tagging": {"TagSet": list(TAGS)}}),
        ]
        super().__init__(
            clients,
            "bucket",
            name,
            "keeps all that jobs need and make; private, encrypted, and without unfinished uploads",
            making=making,
            removing=[AwsCall("s3", "DeleteBucket", owner, ("NoSuchBucket", "404"))],
            cost="about 0.023 USD for each GB that it keeps, and 0.005 USD for 1,000 writes",
        )
        self._owner = owner

    def state(self, *, is_own: bool) -> PartState:
        """Return whether the bucket exists, belongs to the account, and is closed to others."""
        s3 = self.clients.client("s3")
        try:
            head = s3.head_bucket(**self._owner)
        except botocore.exceptions.ClientError as error:
            if ERRORS.status_of(error) == 404:
                return PartState(exists=False)
            if ERRORS.status_of(error) not in {400, 403}:
                raise
            taken = (
                "it belongs to another account, or you may not look at it: choose another name with --store"
            )
            return PartState(exists=True, excess=(taken,))
        region = head.get("BucketRegion", self.clients.region)
        if region != self.clients.region:
            return PartState(exists=True, excess=(f"it is in {region}, not in {self.clients.region}",))
        open_to: list[str] = []
        answer = unless(
            "NoSuchPublicAccessBlockConfiguration", lambda: s3.get_public_access_block(**self._owner)
        )
        blocks = {} if answer is None else answer["PublicAccessBlockConfiguration"]
        open_to += [f"{name} is off" for name in _BLOCKS if not blocks.get(name)]
        others = self._others()
        lacks = []
        if (
            unless(
                "ServerSideEncryptionConfigurationNotFoundError",
                lambda: s3.get_bucket_encryption(**self._owner),
            )
            is None
        ):
            lacks.append("it encrypts nothing")
        answer = unless(
            "NoSuchLifecycleConfiguration", lambda: s3.get_bucket_lifecycle_configuration(**self._owner)
        )
        rules = () if answer is None else answer["Rules"]
        if not any("AbortIncompleteMultipartUpload" in one for one in rules):
            lacks.append("it keeps unfinished uploads")
        state = state_of(is_own=is_own, differences=open_to, lacks=lacks)
        return PartState(exists=True, excess=(*state.excess, *others), lacks=state.lacks)

    def _others(self) -> list[str]:
        """Return a line for each access that the bucket's policy or its access list grants to others."""
        s3 = self.clients.client("s3")
        lines = []
        answer = unless("NoSuchBucketPolicy", lambda: s3.get_bucket_policy(**self._owner))
        if answer is not None:
            lines += policydocuments.excess([json.loads(answer["Policy"])], [])
        acl = s3.get_bucket_acl(**self._owner)
        for grant in acl["Grants"]:
            whom = grant["Grantee"]
            if whom.get("ID") != acl["Owner"]["ID"]:
                lines.append(
                    f"its access list gives {grant['Permission']} to {whom.get('URI', whom.get('ID'))}"
                )
        return lines
