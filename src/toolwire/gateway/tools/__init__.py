"""Gateway tools: tools that the gateway runs itself, between two turns of the model.

Of the operator's tools the client sees no calls, only the answer. A search for tools, which is run here for a backend
that knows none, is shown as its dialect has it. Calls of the client's own tools still go to the client.
"""
