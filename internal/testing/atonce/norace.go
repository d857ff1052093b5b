//go:build !race

package atonce

// raced: with the race detector tests compute most of the time.
const raced = false
