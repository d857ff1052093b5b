//go:build race

// Package raced reports whether the race detector is on. With it tests compute five to ten times as long and pools
// drop items at random, so allocations and durations say nothing about the product.
package raced

// On reports whether the race detector is on.
const On = true
