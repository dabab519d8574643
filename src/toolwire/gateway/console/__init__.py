"""The console: a page that shows live what clients asked, what models wrote, and what was changed on the way.

    trace (turns/trace.py)   references to the bytes of one turn while it runs
    watch.py                 takes traces, keeps a row for every turn, and the whole of those there is time for
    keep.py                  a trace without its secrets, as it is kept
    ring.py                  what is kept, bounded in bytes
    reading.py, views.py     what is kept, as the page shows it
    access.py, routes.py     who may look, and the paths
    static/                  the page: plain modules and one style sheet, no build step

Nothing that a client or a model sent is kept before secrets are removed from it.
"""
