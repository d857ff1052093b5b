package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
)

// Availability is how much of a ready index can be scanned now.
type Availability uint8

// The availabilities. The zero value is none: the index is not ready, or its copies are unknown.
const (
	Available   Availability = iota + 1 // every slice has as many copies as requested
	Degraded                            // every slice can be scanned, some have fewer copies than requested
	Unavailable                         // some slice cannot be scanned
)

// String returns the word for users; "" for none.
func (a Availability) String() string {
	switch a {
	case Available:
		return "available"
	case Degraded:
		return "degraded"
	case Unavailable:
		return "unavailable"
	}
	return ""
}

// Serving is a copy of a ready index from the point of view of scans.
type Serving struct {
	Slice index.SliceID
	// Fault is why scans cannot use the copy, "" if they can.
	Fault string
}

// namedSlices bounds the slices that Assess names.
const namedSlices = 3

// Assess returns the availability of a ready index with the given number of slices, each of which should have asked
// copies, and the reason if it is not Available. The reason names the slices that lack most, at most three of them.
func Assess(slicesOf, asked int, copies []Serving) (Availability, string) {
	type slice struct {
		number  int
		serving int
		faults  []string
	}
	all := make([]slice, slicesOf)
	for i := range all {
		all[i].number = i
	}
	for _, c := range copies {
		switch s := int(c.Slice); {
		case s >= len(all):
		case c.Fault == "":
			all[s].serving++
		default:
			all[s].faults = append(all[s].faults, c.Fault)
		}
	}
	lacking := slices.DeleteFunc(all, func(s slice) bool { return s.serving >= asked })
	if len(lacking) == 0 {
		return Available, ""
	}
	slices.SortStableFunc(lacking, func(a, b slice) int { return a.serving - b.serving })
	a := Degraded
	if lacking[0].serving == 0 {
		a = Unavailable
	}
	var why []string
	for _, s := range lacking[:min(len(lacking), namedSlices)] {
		text := fmt.Sprintf("slice %d has %d of %d copies", s.number, s.serving, asked)
		if len(s.faults) > 0 {
			text += " (" + strings.Join(s.faults, ", ") + ")"
		}
		why = append(why, text)
	}
	if more := len(lacking) - namedSlices; more > 0 {
		why = append(why, fmt.Sprintf("%d more slices", more))
	}
	return a, strings.Join(why, "; ")
}
