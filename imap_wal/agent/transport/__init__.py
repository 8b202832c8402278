"""The socket of an agent, its connections and its endpoint. Only this part uses pyzmq."""
