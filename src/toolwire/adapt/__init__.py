"""A request made to fit a server, and the way back: names, schemas, histories, arguments."""
