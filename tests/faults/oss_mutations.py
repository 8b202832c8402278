"""Deliberate defects of the driver for OSS. See `tests.faults.mutations`."""

from __future__ import annotations

from tests.faults.mutation import Mutation

_DRIVER = "storage_backends/oss.py"
_TESTS = "tests/storage/test_oss.py"

OF_OSS = (
    Mutation(
        "a create on OSS has no condition",
        _DRIVER,
        "forbid_overwrite=True if create else None",
        "forbid_overwrite=None",
        f"{_TESTS}::test_the_answer_to_a_create_is_lost",
    ),
    Mutation(
        "OSS may create a version",
        _DRIVER,
        "        if create and version:\n",
        "        if False:\n",
        f"{_TESTS}::test_a_create_after_versioning_was_enabled_uncovers_the_other_object",
    ),
    Mutation(
        "OSS is refused without the reason",
        "storage_backends/registry.py",
        'ignoring="a bucket that has or had versioning does so",',
        'ignoring="",',
        f"{_TESTS}::test_a_bucket_with_versioning_is_refused_by_name_and_reason",
    ),
    Mutation(
        "a create on OSS that is refused covers another object",
        _DRIVER,
        'if version != "null":',
        'if version == "null":',
        f"{_TESTS}::test_a_create_after_versioning_was_enabled_uncovers_the_other_object",
    ),
    Mutation(
        "a range after the end is all of an object of OSS",
        _DRIVER,
        'range_behavior="standard",',
        "range_behavior=None,",
        f"{_TESTS}::test_oss_keeps_every_promise",
    ),
    Mutation(
        "an answer of OSS that ends early is not asked for again",
        _DRIVER,
        "READS_MAX = 3\n",
        "READS_MAX = 1\n",
        f"{_TESTS}::test_an_answer_that_ends_early_is_read_again",
    ),
    Mutation(
        "a listing of OSS ends with its first page",
        _DRIVER,
        "        while (page := ",
        "        if (page := ",
        f"{_TESTS}::test_oss_keeps_every_promise",
    ),
    Mutation(
        "by a 404 of any server, an object of OSS is absent",
        _DRIVER,
        "cause.status_code == 404 and cause.request_id",
        "cause.status_code == 404",
        f"{_TESTS}::test_no_file_is_absent_that_cannot_be_asked_for[exists]",
    ),
    Mutation(
        "objects of OSS that were not deleted are forgotten",
        _DRIVER,
        "            if kept := keys - ",
        "            if kept := set() - ",
        f"{_TESTS}::test_objects_that_are_not_deleted_at_once_are_deleted_singly",
    ),
    Mutation(
        "the S3 interface of OSS only fails",
        "storage_backends/objects.py",
        "                if status == 501:\n",
        "                if False:\n",
        f"{_TESTS}::test_the_s3_interface_of_oss_names_the_right_scheme",
    ),
)
