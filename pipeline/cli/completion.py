"""`feedline completion`, and the values that it completes."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from pipeline.cli.click_groups import Command


class _Bash(BashComplete):
    """Adds no space behind completions that end in `=`, such as `train.epochs=`; fish does so by default."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n",
        "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n\n    return 0\n",
    )


class _Zsh(ZshComplete):
    """Adds no space behind completions that end in `=`."""

    source_template = ZshComplete.source_template.replace(
        "        compadd -U -V unsorted -a completions\n",
        "        local end=' '\n"
        "        [[ $completions[1] == *= ]] && end=''\n"
        '        compadd -U -S "$end" -V unsorted -a completions\n',
    )


_CLASSES = {"bash": _Bash, "zsh": _Zsh, "fish": FishComplete}


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(tuple(_CLASSES)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets the shell complete commands and options.

    Choices, paths, splits, ops and settings are completed, too. The script asks this program at every TAB, so it
    needs no update. Bash must be 4.4 or newer; in zsh, compinit must have run.

    \b
    Examples:
      feedline completion bash

    \b
    To have it in every shell from now on:
      bash  echo 'eval "$(feedline completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(feedline completion zsh)"' >> ~/.zshrc
      fish  feedline completion fish > ~/.config/fish/completions/feedline.fish
    """
    root = context.find_root()
    script = _CLASSES[shell](root.command, {}, "feedline", "_FEEDLINE_COMPLETE")
    click.echo((script.source_template % script.source_vars()).strip())  # `source()` would run bash for its version


# The names of `trainer.ops.OPS`, whose import loads TensorFlow and is too slow for a completion.
OPS = (
    "center_crop",
    "color_jitter",
    "cutmix",
    "cutout",
    "decode",
    "decode_random_crop",
    "flip",
    "flip_vertical",
    "mixup",
    "multi_crop",
    "normalize",
    "pad_reflect",
    "rand_augment",
    "random_crop",
    "random_crop_resize",
    "resize",
    "resize_short",
    "rotate",
)


class OpChain(click.ParamType):
    """A chain of ops, such as `decode|resize(32)|flip`; the value stays text."""

    name = "ops"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the chain, completed by each op that its last name may be."""
        return [CompletionItem(chain) for chain in _chains(incomplete)]


class Assignment(click.ParamType):
    """A setting and its value, such as `train.epochs=20`; the value stays text."""

    name = "assignment"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the settings, each followed by `=`; after `=`, the values of settings of ops."""
        key, equals, value = incomplete.partition("=")
        if equals:
            chains = _chains(value) if key.endswith("_ops") else []
            return [CompletionItem(f"{key}={chain}") for chain in chains]
        return [CompletionItem(f"{name}=") for name in _settings() if name.startswith(key)]


def _chains(incomplete: str) -> list[str]:
    prefix, bar, last = incomplete.rpartition("|")
    return [f"{prefix}{bar}{name}" for name in OPS if name.startswith(last)]


def _settings() -> list[str]:
    """Returns the dotted keys of all settings, without sections, in the order of docs/pipeline-yaml.md."""
    from pipeline.config import TARGET_SECTIONS
    from pipeline.settings import known_settings

    sections = [*known_settings.sections(), *TARGET_SECTIONS]
    keys = [f"{section}.{name}".lstrip(".") for section in sections for name in known_settings.names(section)]
    return [key for key in keys if not known_settings.is_section(key)]


OP_CHAIN = OpChain()
ASSIGNMENT = Assignment()
