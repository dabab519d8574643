"""The console: a page that shows live what clients send, what models write, and what was changed on the way.

    trace.py, recorder.py      references to the bytes of running turns
    ring.py, rows.py           all turns that are kept, bounded in bytes: metadata, and the raw content of some
    content.py, secrets.py     content without secrets, made when a turn is first viewed
    turn_view.py               one turn
    prompts.py                 its prompt and excerpts, from which conversations.py makes conversations
    statistics.py              counts of turns
    store_browser.py           responses in the store
    replays.py, backends.py    requests that the console sends itself, and checks of backends
    access.py, routes.py       sign-in, and the paths
    api.py                     answers for all processes, from those that handlers.py gives in each; fan_out.py asks
    static/                    the page: plain modules and one style sheet, no build step

Nothing that a client or a model sent is shown, or leaves the process, before secrets are removed from it.
"""
