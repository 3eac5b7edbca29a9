"""`jfluid completion`: functions by which shells complete the command, made from its parsers."""

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from jfluid import command

_EPILOG = """bash, in ~/.bashrc:      eval "$(jfluid completion bash)"
zsh, in ~/.zshrc:        eval "$(jfluid completion zsh)"
fish, in config.fish:    jfluid completion fish | source"""


def main(arguments: Sequence[str]) -> int:
    """Print the functions for one shell; returns 0."""
    options = arguments_parser().parse_args(arguments)
    print(_SHELLS[options.shell]())
    return 0


def arguments_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = argparse.ArgumentParser(
        prog="jfluid completion",
        description="Prints what completes the command in a shell: subcommands, options, files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=sorted(_SHELLS))
    return parser


def _actions(name: str) -> list[argparse.Action]:
    """Return the arguments of a subcommand; an empty list for a subcommand without options."""
    make = getattr(command.module_of(name), "arguments_parser", None)
    return [] if make is None else list(make()._actions)


def _words(name: str) -> Iterator[str]:
    """Return the options of a subcommand, and the choices of the positional arguments."""
    for action in _actions(name):
        yield from action.option_strings
        if not action.option_strings:
            yield from action.choices or ()


def _values(name: str) -> Mapping[str, Sequence[str]]:
    """Return the choices of options."""
    return {
        option: [str(choice) for choice in action.choices]
        for action in _actions(name)
        if action.choices
        for option in action.option_strings
    }


def _bash() -> str:
    lines = [
        "_jfluid() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
        "    COMPREPLY=()",
        "    if ((COMP_CWORD == 1)); then",
        f'        words="{" ".join([*command.SUBCOMMANDS, "--help", "--version"])}"',
        "    else",
        '        case "${COMP_WORDS[1]} $before" in',
    ]
    for name in command.SUBCOMMANDS:
        for option, values in _values(name).items():
            lines.append(f'            "{name} {option}") words="{" ".join(values)}" ;;')
    lines += ["        esac", '        if [[ -z $words ]]; then case "${COMP_WORDS[1]}" in']
    for name in command.SUBCOMMANDS:
        if words := " ".join(_words(name)):
            lines.append(f'            {name}) words="{words}" ;;')
    lines += [
        "        esac; fi",
        "    fi",
        '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _jfluid jfluid",
    ]
    return "\n".join(lines)


def _zsh() -> str:
    described = " ".join(shlex.quote(f"{name}:{summary}") for name, summary in command.SUBCOMMANDS.items())
    lines = [
        "#compdef jfluid",
        "_jfluid() {",
        "    local -a subcommands words_here",
        f"    subcommands=({described})",
        "    if (( CURRENT == 2 )); then _describe subcommand subcommands; return; fi",
        '    case "$words[2] $words[CURRENT-1]" in',
    ]
    for name in command.SUBCOMMANDS:
        for option, values in _values(name).items():
            lines.append(f'        "{name} {option}") compadd -- {" ".join(values)}; return ;;')
    lines += ["    esac", '    case "$words[2]" in']
    for name in command.SUBCOMMANDS:
        if words := " ".join(_words(name)):
            lines.append(f"        {name}) words_here=({words}) ;;")
    lines += [
        "    esac",
        "    compadd -- $words_here",
        "    [[ $PREFIX == -* ]] || _files",
        "}",
        "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }",
        "compdef _jfluid jfluid",
    ]
    return "\n".join(lines)


def _fish() -> str:
    lines = [
        f"complete -c jfluid -n __fish_use_subcommand -f -a {name} -d {shlex.quote(summary)}"
        for name, summary in command.SUBCOMMANDS.items()
    ]
    lines.append("complete -c jfluid -n __fish_use_subcommand -l version -d 'the versions'")
    for name in command.SUBCOMMANDS:
        here = f"complete -c jfluid -n '__fish_seen_subcommand_from {name}'"
        for action in _actions(name):
            values = shlex.quote(" ".join(map(str, action.choices or ())))
            if not action.option_strings:
                lines += [f"{here} -f -a {values}"] if action.choices else []
                continue
            flags = " ".join(_fish_flag(option) for option in action.option_strings)
            takes = "" if action.nargs == 0 else f" -r -f -a {values}" if action.choices else " -r"
            about = (action.help or "").replace("%(default)s", str(action.default))
            lines.append(f"{here} {flags}{takes} -d {shlex.quote(about)}")
    return "\n".join(lines)


def _fish_flag(option: str) -> str:
    return f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"


_SHELLS: Mapping[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
