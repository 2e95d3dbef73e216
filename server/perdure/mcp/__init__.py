"""The MCP edge: the tool table, argument checks, wording, the protocol server and the instant stdio front."""
