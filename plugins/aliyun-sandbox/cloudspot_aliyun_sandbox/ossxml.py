"""Parses and writes the XML of the emulated OSS."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from cloudspot_aliyun_sandbox.ossbuckets import HeldBucket, Multipart, Stored, etag_of
from cloudspot_aliyun_sandbox.osserrors import OssRefusal


def read(body: bytes) -> ET.Element:
    """Return the XML of a request's body.

    Raises:
        OssRefusal: the body is not XML.
    """
    try:
        return ET.fromstring(body)  # noqa: S314 - a sandbox of one's own
    except ET.ParseError:
        raise OssRefusal(400, "MalformedXML", "The XML you provided was not well-formed.") from None


def parts(body: bytes) -> list[tuple[int, str]]:
    """Return the number and the ETag of each part that a completion lists."""
    try:
        return [
            (int(part.findtext("PartNumber") or ""), part.findtext("ETag") or "")
            for part in read(body).iter("Part")
        ]
    except ValueError:
        raise OssRefusal(400, "MalformedXML", "The XML you provided was not well-formed.") from None


def bucket_info(bucket: HeldBucket) -> bytes:
    """Return GetBucketInfo's response, without a versioning element if versioning was never on."""
    state = f"<Versioning>{bucket.versioning}</Versioning>" if bucket.versioning else ""
    encryption = (
        f"<ServerSideEncryptionRule><SSEAlgorithm>{bucket.encryption or 'None'}</SSEAlgorithm>"
        "</ServerSideEncryptionRule>"
    )
    return _document(
        "BucketInfo",
        f"<Bucket><CreationDate>{_time(bucket.created_at)}</CreationDate>"
        f"<ExtranetEndpoint>oss-{bucket.region}.aliyuncs.com</ExtranetEndpoint>"
        f"<IntranetEndpoint>oss-{bucket.region}-internal.aliyuncs.com</IntranetEndpoint>"
        f"<Location>oss-{bucket.region}</Location><StorageClass>Standard</StorageClass>"
        f"<Name>{bucket.name}</Name><Owner><DisplayName>{bucket.owner}</DisplayName><ID>{bucket.owner}</ID></Owner>"
        f"<AccessControlList><Grant>{bucket.acl}</Grant></AccessControlList>{state}{encryption}</Bucket>",
    )


def buckets(held: Iterable[HeldBucket]) -> bytes:
    """Return ListBuckets' answer."""
    listed = "".join(
        f"<Bucket><CreationDate>{_time(one.created_at)}</CreationDate>"
        f"<ExtranetEndpoint>oss-{one.region}.aliyuncs.com</ExtranetEndpoint>"
        f"<IntranetEndpoint>oss-{one.region}-internal.aliyuncs.com</IntranetEndpoint>"
        f"<Location>oss-{one.region}</Location><Name>{one.name}</Name>"
        "<StorageClass>Standard</StorageClass></Bucket>"
        for one in held
    )
    return _document(
        "ListAllMyBucketsResult",
        f"<Owner><ID>1</ID><DisplayName>1</DisplayName></Owner><Buckets>{listed}</Buckets>",
    )


def versioning(bucket: HeldBucket) -> bytes:
    """Return GetBucketVersioning's answer."""
    return _document(
        "VersioningConfiguration", f"<Status>{bucket.versioning}</Status>" if bucket.versioning else ""
    )


def uploads(bucket: HeldBucket, prefix: str) -> bytes:
    """Return ListMultipartUploads' answer."""
    listed = "".join(
        f"<Upload><Key>{quote(one.key, safe='')}</Key><UploadId>{upload_id}</UploadId>"
        f"<Initiated>{_time(one.started_at)}</Initiated></Upload>"
        for upload_id, one in bucket.uploads.items()
        if one.key.startswith(prefix)
    )
    return _document(
        "ListMultipartUploadsResult",
        f"<Bucket>{bucket.name}</Bucket><EncodingType>url</EncodingType><KeyMarker></KeyMarker>"
        "<UploadIdMarker></UploadIdMarker><NextKeyMarker></NextKeyMarker>"
        "<NextUploadIdMarker></NextUploadIdMarker><MaxUploads>1000</MaxUploads>"
        f"<IsTruncated>false</IsTruncated>{listed}",
    )


def initiated(bucket: str, key: str, upload_id: str, query: Mapping[str, str]) -> bytes:
    """Return InitiateMultipartUpload's answer."""
    return _document(
        "InitiateMultipartUploadResult",
        f"{_encoding(query)}<Bucket>{bucket}</Bucket><Key>{_shown(key, query)}</Key>"
        f"<UploadId>{upload_id}</UploadId>",
    )


def completed(bucket: str, key: str, etag: str, query: Mapping[str, str]) -> bytes:
    """Return CompleteMultipartUpload's answer."""
    shown = _shown(key, query)
    return _document(
        "CompleteMultipartUploadResult",
        f"{_encoding(query)}<Location>http://{bucket}/{shown}</Location><Bucket>{bucket}</Bucket>"
        f'<Key>{shown}</Key><ETag>"{etag}"</ETag>',
    )


def copied(stored: Stored) -> bytes:
    """Return CopyObject's answer."""
    return _document(
        "CopyObjectResult",
        f'<LastModified>{_time(stored.modified_at)}</LastModified><ETag>"{stored.etag}"</ETag>',
    )


def uploaded_parts(bucket: str, key: str, upload: Multipart, query: Mapping[str, str], limit: int) -> bytes:
    """Return a page of ListParts."""
    after = int(query.get("part-number-marker") or 0)
    left = [number for number in sorted(upload.parts) if number > after]
    listed = "".join(
        f"<Part><PartNumber>{number}</PartNumber><LastModified>{_time(upload.started_at)}</LastModified>"
        f'<ETag>"{etag_of(upload.parts[number])}"</ETag><Size>{len(upload.parts[number])}</Size></Part>'
        for number in left[:limit]
    )
    return _document(
        "ListPartsResult",
        f"{_encoding(query)}<Bucket>{bucket}</Bucket><Key>{_shown(key, query)}</Key>"
        f"<UploadId>{query['uploadId']}</UploadId><StorageClass>Standard</StorageClass>"
        f"<PartNumberMarker>{after}</PartNumberMarker>"
        f"<NextPartNumberMarker>{max(left[:limit], default=after)}</NextPartNumberMarker>"
        f"<MaxParts>{limit}</MaxParts><IsTruncated>{str(len(left) > limit).lower()}</IsTruncated>{listed}",
    )


def keys_to_delete(body: bytes) -> tuple[list[str], bool]:
    """Return the keys that DeleteMultipleObjects names, and whether the response must not list them."""
    root = read(body)
    return [one.findtext("Key") or "" for one in root.iter("Object")], root.findtext("Quiet") == "true"


def deleted(keys: Iterable[str], query: Mapping[str, str]) -> bytes:
    """Return DeleteMultipleObjects' answer."""
    listed = "".join(f"<Deleted><Key>{_shown(key, query)}</Key></Deleted>" for key in keys)
    return _document("DeleteResult", _encoding(query) + listed)


def listing(bucket: HeldBucket, query: Mapping[str, str], limit: int) -> bytes:
    """Return a page of ListObjects, of either version.

    Keys are in byte order; keys with a common prefix up to the delimiter are shown as one.
    """
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    is_second = query.get("list-type") == "2"
    token = query.get("continuation-token", "")
    after = query.get("start-after" if is_second else "marker", "")
    try:
        after = base64.b64decode(token).decode() if token else after
    except ValueError:
        raise OssRefusal(400, "InvalidArgument", "The continuation token is not valid.") from None

    def shown(text: str) -> str:
        return _shown(text, query)

    entries: list[str] = []
    common: list[str] = []
    last, is_truncated = "", False
    for key in sorted(bucket.objects, key=str.encode):
        if not key.startswith(prefix) or key <= after:
            continue
        rest = key[len(prefix) :]
        folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else ""
        if folder and (folder in common or folder <= after):
            continue
        if len(entries) + len(common) == limit:
            is_truncated = True
            break
        if folder:
            common.append(folder)
            last = folder
            continue
        held = bucket.objects[key]
        entries.append(
            f"<Contents><Key>{shown(key)}</Key><LastModified>{_time(held.modified_at)}</LastModified>"
            f'<ETag>"{held.etag}"</ETag><Type>{held.kind}</Type><Size>{len(held.data)}</Size>'
            "<StorageClass>Standard</StorageClass></Contents>"
        )
        last = key
    if is_second:
        following = base64.b64encode(last.encode()).decode("ascii")
        start = f"<StartAfter>{shown(query.get('start-after', ''))}</StartAfter>"
        start += f"<KeyCount>{len(entries) + len(common)}</KeyCount>"
        end = f"<NextContinuationToken>{following}</NextContinuationToken>"
    else:
        start, end = f"<Marker>{shown(after)}</Marker>", f"<NextMarker>{shown(last)}</NextMarker>"
    return _document(
        "ListBucketResult",
        f"<Name>{bucket.name}</Name><Prefix>{shown(prefix)}</Prefix>{start}<MaxKeys>{limit}</MaxKeys>"
        f"<Delimiter>{shown(delimiter)}</Delimiter>{_encoding(query)}"
        f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>"
        + (end if is_truncated else "")
        + "".join(entries)
        + "".join(f"<CommonPrefixes><Prefix>{shown(each)}</Prefix></CommonPrefixes>" for each in common),
    )


def _encoding(query: Mapping[str, str]) -> str:
    return "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""


def _shown(text: str, query: Mapping[str, str]) -> str:
    return quote(text, safe="") if query.get("encoding-type") == "url" else escape(text)


def _document(root: str, inner: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}>{inner}</{root}>'.encode()


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
