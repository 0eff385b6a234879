"""A strict YAML parser: a key may occur only once in a mapping, `1e-3` is a number and `off` is a text.

The size of a document is limited after its aliases are expanded: ten lines of aliases can expand to a billion values.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, TextIO

import yaml

MAX_CHARACTERS = 1 << 20
MAX_VALUES = 100_000  # of a document with its aliases expanded
MAX_DEPTH = 64


def parse(text: str | TextIO) -> Any:
    """Returns the value of the document in a text.

    Raises:
      yaml.YAMLError: the text is not YAML, a mapping has a key twice, or the document exceeds a limit.
    """
    content = text if isinstance(text, str) else text.read(MAX_CHARACTERS + 1)
    if len(content) > MAX_CHARACTERS:
        raise yaml.YAMLError(f"it has more than {MAX_CHARACTERS:,} characters")
    try:
        return yaml.load(content, Loader=_Loader)  # noqa: S506 - a safe loader, see below
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None


def parse_value(text: str, wants_text: bool) -> Any:
    """Returns the value of a setting.

    Args:
      text: the value as typed.
      wants_text: whether the setting is text, so that a number stays the text as typed.

    Raises:
      yaml.YAMLError: the text is not YAML.
    """
    value = parse(text)
    is_converted = not isinstance(value, (str, list, dict)) and (value is not None or not text.strip())
    return text.strip() if wants_text and is_converted else value


def one_line(value: Any) -> str:
    """Returns a value as a single line of YAML; values of unknown types are written as text."""
    dumped: str = yaml.dump(
        _to_plain_types(value),
        Dumper=_Dumper,
        default_flow_style=True,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
    )
    return dumped.removesuffix("...\n").strip()


def _to_plain_types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain_types(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain_types(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes a text with line feeds as one line."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)

_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, tuple[int, int]] = {}  # id of each complete node -> number of values, depth

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None or is_alias:
            if node is not None and id(node) not in self._sizes:
                raise yaml.composer.ComposerError(None, None, "it contains an alias of itself", node.start_mark)
            return node
        children = node.value if isinstance(node, yaml.CollectionNode) else ()
        sizes = [
            self._sizes[id(part)] for child in children for part in (child if isinstance(child, tuple) else (child,))
        ]
        values, depth = 1 + sum(size for size, _ in sizes), 1 + max((part_depth for _, part_depth in sizes), default=0)
        if values > MAX_VALUES or depth > MAX_DEPTH:
            message = _TOO_DEEP if depth > MAX_DEPTH else f"with its aliases it has more than {MAX_VALUES:,} values"
            raise yaml.composer.ComposerError(None, None, message, node.start_mark)
        self._sizes[id(node)] = values, depth
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                # PyYAML would silently use the last value.
                message = f"the key {key.value!r} is a duplicate"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, in which `off` is false and a number with an exponent needs a point. As in YAML 1.2, `off` is
# text here and `1e-3` a number: `near_duplicates: off`, `learning_rate: 1e-3`.
_Loader.yaml_implicit_resolvers = {
    character: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
