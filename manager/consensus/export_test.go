package consensus

import "tidemark/internal/diskspace"

// Full makes a server's file system seem to have this room.
func Full(c *Config, r diskspace.Space) {
	c.room = func(string) (diskspace.Space, error) { return r, nil }
}
