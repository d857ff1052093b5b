//go:build race

package simulation

// raced: the race detector makes a run ten times slower, and there is one goroutine only.
const raced = true
