"""`feedline completion`."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from pipeline.cli.click_groups import Command


class _Bash(BashComplete):
    """Without a blank behind what wants a value, as `train.epochs=`; fish knows that by itself."""

    source_template = BashComplete.source_template.replace(
        "    return 0\n",
        "    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace\n\n    return 0\n",
    )


class _Zsh(ZshComplete):
    """The same for zsh, which adds what `-S` says."""

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
    click.echo((script.source_template % script.source_vars()).strip())  # `source` would ask which bash there is
