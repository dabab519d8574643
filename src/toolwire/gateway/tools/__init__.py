"""Gateway tools: tools of the operator that the gateway runs itself, between two turns of the model.

The client sees the answer and none of their calls. Calls of its own tools still go to the client.
"""

from toolwire.gateway.tools.tools import GatewayTools as GatewayTools
