"""`toolwire models`: the names that can be asked for, by backend."""

import click

from toolwire.cli.options import config_option, json_option, say, stop, stops_on


@click.command()
@click.argument("backend", default="", help="Only this backend, with everything that its server has.")
@json_option
@config_option
def models(backend: str, json: bool, config: str | None) -> None:
    """List the models and aliases of every backend; servers are asked where globs are configured."""
    import asyncio

    import msgspec

    from toolwire.cli.listing import ask, lines
    from toolwire.config.decode import did_you_mean, sentence
    from toolwire.config.settings import SettingsError, load

    with stops_on(SettingsError):
        settings = load(config)
    names = [each.name for each in settings.backends]
    if backend and backend not in names:
        hint = did_you_mean(backend, names) or f"there are {', '.join(names)}"
        raise stop(sentence(f"models: there is no backend {backend!r}", hint))
    listed = asyncio.run(ask(settings, backend))
    if json:
        print(msgspec.json.format(msgspec.json.encode({"backends": listed}), indent=2).decode())
    else:
        for line in lines(listed):
            print(line)
        for each in listed:
            if each.error:
                say(f"{each.name}: {each.error}")
    raise click.exceptions.Exit(1 if backend and listed[0].error else 0)
