"""Names that try to be markup, every way there is, and what a page looks like that took one for it."""

from __future__ import annotations

from collections.abc import Iterator

_RUN = "window.hacked=1"
# Short enough for no page to cut one.
NAMES = (
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"</title><script>{_RUN}</script>",
    f"</style><script>{_RUN}</script>",
    f"--><script>{_RUN}</script>",
    f"]]><script>{_RUN}</script>",
    f"</select><script>{_RUN}</script>",
    f"</svg><svg onload={_RUN}>",
    f"\"'><img src=x onerror={_RUN}>",
    f'" onmouseover={_RUN} x="',
    f"' autofocus onfocus={_RUN} x='",
    f" tabindex=0 onfocus={_RUN} autofocus",
    f"`${{{_RUN}}}`",
    f"javascript:{_RUN}",
    f"<a href=javascript:{_RUN}>link</a>",
    f"<iframe src=javascript:{_RUN}>",
    "<base href=http://evil.invalid/>",
    "<meta http-equiv=refresh content=0;http://evil.invalid>",
    "<style>@import 'http://evil.invalid'</style>",
    "<form action=http://evil.invalid><button>",
    "<link rel=stylesheet href=http://evil.invalid>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;script&gt;&#60;b&#62;",
)
# Elements and attributes that no page of ours has.
_FOREIGN = "iframe, object, embed, base, form, meta[http-equiv=refresh], link[rel=stylesheet], [style]"

_ATTRIBUTES = """
[...document.querySelectorAll("*")].flatMap(one => [...one.attributes])
  .filter(({ name, value }) => name.startsWith("on")
    || /^(src|href|action|xlink:href)$/.test(name) && !/^(#|data:(image|,))/.test(value))
  .map(({ name, value }) => `${name}=${value.slice(0, 80)}`)
"""


def foreign(page) -> Iterator[str]:
    """Yields what a page of Playwright holds that its templates do not."""
    yield from page.locator(_FOREIGN).evaluate_all("all => all.map(one => one.outerHTML.slice(0, 200))")
    yield from page.evaluate(_ATTRIBUTES)
