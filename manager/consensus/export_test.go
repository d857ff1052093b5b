package consensus

// Space tells the free and all bytes of a file system.
var Space = space
