package consensus

import "time"

// Space tells the free and all bytes of a file system.
var Space = space

// JoinTimeout bounds one request to be added.
func (n *Node) JoinTimeout() time.Duration { return n.joinTimeout() }
