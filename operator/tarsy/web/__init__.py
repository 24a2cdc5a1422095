"""The pages: HTML made on the server of what `views` shows, kept up to date by server-sent events of `live`."""
