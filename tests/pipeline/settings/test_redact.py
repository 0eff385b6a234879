from __future__ import annotations

import pytest

from beam_jobs.common.strings import hide_secrets
from tests.command import python


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
        ("a=token=abc, my.secret_v2 = x;1http://me:pw@host", "a=token=***, my.secret_v2 = ***;1http://me:***@host"),
    ],
)
def test_secrets_and_nothing_else_are_left_out(value, hidden):
    assert hide_secrets(value) == hidden
    assert hide_secrets(hidden) == hidden


@pytest.mark.parametrize("text", ["x", "-", "a:", "token_", "a=", "a ", "http://a:", "="])
def test_a_megabyte_takes_a_moment(text):
    program = f"from beam_jobs.common.strings import hide_secrets; hide_secrets({text!r} * 1_000_000)"
    python(program, check=True, timeout=30)
