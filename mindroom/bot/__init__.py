"""AgentBot: the life of one principal: lease, sync, admit, feeder, lanes, recovery, drain."""
