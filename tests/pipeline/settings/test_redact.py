from __future__ import annotations

import pytest

from pipeline.settings.redact import hide


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("https://me:pa:ss@w@host:80/a@b?x=1", "https://me:***@host:80/a@b?x=1"),
        ("http://proxy:8080", "http://proxy:8080"),
        ("http://host/a:b@c", "http://host/a:b@c"),
        ("s3://bucket/{SPAN}/*.jpg", "s3://bucket/{SPAN}/*.jpg"),
        (
            "https://host/a?X-Amz-Signature=abc&X-Amz-Date=2&token=d",
            "https://host/a?X-Amz-Signature=***&X-Amz-Date=2&token=***",
        ),
        ("https://host/a?AWSAccessKeyId=AK&sig=x%2F", "https://host/a?AWSAccessKeyId=***&sig=***"),
        ("--s3_secret_access_key=abc", "--s3_secret_access_key=***"),
        ("--set kubeflow.token=abc root=work", "--set kubeflow.token=*** root=work"),
        ("max_tokens=3 design=4 tokenizer=5 key=6", "max_tokens=3 design=4 tokenizer=5 key=6"),
        ("mixup(alpha=0.2)|flip", "mixup(alpha=0.2)|flip"),
        (["--password", "abc", "--images", "photos"], ["--password", "***", "--images", "photos"]),
        (("--api-key", "abc"), ("--api-key", "***")),
        ({"api_key": "abc", "label": "kind", "token": ""}, {"api_key": "***", "label": "kind", "token": ""}),
        ({"columns": {"key": "id"}, "urls": ["a://b:c@d"]}, {"columns": {"key": "id"}, "urls": ["a://b:***@d"]}),
        ({"max_tokens": 3, "token": 3}, {"max_tokens": 3, "token": 3}),
        (None, None),
        (b"token=abc", b"token=abc"),
        (0.5, 0.5),
    ],
)
def test_secrets_and_nothing_else_are_left_out(value, hidden):
    assert hide(value) == hidden
    assert hide(hidden) == hidden
