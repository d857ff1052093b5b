//go:build race

package router_test

// raceEnabled tells that the race detector is on; it makes pools forget on purpose.
const raceEnabled = true
