//go:build !race

// Package raced reports whether the race detector is on.
package raced

// On reports whether the race detector is on.
const On = false
