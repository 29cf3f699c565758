"""
`kubectl gpufraction completion bash|zsh|fish|kubectl`: scripts that complete words on the command line.

The scripts run `kubectl gpufraction __complete WORD...` (the last word is being typed), which prints one candidate per
line and then a directive: `:4`, or `:0` if the shell should offer files. kubectl's own completion runs a program
`kubectl_complete-gpufraction` in the same way; `completion kubectl` prints it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kubectl_gpufraction.cluster.state import inventory_of, pod_of
from kubectl_gpufraction.cluster.targets import KINDS
from kubectl_gpufraction.output import jsonpath
from kubectl_gpufraction.output.forms import FORMS, CommandOutput
from kubectl_gpufraction.session import OUTPUT, Command, Failed, Session
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError

FILES, NO_FILES = ":0", ":4"
Objects = Callable[[str], Iterable[str]]
"""The cluster's objects for a word (`POD`, `NODE`, ...): the `metavar` of an argument."""

_BASH = """\
# Completion of kubectl gpufraction. In ~/.bashrc, after kubectl's own: source <(kubectl gpufraction completion bash)
__gpufraction_complete() {
    local first=1 line directive=4
    [[ ${COMP_WORDS[0]##*/} == kubectl ]] && first=2
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :*) directive=${line#:} ;;
            *) COMPREPLY+=("$line") ;;
        esac
    done < <(kubectl gpufraction __complete "${COMP_WORDS[@]:first:COMP_CWORD-first+1}" 2>/dev/null)
    if [[ $directive == 0 ]]; then compopt -o default 2>/dev/null; fi
}
__gpufraction_of_kubectl() {
    if [[ $COMP_CWORD -ge 2 && ${COMP_WORDS[1]} == gpufraction ]]; then
        __gpufraction_complete
    elif declare -F __start_kubectl >/dev/null; then
        __start_kubectl "$@"
    fi
}
complete -F __gpufraction_complete kubectl-gpufraction
complete -o default -F __gpufraction_of_kubectl kubectl
"""
_ZSH = """\
# Completion of kubectl gpufraction. In ~/.zshrc, after compinit and kubectl's own:
# source <(kubectl gpufraction completion zsh)
_gpufraction() {
    local -a found
    local line directive=4 first=2
    [[ ${words[1]:t} == kubectl ]] && first=3
    for line in "${(@f)$(kubectl gpufraction __complete "${(@)words[first,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            :*) directive=${line#:} ;;
            ?*) found+=("$line") ;;
        esac
    done
    compadd -- $found
    if [[ $directive == 0 ]]; then _files; fi
}
_gpufraction_of_kubectl() {
    if (( CURRENT > 2 )) && [[ ${words[2]} == gpufraction ]]; then
        _gpufraction
    elif (( $+functions[_kubectl] )); then
        _kubectl "$@"
    fi
}
compdef _gpufraction kubectl-gpufraction
compdef _gpufraction_of_kubectl kubectl
"""
_FISH = """\
# Completion of kubectl gpufraction. In ~/.config/fish/config.fish: kubectl gpufraction completion fish | source
function __gpufraction_complete
    set -l words (commandline -opc)
    set -l now (commandline -ct)
    set -e words[1]
    if test "$words[1]" = gpufraction
        set -e words[1]
    end
    for line in (kubectl gpufraction __complete $words "$now" 2>/dev/null)
        switch $line
            case :0
                __fish_complete_path "$now"
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c kubectl -n 'test (count (commandline -opc)) -ge 2; and test (commandline -opc)[2] = gpufraction' -f \\
    -a '(__gpufraction_complete)'
complete -c kubectl-gpufraction -f -a '(__gpufraction_complete)'
"""
_KUBECTL = """\
#!/bin/sh
# kubectl 1.26 and newer ask this program how to complete kubectl gpufraction. Save it in a folder of PATH as
# kubectl_complete-gpufraction, and make it executable.
exec kubectl gpufraction __complete "$@"
"""
SCRIPTS: Mapping[str, str] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH, "kubectl": _KUBECTL}


def candidates(
    commands: Mapping[str, Sequence[argparse.Action]],
    common: Sequence[argparse.Action],
    words: Sequence[str],
    objects: Objects,
) -> list[str]:
    """The candidates for the last of the words, and the directive. `common`: the options of every command."""
    *before, last = words or [""]
    waiting: argparse.Action | None = None
    command, positional, known = "", 0, list(common)
    for word in before:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            option = _option(known, word)
            waiting = option if option is not None and option.nargs != 0 and "=" not in word else None
        elif not command:
            command = word
            known += commands.get(command, ())
        else:
            positional += 1
    if waiting is not None:
        return _values(waiting, last, objects)
    if last.startswith("-") and "=" in last:
        flag, _, part = last.partition("=")
        found = _values(_option(known, flag), part, objects)
        return [each if each in (FILES, NO_FILES) else f"{flag}={each}" for each in found]
    if last.startswith("-"):
        offered = commands.get(command, known)
        return _starting({flag for each in offered for flag in each.option_strings if flag.startswith("--")}, last)
    if not command:
        return _starting(commands, last)
    return _values(_argument([each for each in known if not each.option_strings], positional), last, objects)


def _argument(arguments: Sequence[argparse.Action], position: int) -> argparse.Action | None:
    """The argument in this place; the last one takes all that follow if it may be given several times."""
    if position < len(arguments):
        return arguments[position]
    return arguments[-1] if arguments and arguments[-1].nargs in ("*", "+") else None


def _option(known: Iterable[argparse.Action], flag: str) -> argparse.Action | None:
    flag = flag.partition("=")[0]
    return next((each for each in known if flag in each.option_strings), None)


def _values(action: argparse.Action | None, last: str, objects: Objects) -> list[str]:
    """The values of an option or an argument."""
    if action is None:
        return [NO_FILES]
    if action.dest == "output":
        return _starting((*FORMS, jsonpath.PREFIX), last)
    if action.choices is not None:
        return _starting(map(str, action.choices), last)
    if action.dest in ("filename", "kubeconfig"):
        return [FILES]
    word = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return _starting(objects(word), last)


def _starting(found: Iterable[str], last: str) -> list[str]:
    return [*sorted(each for each in set(found) if each.startswith(last)), NO_FILES]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="a shell, or kubectl for kubectl_complete-gpufraction")


def script(shell: str) -> CommandOutput:
    """The script for a shell. It needs no cluster."""
    return CommandOutput(
        rows=[{"shell": shell, "script": SCRIPTS[shell]}], exact=SCRIPTS[shell], names=[f"completion/{shell}"]
    )


def objects_of(session: Session, words: Sequence[str]) -> Objects:
    """The cluster's objects for an argument; none if it gives no answer."""

    def found(metavar: str) -> Iterable[str]:
        kinds = [f"{kind}/" for kind in KINDS] if metavar.startswith("POD|") else []
        try:
            if metavar == "NODE":
                return [_name(each) for each in session.gpunodes()]
            if metavar == "GPU":
                nodes = (inventory_of(each, {}) for each in session.gpunodes() if _name(each) in words)
                return [str(gpu.index) for node in nodes if node is not None for gpu in node.gpus]
            if metavar == "NAMESPACE":
                return [_name(each) for each in session.items(paths.path("v1", "namespaces"))]
            if metavar in ("NAME",) or metavar.startswith("POD"):
                raw = session.items(paths.pods(session.namespace))
                return [*(_name(each) for each in raw if pod_of(each) is not None), *kinds]
        except (KubeError, Failed):
            pass
        return kinds

    return found


def _name(found: Mapping[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("name", ""))


COMMAND = Command(
    "completion",
    "print the completion script for bash, zsh, fish or kubectl",
    lambda session: script(session.given.shell),
    _arguments,
    flags=OUTPUT,
    example="""\
# In ~/.bashrc, after kubectl's own completion
source <(kubectl gpufraction completion bash)
# For every shell that kubectl completes in itself
kubectl gpufraction completion kubectl > ~/.local/bin/kubectl_complete-gpufraction""",
)
