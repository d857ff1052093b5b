//go:build !race

// Package raced says whether the race detector is on.
package raced

// On reports whether the race detector is on.
const On = false
