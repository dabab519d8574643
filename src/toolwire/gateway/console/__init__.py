"""The console: a page that shows turns live: the client's request, the model's output, and the changes in between.

    trace.py, recorder.py      references to the bytes of running turns
    ring.py, rows.py           the turns in memory, bounded in bytes: metadata, and the raw content of some
    content.py, secrets.py     content with its secrets removed, when a turn is first viewed
    turn_view.py               one turn
    prompts.py                 its prompt and excerpts, from which conversations.py makes conversations
    search.py                  finds turns by their texts
    statistics.py              counts of turns
    store_browser.py           responses in the store
    replays.py, backends.py    requests sent by the console, and checks of backends
    access.py, routes.py       sign-in, and the paths
    api.py                     merges the answers that handlers.py gives in each process; fan_out.py collects them
    static/                    the page: plain modules and one style sheet, no build step

Nothing that a client or a model sent is shown, or leaves the process, before secrets are removed from it.
"""
