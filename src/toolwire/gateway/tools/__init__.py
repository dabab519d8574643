"""Gateway tools: tools that the gateway runs itself, between two turns of the model.

The client sees no calls of the operator's tools, only the answer. A search for tools, which the gateway runs for a
backend without tool search, is shown in the client's dialect. Calls of the client's own tools still go to the client.
"""
