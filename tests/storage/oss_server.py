"""A small Alibaba Cloud OSS, for tests: no emulator of it is published.

It speaks the requests that `storage_backends.oss` sends, and checks their signatures by the public
description of signature V4, not by the SDK's code. Buckets may have versioning. `plan` decides
which requests fail, and how.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

REGION = "cn-test"
KEY_ID, SECRET, TOKEN = "access-key-id", "access-key-secret", "session-token"

UNAVAILABLE, LOST, CUT, KEPT = "unavailable", "lost", "cut", "kept"
FOREIGN, SAYING = "foreign", "saying"
"""A 503 that did nothing; the work is done and the connection closed without an answer; an answer
that ends in the middle of its body; of many objects, only the first is deleted; the 404 of a
server that is no OSS; a 403 with this text as its message."""


@dataclass(frozen=True)
class Version:
    """`id` is "null" without versioning. `data` is None for a delete marker."""

    id: str
    data: bytes | None
    modified: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data or b"").hexdigest().upper()}"'


@dataclass
class Bucket:
    versioning: str = ""
    """"", Enabled or Suspended."""
    tells_versions: bool = True
    """Whether the answer to a put has the id of its version."""
    ignores_conditions: bool = False
    """As if a proxy removed the headers of a condition."""
    versions: dict[str, list[Version]] = field(default_factory=dict)
    """The newest is the last."""
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)

    def newest(self, key: str) -> Version | None:
        versions = self.versions.get(key)
        return versions[-1] if versions and versions[-1].data is not None else None

    def names(self) -> list[str]:
        return sorted(key for key in self.versions if self.newest(key))

    def add(self, key: str, data: bytes | None) -> str:
        id = secrets.token_hex(8) if self.versioning == "Enabled" else "null"
        present = self.versions.setdefault(key, [])
        present[:] = [item for item in present if item.id != id]
        present.append(Version(id, data))
        return id

    def remove(self, key: str, version: str | None) -> None:
        if version is not None:
            present = self.versions.get(key, [])
            present[:] = [item for item in present if item.id != version]
        elif self.versioning:
            self.add(key, None)
        else:
            self.versions.pop(key, None)


class OssServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.buckets = {"bucket": Bucket()}
        self.page_max = 1_000
        self.names_errors = True
        """Whether the answer to a HEAD says why."""
        self.turn = threading.Lock()
        self.requests: list[str] = []
        self.plan: Callable[[str], str] = lambda request: ""

    @property
    def options(self) -> dict[str, Any]:
        return {
            "region": REGION,
            "endpoint": f"http://127.0.0.1:{self.server_port}",
            "access_key_id": KEY_ID,
            "access_key_secret": SECRET,
            "security_token": TOKEN,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The options as variables."""
        named = {"security_token": "OSS_SESSION_TOKEN"}
        return {
            named.get(option, f"OSS_{option.upper()}"): value
            for option, value in self.options.items()
        }


@contextmanager
def running_oss() -> Iterator[OssServer]:
    server = OssServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "refused") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: OssServer
    status: int
    body: bytes
    extra: dict[str, str]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_any(self) -> None:
        path, _, query = self.path.partition("?")
        self.bucket_name, _, key = path.removeprefix("/").partition("/")
        self.key = unquote(key)
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.status, self.body, self.extra = 200, b"", {}
        request = f"{self.command} {self.path}"
        self.server.requests.append(request)
        fate = self.server.plan(request)
        try:
            if self.headers.get("Transfer-Encoding"):
                raise Refused(411, "MissingContentLength")
            if fate.startswith(SAYING):
                raise Refused(403, "AccessDenied", fate)
            if fate == UNAVAILABLE:
                raise Refused(503, "SlowDown", "Please reduce your request rate.")
            if self.headers.get("Authorization", "").startswith("AWS4"):
                self.as_s3()
            else:
                self.check_signature(query)
                with self.server.turn:
                    self.act(fate)
        except Refused as error:
            self.status, self.extra = error.status, {}
            self.body = (
                f"<Error><Code>{error.code}</Code><Message>{error.message}</Message>"
                f"<RequestId>R1</RequestId></Error>"
            ).encode()
        if fate == LOST:
            self.close_connection = True
            return
        if fate == FOREIGN:
            self.status, self.body, self.extra = 404, b"<html>Not found</html>", {}
        else:
            self.extra["x-oss-request-id"] = "R1"
        self.answer(cut=fate == CUT)

    def do_GET(self) -> None:
        self.handle_any()

    def do_HEAD(self) -> None:
        self.handle_any()

    def do_PUT(self) -> None:
        self.handle_any()

    def do_POST(self) -> None:
        self.handle_any()

    def do_DELETE(self) -> None:
        self.handle_any()

    def answer(self, *, cut: bool) -> None:
        body = self.body
        if self.command == "HEAD" and self.status >= 400 and self.server.names_errors:
            self.extra["x-oss-err"] = base64.b64encode(body).decode()
        self.send_response(self.status)
        for name, value in self.extra.items():
            self.send_header(name, value)
        if "Content-Length" not in self.extra:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def check_signature(self, query: str) -> None:
        """https://www.alibabacloud.com/help/en/oss/developer-reference/recommend-to-use-signature-version-4"""
        scheme, _, fields = self.headers.get("Authorization", "").partition(" ")
        if scheme != "OSS4-HMAC-SHA256":
            raise Refused(403, "AccessDenied", "Anonymous access is forbidden.")
        parts = dict(part.split("=", 1) for part in fields.split(","))
        key_id, date, region, product, kind = parts["Credential"].split("/")
        if key_id != KEY_ID or self.headers.get("x-oss-security-token") != TOKEN:
            raise Refused(403, "InvalidAccessKeyId", "The key does not exist.")
        signed = sorted(
            (name.lower(), value.strip())
            for name, value in self.headers.items()
            if name.lower().startswith("x-oss-") or name.lower() in ("content-type", "content-md5")
        )
        pairs = sorted(pair.partition("=") for pair in query.split("&") if pair)
        at = f"/{self.bucket_name}/{self.key}"
        request = [
            self.command,
            quote(at, safe="/"),
            "&".join(f"{name}={value}" if value else name for name, _, value in pairs),
            "".join(f"{name}:{value}\n" for name, value in signed),
            "",
            self.headers["x-oss-content-sha256"],
        ]
        moment = self.headers["x-oss-date"]
        text = [
            "OSS4-HMAC-SHA256",
            moment,
            f"{date}/{region}/{product}/{kind}",
            hashlib.sha256("\n".join(request).encode()).hexdigest(),
        ]
        key = b"aliyun_v4" + SECRET.encode()
        for part in (date, region, product, kind, "\n".join(text)):
            key = hmac.digest(key, part.encode(), "sha256")
        if (
            not hmac.compare_digest(key.hex(), parts["Signature"])
            or (region, product, kind) != (REGION, "oss", "aliyun_v4_request")
            or not moment.startswith(date)
        ):
            raise Refused(403, "SignatureDoesNotMatch", "The signature does not match.")

    def as_s3(self) -> None:
        """The S3 interface, as far as a probe sees it."""
        if self.command == "PUT" and "If-None-Match" in self.headers:
            message = "A header you provided implies functionality that is not implemented."
            raise Refused(501, "NotImplemented", message)
        self.status = 204 if self.command == "DELETE" else 200

    def act(self, fate: str) -> None:
        if (bucket := self.server.buckets.get(self.bucket_name)) is None:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")
        self.bucket = bucket
        md5 = self.headers.get("Content-MD5")
        if md5 and md5 != base64.b64encode(hashlib.md5(self.content).digest()).decode():
            raise Refused(400, "InvalidDigest")
        match self.command:
            case "GET" if not self.key:
                self.list()
            case "GET" | "HEAD":
                self.get()
            case "PUT" if "uploadId" in self.query:
                parts = bucket.uploads[self.query["uploadId"]]
                parts[int(self.query["partNumber"])] = self.content
                self.written(self.content)
            case "PUT":
                self.put(self.content)
            case "POST" if "delete" in self.query:
                self.delete_many(md5, 1 if fate == KEPT else 1_000)
            case "POST" if "uploads" in self.query:
                self.refuse_overwrite()
                id = secrets.token_hex(8)
                bucket.uploads[id] = {}
                self.body = (
                    f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId>"
                    "</InitiateMultipartUploadResult>"
                ).encode()
            case "POST":
                if (found := bucket.uploads.get(self.query["uploadId"])) is None:
                    raise Refused(404, "NoSuchUpload")
                self.put(b"".join(found[number] for number in sorted(found)))
                del bucket.uploads[self.query["uploadId"]]
                self.body = b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>"
            case "DELETE" if "uploadId" in self.query:
                bucket.uploads.pop(self.query["uploadId"], None)
                self.status = 204
            case "DELETE":
                bucket.remove(self.key, self.query.get("versionId"))
                self.status = 204

    def refuse_overwrite(self) -> None:
        # In a bucket that has or had versioning, the header means nothing.
        ignored = self.bucket.versioning or self.bucket.ignores_conditions
        forbidden = self.headers.get("x-oss-forbid-overwrite") == "true" and not ignored
        if forbidden and self.bucket.newest(self.key):
            raise Refused(409, "FileAlreadyExists", "The object you specified already exists.")

    def put(self, data: bytes) -> None:
        self.refuse_overwrite()
        version = self.bucket.add(self.key, data)
        self.written(data)
        if self.bucket.versioning and self.bucket.tells_versions:
            self.extra["x-oss-version-id"] = version

    def written(self, data: bytes) -> None:
        from alibabacloud_oss_v2.crc import Crc64

        crc = Crc64(0)
        crc.update(data)
        self.extra |= {"ETag": Version("null", data).etag, "x-oss-hash-crc64ecma": str(crc.sum64())}

    def get(self) -> None:
        if (found := self.bucket.newest(self.key)) is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.")
        data = found.data or b""
        self.extra = {"ETag": found.etag, "Last-Modified": format_datetime(found.modified, True)}
        if self.command == "HEAD":
            self.extra["Content-Length"] = str(len(data))
            return
        self.body = data
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if start < end:
                self.status, self.body = 206, data[start:end]
                self.extra["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            elif self.headers.get("x-oss-range-behavior") == "standard":
                raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")

    def list(self) -> None:
        prefix, after = self.query.get("prefix", ""), self.query.get("continuation-token", "")
        delimiter = self.query.get("delimiter")
        last = base64.b64decode(after).decode() if after else ""
        rows: dict[str, str] = {}
        for key in self.bucket.names():
            shown = key
            if delimiter and delimiter in key[len(prefix) :]:
                shown = prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter
            if key.startswith(prefix) and shown > last:
                rows.setdefault(shown, key)
        page = list(rows)[: min(self.server.page_max, int(self.query.get("max-keys", 100)))]
        truncated = len(page) < len(rows)
        text = [f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"]
        text.append("<EncodingType>url</EncodingType>")
        if truncated:
            token = base64.b64encode(page[-1].encode()).decode()
            text.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for shown in page:
            name, item = escape(quote(shown)), self.bucket.newest(rows[shown])
            assert item
            if shown != rows[shown]:
                text.append(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>")
                continue
            text.append(
                f"<Contents><Key>{name}</Key><Size>{len(item.data or b'')}</Size>"
                f"<LastModified>{item.modified:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
                f"<ETag>{escape(item.etag)}</ETag></Contents>"
            )
        self.body = f"<ListBucketResult>{''.join(text)}</ListBucketResult>".encode()

    def delete_many(self, md5: str | None, count: int) -> None:
        keys = [item.text or "" for item in ET.fromstring(self.content).iter("Key")]
        if not md5 or not 0 < len(keys) <= 1_000:
            raise Refused(400, "MalformedXML")
        deleted = ""
        for key in keys[:count]:
            self.bucket.remove(key, None)
            deleted += f"<Deleted><Key>{escape(quote(key))}</Key></Deleted>"
        body = f"<DeleteResult><EncodingType>url</EncodingType>{deleted}</DeleteResult>"
        self.body = body.encode()
