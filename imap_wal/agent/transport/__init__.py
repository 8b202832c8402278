"""The socket of an agent: what ZeroMQ does, connections, the endpoint; the only pyzmq."""
