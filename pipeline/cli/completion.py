"""`feedline completion`, and the parameter types whose values a shell completes."""

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


_COMPLETION_CLASSES = {"bash": _Bash, "zsh": _Zsh, "fish": FishComplete}


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(tuple(_COMPLETION_CLASSES)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets the shell complete commands and options.

    Choices, paths, splits, ops and settings are completed, too. The script calls this program at every TAB, so it
    needs no update. Bash must be 4.4 or newer; in zsh, compinit must have run.

    \b
    Examples:
      feedline completion bash

    \b
    To enable completion in every new shell:
      bash  echo 'eval "$(feedline completion bash)"' >> ~/.bashrc
      zsh   echo 'eval "$(feedline completion zsh)"' >> ~/.zshrc
      fish  feedline completion fish > ~/.config/fish/completions/feedline.fish
    """
    root = context.find_root()
    completer = _COMPLETION_CLASSES[shell](root.command, {}, "feedline", "_FEEDLINE_COMPLETE")
    click.echo((completer.source_template % completer.source_vars()).strip())  # `source()` would start bash


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
        """Returns the chain with each op whose name begins like the last name in it."""
        return [CompletionItem(chain) for chain in _complete_chains(incomplete)]


class Assignment(click.ParamType):
    """A setting and its value, such as `train.epochs=20`; the value stays text."""

    name = "assignment"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the settings, each followed by `=`; after `=`, the chains of ops if the setting is a chain."""
        key, equals, value = incomplete.partition("=")
        if equals:
            chains = _complete_chains(value) if key.endswith("_ops") else []
            return [CompletionItem(f"{key}={chain}") for chain in chains]
        return [CompletionItem(f"{name}=") for name in _setting_keys() if name.startswith(key)]


def _complete_chains(incomplete: str) -> list[str]:
    """Returns the chain once for each op that completes the last, partial name."""
    prefix, separator, partial_name = incomplete.rpartition("|")
    return [f"{prefix}{separator}{name}" for name in OPS if name.startswith(partial_name)]


def _setting_keys() -> list[str]:
    """Returns the dotted keys of all settings, without sections, in the order of docs/pipeline-yaml.md."""
    from pipeline.config import TARGET_SECTIONS
    from pipeline.settings import known_settings

    sections = [*known_settings.sections(), *TARGET_SECTIONS]
    keys = [f"{section}.{name}".lstrip(".") for section in sections for name in known_settings.names(section)]
    return [key for key in keys if not known_settings.is_section(key)]


OP_CHAIN = OpChain()
ASSIGNMENT = Assignment()
