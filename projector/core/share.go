package core

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/timestamp"
)

// ErrShare is wrapped by errors about a share of the vbuckets that cannot be parsed.
var ErrShare = errors.New("bad share of the vbuckets")

// Share is the subset of its KV node's vbuckets that a projector may stream, so that several projectors can serve one
// node (PR-4). The zero value is all vbuckets.
type Share struct {
	text   string
	ranges [][2]uint16 // from, to, both included
}

// ParseShare parses "0-511,700": ranges and single vbuckets, separated by commas; "" means all. Errors wrap ErrShare.
func ParseShare(text string) (Share, error) {
	if text == "" {
		return Share{}, nil
	}
	s := Share{text: text}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 16)
		b, errB := strconv.ParseUint(to, 10, 16)
		if errA != nil || errB != nil || a > b || b >= timestamp.MaxVBuckets {
			return Share{}, fmt.Errorf("%w: %q in %q: want vbuckets 0 to %d like 7 or 0-511, separated by "+
				"commas", ErrShare, part,
				text, timestamp.MaxVBuckets-1)
		}
		s.ranges = append(s.ranges, [2]uint16{uint16(a), uint16(b)})
	}
	return s, nil
}

// Has reports whether a vbucket is in the share.
func (s Share) Has(vb uint16) bool {
	return s.ranges == nil || slices.ContainsFunc(s.ranges, func(r [2]uint16) bool { return r[0] <= vb && vb <= r[1] })
}

// String returns the text that was parsed.
func (s Share) String() string { return s.text }
