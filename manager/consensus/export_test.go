package consensus

// Space returns the free and total bytes of a file system.
var Space = space
