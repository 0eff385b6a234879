from __future__ import annotations

import pytest

from beam_jobs.common.strings import hide_secrets


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("https://me:pa:ss@w@host:80/a@b?x=1", "https://me:***@host:80/a@b?x=1"),
        ("http://host/a:b@c", "http://host/a:b@c"),
        (
            "https://host/a?X-Amz-Signature=abc&X-Amz-Date=2&AWSAccessKeyId=AK&sig=x%2F",
            "https://host/a?X-Amz-Signature=***&X-Amz-Date=2&AWSAccessKeyId=***&sig=***",
        ),
        ("--set kubeflow.token=abc root=work", "--set kubeflow.token=*** root=work"),
        ("max_tokens=3 design=4 tokenizer=5 key=6", "max_tokens=3 design=4 tokenizer=5 key=6"),
        (["--password", "abc", "--images", "photos"], ["--password", "***", "--images", "photos"]),
        ({"api_key": "abc", "label": "kind", "token": ""}, {"api_key": "***", "label": "kind", "token": ""}),
        (b"token=abc", b"token=abc"),
    ],
)
def test_secrets_and_nothing_else_are_left_out(value, hidden):
    assert hide_secrets(value) == hidden
    assert hide_secrets(hidden) == hidden
