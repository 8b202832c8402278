"""Who may connect to an agent, and what they may do: keys, admission, rights."""
