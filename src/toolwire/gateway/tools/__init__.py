"""Gateway tools: tools that the gateway runs itself, between two turns of the model.

Of the operator's tools the client sees the answer only, no calls. A search for tools, which the gateway runs for a
backend that has none, is shown in the client's dialect. Calls of the client's own tools still go to the client.
"""
