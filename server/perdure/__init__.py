"""A memory for tool-using agents that outlives the process, served over the Model Context Protocol."""

__version__ = "0.1.0"
