"""The console: a page that shows live what clients send, what models write, and what was changed on the way.

    trace                      references to the bytes of one turn while it runs
    recorder.py, ring.py       rows of all turns and the raw content of some, bounded in bytes
    stored_trace.py            content without secrets, made when a turn is first viewed
    turn_view.py, prompts.py   what the page shows of it
    access.py, routes.py       sign-in, and the paths
    fan_out.py                 the same questions to the other worker processes
    static/                    the page: plain modules and one style sheet, no build step

Nothing that a client or a model sent is shown, or leaves the process, before secrets are removed from it.
"""
