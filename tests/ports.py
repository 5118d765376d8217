"""A port for a server in another process, which two tests on one machine never get at the same time."""

import socket


def reserved_port() -> int:
    """Return a free port of 127.0.0.1 that the system gives to nobody who asks for any, for a minute.

    A connection over it is closed first by the side that has the port, which then waits (TIME_WAIT): a bind to port 0
    passes such ports over, a server that names the port and sets SO_REUSEADDR gets it.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()
    return port
