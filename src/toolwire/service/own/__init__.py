"""Tools of the gateway's own: what the operator declares runs here, between two turns, and the client sees none of it
but the answer. The client's own tools still go to the client.
"""

from toolwire.service.own.tools import OwnTools as OwnTools
