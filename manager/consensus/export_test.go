package consensus

import "tidemark/internal/diskspace"

// Full makes a server's file system seem to have this space.
func Full(c *Config, s diskspace.Space) {
	c.space = func(string) (diskspace.Space, error) { return s, nil }
}
