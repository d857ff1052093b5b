//go:build race

// Package raced says whether the race detector is on. With it tests compute five to ten times as long, pools forget on
// purpose, and what is allocated, or how long something takes, says nothing of the product.
package raced

// On reports whether the race detector is on.
const On = true
