"""Whatever a server answers - headers, listings, metadata, machine lists, prices - is taken or refused in a line."""

import json
from typing import ClassVar

import fastcrc
import pytest
from google.auth.credentials import AnonymousCredentials
from hypothesis import strategies as st
from support.records.odd_answers import Answer, AnsweringServer, answers, odd_json, odd_xml, texts
from support.records.outside import CI, SOAK_SECONDS, Entry, bounded, check, listed_for_pytest, soak

from cloudspot.cli.preparing.image_digest import with_digest
from cloudspot.interfaces import is_key
from cloudspot.jobstore.inputs.http_file import HttpFile
from cloudspot.testing import plaincalls
from cloudspot_aliyun.clients import AliyunClients
from cloudspot_aliyun.credentials import RoleCredentials
from cloudspot_aliyun.ecs import EcsProvisioner
from cloudspot_aliyun.metadata import AliyunNoticeSource, EcsMetadata
from cloudspot_aliyun.metadata import node_identity as aliyun_identity
from cloudspot_aliyun.options import AliyunOptions
from cloudspot_aliyun.oss import OssStore
from cloudspot_aliyun.pricing import on_demand_price, spot_prices
from cloudspot_aws.clients import AwsClients
from cloudspot_aws.ec2 import Ec2Provisioner
from cloudspot_aws.imds import Imds, SpotNoticeSource
from cloudspot_aws.imds import node_identity as aws_identity
from cloudspot_aws.offers import read_spot_prices
from cloudspot_aws.options import AwsOptions
from cloudspot_aws.s3 import S3Store
from cloudspot_gcp.clients import GcpClients
from cloudspot_gcp.compute import ComputeProvisioner
from cloudspot_gcp.gcs import GcsStore
from cloudspot_gcp.metadata import GcePreemptionSource, Metadata
from cloudspot_gcp.metadata import node_identity as gcp_identity
from cloudspot_gcp.options import GcpOptions
from cloudspot_gcp.pricing import read_price_list
from cloudspot_kubernetes.cluster import Cluster
from cloudspot_kubernetes.options import KubernetesOptions
from cloudspot_kubernetes.pods import PodProvisioner

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore:Generating overly large repr")]
"""Some values are large on purpose."""

DAY = "Fri, 20 Nov 2026 08:00:00 GMT"
AT = "2026-11-20T08:30:00Z"
PREFIX = "jobs/x/"
S3_LIST = f"""<ListBucketResult><Name>bucket</Name><Prefix>p/{PREFIX}</Prefix><KeyCount>2</KeyCount><MaxKeys>9</MaxKeys>
<IsTruncated>false</IsTruncated><Contents><Key>p/{PREFIX}a</Key><LastModified>{AT}</LastModified><ETag>"e"</ETag>
<Size>7</Size></Contents><Contents><Key>p/{PREFIX}b</Key><LastModified>{AT}</LastModified><ETag>"e"</ETag>
<Size>8</Size></Contents></ListBucketResult>""".encode()
OSS_BUCKET = f"""<Bucket><Name>bucket</Name><CreationDate>{AT}</CreationDate><StorageClass>Standard</StorageClass>
<ExtranetEndpoint>a</ExtranetEndpoint><IntranetEndpoint>b</IntranetEndpoint><Location>oss-cn-hangzhou</Location>
<Owner><ID>1</ID><DisplayName>1</DisplayName></Owner><AccessControlList><Grant>private</Grant></AccessControlList>
</Bucket>""".encode()
"""What OSS is asked first: a bucket's own description. As the server says one thing, objects are this, too."""
OSS_INFO = b"<BucketInfo>" + OSS_BUCKET + b"</BucketInfo>"
OSS_LIST = (
    S3_LIST.replace(b":00Z", b":00.000Z")
    .replace(b"</Size>", b"</Size><Type>Normal</Type><StorageClass>IA</StorageClass>")
    .replace(b"</ListBucketResult>", OSS_BUCKET + b"</ListBucketResult>")
)
GCS_OBJECT = {
    "name": f"p/{PREFIX}a",
    "size": "7",
    "updated": AT,
    "generation": "1",
    "metadata": {"writer": "w"},
}
GCS_LIST = {"kind": "x", "items": [GCS_OBJECT]}
EC2_LIST = f"""<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item>
<instancesSet><item><instanceId>i-1</instanceId><amiLaunchIndex>0</amiLaunchIndex><launchTime>{AT}</launchTime>
<instanceState><code>48</code><name>terminated</name></instanceState><reason>User (2026-11-20 08:22:00 GMT)</reason>
<tagSet><item><key>cloudspot-job</key><value>x</value></item><item><key>cloudspot-launch</key><value>1</value>
</item><item><key>cloudspot-max-seconds</key><value>3600</value></item></tagSet></item></instancesSet></item>
</reservationSet></DescribeInstancesResponse>""".encode()
EC2_PRICES = f"""<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<spotPriceHistorySet><item><instanceType>m5.large</instanceType><availabilityZone>us-east-1a</availabilityZone>
<timestamp>{AT}</timestamp><spotPrice>0.03</spotPrice></item></spotPriceHistorySet>
</DescribeSpotPriceHistoryResponse>""".encode()
ECS_MACHINE = {
    "InstanceId": "i-1",
    "HostName": "x-1-0",
    "Status": "Running",
    "CreationTime": "2026-11-20T08:30Z",
    "Tags": {
        "Tag": [{"TagKey": "cloudspot-job", "TagValue": "x"}, {"TagKey": "cloudspot-launch", "TagValue": "1"}]
    },
    "OperationLocks": {"LockReason": []},
    "VpcAttributes": {"PrivateIpAddress": {"IpAddress": ["10.0.0.1"]}},
}
ECS_PRICE = {"PriceInfo": {"Price": {"TradePrice": 0.1, "OriginalPrice": 0.3, "Currency": "USD"}}}
ECS_PRICES = {
    "Currency": "USD",
    "NextOffset": 0,
    "SpotPrices": {
        "SpotPriceType": [{"ZoneId": "a", "Timestamp": AT, "SpotPrice": 0.1, "OriginPrice": 0.3}],
    },
}
ECS_KEY = {
    "Code": "Success",
    "AccessKeyId": "id",
    "AccessKeySecret": "secret",
    "SecurityToken": "token",
    "Expiration": "2126-11-20T08:30:00Z",
}
SKUS = {
    "skus": [
        {
            "description": "Spot Preemptible N2 Instance Core running in Americas",
            "category": {"usageType": "Preemptible"},
            "serviceRegions": ["us-central1"],
            "pricingInfo": [
                {"pricingExpression": {"tieredRates": [{"unitPrice": {"units": "0", "nanos": 30000000}}]}}
            ],
        }
    ]
}
GCE_MACHINE = {
    "name": "cs-x-0123abcd-1-0",
    "id": "7",
    "zone": "https://x/zones/us-central1-a",
    "status": "TERMINATED",
    "labels": {"cloudspot-job": "x", "cloudspot-launch": "1"},
    "creationTimestamp": AT,
    "machineType": "https://x/machineTypes/n2-standard-2",
}
GCE_OPERATION = {
    "operationType": "stop",
    "targetLink": "https://x/zones/us-central1-a/instances/cs-x-0123abcd-1-0",
    "targetId": "7",
    "status": "DONE",
    "endTime": AT,
}
GCE = {"items": {"zones/us-central1-a": {"instances": [GCE_MACHINE], "operations": [GCE_OPERATION]}}}
POD = {
    "metadata": {
        "name": "x-1-0",
        "uid": "0123456789",
        "namespace": "default",
        "creationTimestamp": AT,
        "labels": {"cloudspot-job": "x", "cloudspot-launch": "1", "cloudspot-rank": "0"},
        "annotations": {},
    },
    "spec": {"nodeName": "a"},
    "status": {
        "phase": "Failed",
        "podIP": "10.0.0.1",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": AT}}}],
    },
}


def json_of(value):
    return odd_json(json.dumps(value).encode())


def no_sleep(_seconds):
    pass


class Clients:
    """The SDKs' clients, which are dear to make, of the one server."""

    made: ClassVar[dict] = {}

    @classmethod
    def of(cls, kind):
        if kind not in cls.made:
            cls.made[kind] = kind()
        return cls.made[kind]


class AnonymousGcp(GcpClients):
    """Needs no token of a server that gives none."""

    def _default(self):
        return AnonymousCredentials(), "my-project-123"


def s3():
    return S3Store("s3://bucket/p", clients=Clients.of(AwsClients), sleep=no_sleep)


def gcs():
    return GcsStore("gs://bucket/p", clients=Clients.of(AnonymousGcp), sleep=no_sleep)


def oss():
    return OssStore("oss://bucket/p", clients=Clients.of(AliyunClients), sleep=no_sleep)


def listed(store):
    """List a job's objects; no key that comes is another job's."""
    found = [meta.key for meta in store.list_objects(PREFIX)]
    assert all(is_key(key) and key.startswith(PREFIX) for key in found)


def read_file(url):
    with HttpFile(f"{url}/f").opened((0, 4)) as (_, pieces):
        assert sum(map(len, pieces)) <= 1 << 20


def within_bounds(machines):
    """Check what a list of machines may say."""
    for one in machines:
        assert 0 <= one.launch < 10**9
        assert one.launched_at is None or one.launched_at.year >= 1970
        assert one.ended_at is None or 1970 <= one.ended_at.year < 2200


def prices_within_bounds(found):
    for price in found:
        assert 0 <= price <= 1e9


def a_pod_cluster():
    return PodProvisioner(KubernetesOptions(), Cluster(KubernetesOptions()))


def identity_within_bounds(identity):
    assert 0 <= identity.rank < 10_000


raw = st.just(b"data") | st.binary(max_size=40)
plain = texts.map(lambda text: text.encode("utf-8", "replace")) | st.just(b"7")
BYTES = {
    "Content-Length": "4",
    "ETag": '"e"',
    "Last-Modified": DAY,
    "x-amz-checksum-crc32": "x",
    "x-goog-hash": "y",
}
OBJECT = {**BYTES, "x-goog-generation": "1", "x-oss-request-id": "r", "x-oss-hash-crc64ecma": "7"}
PART = {**OBJECT, "Content-Range": "bytes 0-3/4"}
GOOGLE = {"Metadata-Flavor": "Google", "ETag": "1"}
OSS = {"x-oss-request-id": "r"}
OSS_OBJECT = {
    **OSS,
    "Content-Length": str(len(OSS_INFO)),
    "ETag": '"e"',
    "Last-Modified": DAY,
    "x-oss-hash-crc64ecma": str(fastcrc.crc64.xz(OSS_INFO)),
}

ENTRIES = (
    Entry("head of a file", answers(PART, raw, status=206), lambda _, url: HttpFile(f"{url}/f").head()),
    Entry("file", answers(PART, raw, status=206), lambda _, url: read_file(url)),
    Entry("digest of an image", answers({"Docker-Content-Digest": "7", "WWW-Authenticate": "Bearer"}, raw),
          lambda _, url: with_digest(f"{url.removeprefix('http://')}/x:1")),
    Entry("get of S3", answers(OBJECT, raw), lambda *_: s3().get("k")),
    Entry("range of S3", answers(PART, raw, status=206), lambda *_: s3().get_range_into("k", 0, bytearray(4))),
    Entry("head of S3", answers(OBJECT, st.just(b"")), lambda *_: s3().head("k")),
    Entry("list of S3", answers({}, odd_xml(S3_LIST)), lambda *_: listed(s3())),
    Entry("get of GCS", answers(OBJECT, raw), lambda *_: gcs().get("k")),
    Entry("range of GCS", answers(PART, raw, status=206), lambda *_: gcs().get_range("k", 0, 4)),
    Entry("head of GCS", answers({}, json_of(GCS_OBJECT)), lambda *_: gcs().head("k")),
    Entry("list of GCS", answers({}, json_of(GCS_LIST)), lambda *_: listed(gcs())),
    Entry("get of OSS", answers(OSS_OBJECT, st.just(OSS_INFO)), lambda *_: oss().get("k")),
    Entry("range of OSS", answers(OSS_OBJECT, st.just(OSS_INFO), status=206),
          lambda *_: oss().get_range("k", 0, len(OSS_INFO))),
    Entry("head of OSS", answers(OSS_OBJECT, st.just(OSS_INFO)), lambda *_: oss().head("k")),
    Entry("list of OSS", answers(OSS, odd_xml(OSS_LIST)), lambda *_: listed(oss())),
    Entry("notice of AWS", answers({}, json_of({"action": "terminate", "time": AT})),
          lambda _, url: SpotNoticeSource(Imds(endpoint=url)).poll()),
    Entry("identity at AWS", answers({}, plain), lambda _, url: identity_within_bounds(aws_identity(Imds(endpoint=url)))),
    Entry("notice of GCP", answers(GOOGLE, plain | st.just(b"TRUE")),
          lambda _, url: GcePreemptionSource(Metadata(host=url.removeprefix("http://"))).poll()),
    Entry("identity at GCP", answers(GOOGLE, plain | st.just(b"cs-x-0123abcd-1-0")),
          lambda _, url: identity_within_bounds(gcp_identity(Metadata(host=url.removeprefix("http://"))))),
    Entry("notice of Aliyun", answers({}, plain), lambda _, url: AliyunNoticeSource(EcsMetadata(endpoint=url)).poll()),
    Entry("identity at Aliyun", answers({}, plain | st.just(b"x-1-0")),
          lambda _, url: identity_within_bounds(aliyun_identity(EcsMetadata(endpoint=url)))),
    Entry("key of Aliyun", answers({}, json_of(ECS_KEY)),
          lambda _, url: RoleCredentials(EcsMetadata(endpoint=url), role="r").get()),
    Entry("machines of AWS", answers({}, odd_xml(EC2_LIST)),
          lambda *_: within_bounds(plaincalls.instances(Ec2Provisioner(AwsOptions(), Clients.of(AwsClients))))),
    Entry("prices of AWS", answers({}, odd_xml(EC2_PRICES)),
          lambda *_: prices_within_bounds(read_spot_prices(Clients.of(AwsClients), ["m5.large"]).values())),
    Entry("prices of GCP", answers({}, json_of(SKUS)),
          lambda *_: prices_within_bounds(read_price_list(Clients.of(AnonymousGcp), ["us-central1"]).parts.values())),
    Entry("machines of GCP", answers({}, json_of(GCE)),
          lambda *_: within_bounds(plaincalls.instances(ComputeProvisioner(GcpOptions(), Clients.of(AnonymousGcp))))),
    Entry("machines of Aliyun", answers({}, json_of({"Instances": {"Instance": [ECS_MACHINE]}})),
          lambda *_: within_bounds(plaincalls.instances(EcsProvisioner(AliyunOptions(), Clients.of(AliyunClients))))),
    Entry("price of Aliyun", answers({}, json_of(ECS_PRICE)),
          lambda *_: prices_within_bounds(
              on_demand_price(Clients.of(AliyunClients), "ecs.g7.large", disk_type="cloud_essd")[:1])),
    Entry("prices of Aliyun", answers({}, json_of(ECS_PRICES)),
          lambda *_: prices_within_bounds(
              one.price for one in spot_prices(Clients.of(AliyunClients), "ecs.g7.large", spot_hours=0).values())),
    Entry("pods", answers({}, json_of({"metadata": {}, "items": [POD]})),
          lambda *_: within_bounds(plaincalls.instances(a_pod_cluster()))),
)  # fmt: skip
"""Where answers enter."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The server, to which every SDK is led by the environment."""
    found, directory = AnsweringServer(), tmp_path_factory.mktemp("answers")
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": found.url}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
        )
    )
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": found.url,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": str(directory / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(directory / "none"),
            "STORAGE_EMULATOR_HOST": found.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING": found.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": found.url,
            "OSS_ENDPOINT": found.url,
            "ECS_ENDPOINT": found.url,
            "ALIBABA_CLOUD_REGION_ID": "cn-hangzhou",
            "ALIBABA_CLOUD_ACCESS_KEY_ID": "LTAI5tEXAMPLEexample0001",
            "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "secret",
            "KUBECONFIG": str(kubeconfig),
        }.items():
            environment.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "ALIBABA_CLOUD_PROFILE", "HTTP_PROXY", "http_proxy"):
            environment.delenv(name, raising=False)
        yield found
    found.close()
    Clients.made.clear()


def answered(entry, server):
    """Return the entry with its values as the server's answers."""

    def call(answer, _place):
        server.answer = answer.as_bytes()
        return entry.call(answer, server.url)

    return entry._replace(call=call)


WHOLE = (
    ("get of OSS", OSS_OBJECT, OSS_INFO, lambda: oss().get("k")),
    ("list of OSS", OSS, OSS_LIST, lambda: [*oss().list_objects(PREFIX)]),
    ("get of GCS", {**OBJECT, "x-goog-hash": ""}, b"data", lambda: gcs().get("k")),
    ("head of GCS", {}, json.dumps(GCS_OBJECT).encode(), lambda: gcs().head("k").size),
    ("list of GCS", {}, json.dumps(GCS_LIST).encode(), lambda: [*gcs().list_objects(PREFIX)]),
    ("head of S3", OBJECT, b"", lambda: s3().head("k").size),
    ("list of S3", {}, S3_LIST, lambda: [*s3().list_objects(PREFIX)]),
    ("machines of AWS", {}, EC2_LIST, lambda: plaincalls.instances(Ec2Provisioner(AwsOptions(), Clients.of(AwsClients)))),
    ("prices of AWS", {}, EC2_PRICES, lambda: read_spot_prices(Clients.of(AwsClients), ["m5.large"])),
    ("machines of GCP", {}, json.dumps(GCE).encode(),
     lambda: plaincalls.instances(ComputeProvisioner(GcpOptions(), Clients.of(AnonymousGcp)))),
    ("prices of GCP", {}, json.dumps(SKUS).encode(),
     lambda: read_price_list(Clients.of(AnonymousGcp), ["us-central1"]).parts),
    ("machines of Aliyun", {}, json.dumps({"Instances": {"Instance": [ECS_MACHINE]}}).encode(),
     lambda: plaincalls.instances(EcsProvisioner(AliyunOptions(), Clients.of(AliyunClients)))),
    ("prices of Aliyun", {}, json.dumps(ECS_PRICES).encode(),
     lambda: spot_prices(Clients.of(AliyunClients), "ecs.g7.large", spot_hours=0)),
    ("pods", {}, json.dumps({"metadata": {}, "items": [POD]}).encode(), lambda: plaincalls.instances(a_pod_cluster())),
)  # fmt: skip


@pytest.mark.parametrize(("headers", "body", "call"), [pytest.param(*rest, id=name) for name, *rest in WHOLE])
def test_the_answer_that_is_made_odd_is_one_that_is_taken(headers, body, call, server):
    said = {"Content-Length": str(len(body)), **headers}
    server.answer = Answer(200, tuple(said.items()), body).as_bytes()
    assert call()


@pytest.mark.parametrize("entry", listed_for_pytest(ENTRIES))
def test_an_odd_answer_is_taken_within_bounds_or_refused_in_a_line(entry, server):
    with bounded():
        check(answered(entry, server), None, CI)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
# A few SDKs leave it to the garbage collector to close a connection that an odd answer has broken.
@pytest.mark.filterwarnings(r"ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_no_odd_answer_of_very_many_is_more_than_refused(server):
    soak(
        tuple(answered(entry, server) for entry in ENTRIES),
        lambda: None,
        seconds=SOAK_SECONDS / 2,
    )
