"""Tools that are run here, by the gateway or by the agent: what a tool is, how calls are run, and the tool loop."""
