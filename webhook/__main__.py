"""
`python -m webhook serve`, `python -m webhook certs` and `python -m webhook conditions`.

The commands need different rights: `serve` needs none on the API server, `certs` those on one
MutatingWebhookConfiguration, and `conditions` prints what must be changed there. Every setting is a flag, an
environment variable (`GPUFRACTION_...`), or a line of the YAML file that `--settings` names; `--help` lists them.
"""

from __future__ import annotations

import datetime
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from contract.dialects import DIALECTS
from runtime import logs
from runtime.settings import SettingsError, describe, effective, load, settings_file

if TYPE_CHECKING:
    from contract.dialects.table import Dialects
    from webhook.serving.server import Service
    from webhook.settings import CertsSettings, ConditionsSettings, ServeSettings

log = logging.getLogger("webhook")

_USAGE = """usage: python -m webhook serve [flags]   answer admission reviews over TLS
       python -m webhook certs [flags]   make or renew the serving certificate
       python -m webhook conditions [flags]   print the conditions that select the webhook's pods, as a patch
"""
_HELP = ("-h", "--help", "help")


def main(
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    dialects: Dialects = DIALECTS,
) -> int:
    """Run the command; the exit status: 2 where command or settings are wrong."""
    from webhook.settings import CertsSettings, ConditionsSettings, ServeSettings

    given = sys.argv[1:] if arguments is None else list(arguments)
    env = os.environ if environment is None else environment
    command, flags = (given[0], given[1:]) if given else ("", [])
    kinds = {"serve": ServeSettings, "certs": CertsSettings, "conditions": ConditionsSettings}
    if command in _HELP or (command in kinds and any(flag in _HELP for flag in flags)):
        print(_USAGE, *(f"\n{name}:\n{describe(kind)}" for name, kind in kinds.items()), sep="")
        return 0
    if command not in kinds:
        print(f"command: found {command!r}, give serve, certs or conditions\n{_USAGE}", file=sys.stderr, end="")
        return 2
    try:
        file, flags = settings_file(flags)
        if command == "serve":
            return _serve(load(ServeSettings, file=file, env=env, argv=flags), dialects)
        if command == "conditions":
            return _conditions(load(ConditionsSettings, file=file, env=env, argv=flags), dialects)
        return _certs(load(CertsSettings, file=file, env=env, argv=flags))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2


def _set_up_log(settings: ServeSettings | CertsSettings) -> None:
    logs.setup(form=settings.log_format, level=settings.log_level, stream=sys.stderr)
    log.info("starting", extra=effective(settings))


def _serve(settings: ServeSettings, dialects: Dialects) -> int:
    from webhook.serving.server import serve
    from webhook.serving.tls import NoAuthority, ServingContext

    _set_up_log(settings)
    try:
        ServingContext(settings.certificates, client_ca=settings.client_ca).current()
    except NoAuthority as error:
        log.error("the authorities of client certificates cannot be read", extra={"reason": str(error)})
        return 1
    except OSError as error:
        log.error(
            "there is no usable serving certificate; `python -m webhook certs` creates one",
            extra={"directory": str(settings.certificates), "reason": str(error)},
        )
        return 1

    def make() -> Service:
        from webhook.app import make_app  # in the serving process only

        return make_app(settings, dialects)

    try:
        serve(settings, make)
    except OSError as error:
        log.error("cannot listen", extra={"listen": settings.listen, "reason": str(error)})
        return 1
    return 0


def _conditions(settings: ConditionsSettings, dialects: Dialects) -> int:
    from contract import names
    from contract.options import pool_options
    from runtime.livefile import yaml_file
    from webhook.certificates.configuration import patch

    file = yaml_file(settings.options, pool_options)
    options = file.value()
    if options is None:
        raise SettingsError([f"options: {file.trouble}"])
    renamed = options.cluster.renamed
    print(patch(names.CONFIGURATION, renamed, hide_gpus=settings.hide_gpus, dialects=dialects), end="")
    return 0


def _certs(settings: CertsSettings) -> int:
    from contract import names
    from contract.options import NO_OPTIONS, pool_options
    from runtime.kubernetes.client import Kube
    from runtime.livefile import yaml_file
    from runtime.process import Process
    from webhook.certificates.authority import Lives
    from webhook.certificates.keeper import Ensure
    from webhook.certificates.store import Secret, Store

    _set_up_log(settings)
    options = yaml_file(settings.options, pool_options)

    def connect() -> Kube:
        return Kube.connect(kubeconfig=settings.kubeconfig or None, user_agent="gpufraction-certs")

    def store() -> Store:
        if not settings.secret:
            return settings.directories()
        return Secret(connect(), names.NAMESPACE, settings.secret, settings.directories())

    ensure = Ensure(
        store=store,
        names=settings.dns_names(),
        configuration=settings.configuration,
        connect=connect,
        renamed=lambda: (options.value() or NO_OPTIONS).cluster.renamed,
        lives=Lives(leaf=datetime.timedelta(days=settings.days)),
    )
    if not settings.every:
        return ensure.once()
    ensure = replace(ensure, say=log.info)  # a pod's log has lines of one form
    process = Process()
    process.handle_signals()
    ensure.until(process.stop, every=settings.every)
    return process.wait()


if __name__ == "__main__":
    sys.exit(main())
